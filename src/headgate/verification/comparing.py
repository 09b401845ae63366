"""Compares records of the same script: alone, alone with other rounding, and as the workers of a
plan.

Two tensors are the same if they differ by no more than rounding. Rounding is `_FLOORS` of all
tensors of their kind, or `_TIMES` the difference of the same tensor between the two runs alone. The
latter allows for steps that amplify rounding, as those of Adam with a gradient that is only
rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headgate.verification.records import Key, RecordedStep, TensorAt, TrainingRecord
from headgate.verification.verdict import FirstDifference, Sameness, Verification, Why

GRADIENT, WEIGHT, BUFFER = "gradient", "weight", "buffer"
KINDS = (GRADIENT, WEIGHT, BUFFER)
_FLOORS = {True: 1e-11, False: 2e-5}
"""Relative rounding of float64, and of a script's own type."""
_TIMES = 64.0
_VARIES = {True: 1e-6, False: 5e-2}
"""From this difference on, a run alone with a perturbed start is no measure of rounding."""
_LEAST = 1e-3
"""Least norm of a single tensor, as a fraction of all tensors of its kind, for relative
distances.
"""
_MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of two records.

    Args:
        first: The first difference; None: none.
        largest: The largest difference, relative to its tensor, or to a fraction of all tensors of
            its kind if that is larger.
        kinds: Kinds of tensors that differ at the first difference.
    """

    first: FirstDifference | None
    largest: float
    kinds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one verification.

    Args:
        alone: The script alone.
        rounded: The same with perturbed weights; None: it was not run.
        workers: The workers of the plan.
        double: Whether all computed in float64.
    """

    alone: TrainingRecord
    rounded: TrainingRecord | None
    workers: tuple[TrainingRecord, ...]
    double: bool


def compared(records: Records) -> Verification:
    """Whether the workers train the same as the script alone."""
    alone, double = records.alone, records.double
    rounding = rounding_of(alone, records.rounded)
    noise = (
        distance(alone, records.rounded, double, {}).largest if records.rounded is not None else 0.0
    )
    steps = len({number for optimizer, number in alone.steps if optimizer == 0})
    answer = Verification(
        Sameness.UNKNOWN,
        len(records.workers),
        steps=steps,
        double=double,
        rounding=noise,
        fenced=alone.fenced,
    )
    if not alone.steps:
        return replace(answer, cause=Why.NO_STEP)
    if any(worker.sharded for worker in records.workers):
        return replace(answer, cause=Why.SHARDED)
    if noise > _VARIES[double]:
        return replace(answer, cause=Why.SENSITIVE)
    first, *others = records.workers
    apart = [distance(first, other, double, rounding, (WEIGHT,)) for other in others]
    plan = distance(alone, first, double, rounding)
    answer = replace(
        answer,
        largest=max([plan.largest, *(difference_apart.largest for difference_apart in apart)]),
    )
    far = [
        difference_apart.first for difference_apart in apart if difference_apart.first is not None
    ]
    if plan.first is None and not far:
        return replace(answer, answer=Sameness.SAME, loss_differs=_losses_apart(records))
    return _with_cause(
        answer,
        records,
        plan,
        min(far, key=lambda difference_apart: difference_apart.step) if far else None,
        rounding,
    )


def compared_among(records: Records) -> Verification:
    """Whether workers train the same as each other, if each has its own batches, so that the script
    alone trains differently.
    """
    first, *others = records.workers
    steps = len({number for optimizer, number in first.steps if optimizer == 0})
    answer = Verification(
        Sameness.UNKNOWN, len(records.workers), steps=steps, double=records.double
    )
    if any(worker.sharded for worker in records.workers):
        return replace(answer, cause=Why.SHARDED)
    apart = [distance(first, other, records.double, {}, (WEIGHT,)) for other in others]
    far = [
        difference_apart.first for difference_apart in apart if difference_apart.first is not None
    ]
    answer = replace(
        answer, largest=max((difference_apart.largest for difference_apart in apart), default=0.0)
    )
    if not far:
        return replace(answer, cause=Why.OWN_BATCH)
    difference = min(far, key=lambda difference_apart: difference_apart.step)
    cause = Why.SET if _same_gradients(records, difference.step) else Why.APART
    return replace(answer, answer=Sameness.DIFFERS, cause=cause, difference=difference)


def distance(
    one: TrainingRecord,
    other: TrainingRecord | None,
    double: bool,
    rounding: Mapping[tuple[Key, str, str], float],
    kinds: Sequence[str] = KINDS,
) -> Distance:
    """The distance of two records, at the steps that both have."""
    largest, first, seen = 0.0, None, set[str]()
    if other is None:
        return Distance(None, 0.0)
    for key, step in one.steps.items():
        if key not in other.steps:
            continue
        off = _tensor_distances(key, step, other.steps[key], double, rounding, kinds)
        largest = max([largest, *(size for _, size, _ in off)])
        wrong = [(tensor, size) for tensor, size, differs in off if differs]
        if wrong and first is None:
            seen = {tensor.kind for tensor, _ in wrong}
            kind = next(kind for kind in KINDS if kind in seen)
            named = sorted(
                ((t, size) for t, size in wrong if t.kind == kind), key=lambda pair: -pair[1]
            )
            names = tuple(tensor.name for tensor, _ in named)
            first = FirstDifference(key[1], key[0] + 1, kind, names, named[0][1])
    return Distance(first, largest, frozenset(seen))


def rounding_of(
    alone: TrainingRecord, rounded: TrainingRecord | None
) -> dict[tuple[Key, str, str], float]:
    """The distance of each tensor from that of a run with other rounding, at the step or an earlier
    one.
    """
    apart: dict[tuple[Key, str, str], float] = {}
    so_far: dict[tuple[str, str], float] = {}
    for key, step in alone.steps.items():
        other = rounded.steps.get(key) if rounded is not None else None
        for place, tensor in step.tensors.items():
            other_tensor = other.tensors.get(place) if other is not None else None
            if other_tensor is not None and other_tensor.shape == tensor.shape:
                so_far[place] = max(
                    so_far.get(place, 0.0), _norm(other_tensor.numbers - tensor.numbers)
                )
            apart[key, place[0], place[1]] = so_far.get(place, 0.0)
    return apart


def _tensor_distances(
    key: Key,
    step: RecordedStep,
    other: RecordedStep,
    double: bool,
    rounding: Mapping[tuple[Key, str, str], float],
    kinds: Sequence[str],
) -> list[tuple[TensorAt, float, bool]]:
    """Each tensor of a step, its distance from the other's, and whether it is more than
    rounding.
    """
    norms = {
        kind: _norm(np.array([t.norm for t in step.tensors.values() if t.kind == kind]))
        for kind in kinds
    }
    result = []
    for place, tensor in step.tensors.items():
        if tensor.kind not in kinds:
            continue
        other_tensor = other.tensors.get(place)
        if other_tensor is None or other_tensor.shape != tensor.shape:
            if tensor.kind != GRADIENT or tensor.norm > 0:
                result.append((tensor, 1.0, True))
            continue
        if _same_bits(tensor, other_tensor):
            result.append((tensor, 0.0, False))
            continue
        apart = _norm(other_tensor.numbers - tensor.numbers)
        # Differences outside of the kept numbers show in the sum of all squares.
        norm_difference = abs(other_tensor.norm - tensor.norm)
        floor = _FLOORS[double] * norms[tensor.kind]
        allowed = floor + _TIMES * rounding.get((key, tensor.kind, tensor.name), 0.0)
        size = max(apart, norm_difference)
        scale = max(tensor.norm, _LEAST * norms[tensor.kind])
        relative = size / scale if scale > 0 else float(size > 0)
        result.append((tensor, relative if np.isfinite(relative) else 1.0, not size <= allowed))
    return result


def _same_bits(one: TensorAt, other: TensorAt) -> bool:
    same = bool(np.array_equal(one.numbers, other.numbers, equal_nan=True))
    return same and (one.squares == other.squares or not np.isfinite(one.squares))


def _norm(numbers: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(np.linalg.norm(numbers))


# --- causes ---------------------------------------------------------------------------------------


def _with_cause(
    answer: Verification,
    records: Records,
    plan: Distance,
    apart: FirstDifference | None,
    rounding: Mapping[tuple[Key, str, str], float],
) -> Verification:
    """The answer after a difference, with the probable cause."""
    difference = plan.first or apart
    assert difference is not None
    sets_weights = apart is not None and _same_gradients(records, apart.step)
    if apart is not None and plan.first is not None:
        comes_first = apart.step < plan.first.step or (
            sets_weights and apart.step == plan.first.step
        )
        difference = apart if comes_first else plan.first
    cause, detail = _cause(records, plan, apart, difference)
    if cause is Why.APART and sets_weights:
        cause = Why.SET
    verification = replace(answer, difference=difference, cause=cause, detail=detail)
    if cause in (Why.RANDOM, Why.DATA) and apart is None:
        return verification  # drawn anew by each worker, as they may: nothing is known of the rest
    return replace(verification, answer=Sameness.DIFFERS)


def _cause(
    records: Records, plan: Distance, apart: FirstDifference | None, difference: FirstDifference
) -> tuple[Why, tuple[str, ...]]:
    alone, first = records.alone, records.workers[0]
    key = difference.optimizer - 1, difference.step
    at, worker_step = alone.steps[key], first.steps[key]
    hooked = [name for name in difference.tensors if name in alone.hooked]
    unprepared = [name for name in difference.tensors if worker_step.unprepared]
    cause, detail = Why.LOSS, tuple(difference.tensors[:_MOST_NAMES])
    if unprepared or (apart is not None and _unprepared(first)):
        cause = Why.UNPREPARED
    elif any(step.drew for step in _steps_up_to(alone, key)):
        cause = Why.RANDOM
    elif not _same_samples(records, key):
        cause = Why.DATA
    elif alone.hooked and (hooked or difference.kind != BUFFER):
        cause, detail = Why.HOOK, alone.hooked[:_MOST_NAMES]
    elif alone.normalised:
        cause, detail = Why.NORMALISATION, alone.normalised
    elif difference.kind == BUFFER or BUFFER in plan.kinds or _buffers_apart(records, key):
        cause = Why.BUFFER
    elif apart is not None:
        cause = Why.APART
    elif difference.kind == WEIGHT and at.tensors.keys() & {
        (GRADIENT, name) for name in difference.tensors
    }:
        cause = Why.OPTIMIZER
    return cause, detail


def _same_gradients(records: Records, step: int) -> bool:
    """Whether all workers had the same gradients up to a step, as far as they are recorded."""
    first, *others = records.workers
    if not any(kind == GRADIENT for at in first.steps.values() for kind, _ in at.tensors):
        return False
    apart = [distance(first, other, records.double, {}, (GRADIENT,)).first for other in others]
    return all(difference is None or difference.step > step for difference in apart)


def _steps_up_to(record: TrainingRecord, key: Key) -> list[RecordedStep]:
    keys = list(record.steps)
    return [record.steps[record_key] for record_key in keys[: keys.index(key) + 1]]


def _unprepared(record: TrainingRecord) -> bool:
    return any(step.unprepared for step in record.steps.values())


def _same_samples(records: Records, key: Key) -> bool:
    """Whether the workers' batches up to a step are, together, those of the script alone."""
    close = 1e-9 if records.double else 1e-4
    for place, step in records.alone.steps.items():
        parts = [worker.steps[place].batch for worker in records.workers if place in worker.steps]
        alone_batch = step.batch
        if alone_batch and any(parts):
            together = [sum(part[i] for part in parts if part) for i in range(3)]
            scale = max(1.0, abs(alone_batch[2])) + abs(alone_batch[1])
            if any(
                abs(have - want) > close * scale
                for have, want in zip(together[1:], alone_batch[1:])
            ):
                return False
        if place == key:
            break
    return True


def _buffers_apart(records: Records, key: Key) -> bool:
    """Whether buffers differ between workers at that step, or the one before it."""
    first, *others = (worker.steps.get(key) for worker in records.workers)
    if first is None:
        return False
    places = [place for place in first.tensors if place[0] == BUFFER]
    return any(
        other is not None
        and place in other.tensors
        and not _same_bits(first.tensors[place], other.tensors[place])
        for place in places
        for other in others
    )


def _losses_apart(records: Records) -> float:
    """The relative distance of the losses reported by workers together from those of the script
    alone.
    """
    worst = 0.0
    for at, (loss, _) in enumerate(records.alone.losses):
        parts = [worker.losses[at] for worker in records.workers if at < len(worker.losses)]
        weight = sum(part for _, part in parts)
        if len(parts) == len(records.workers) and weight > 0:
            mean = sum(value * part for value, part in parts) / weight
            off = abs(mean - loss) / max(abs(loss), 1e-12)
            worst = max(worst, off if np.isfinite(off) else 0.0)
    rounding = 1e-6 if records.double else 1e-3
    return worst if worst > rounding else 0.0


def repeats(one: TrainingRecord, other: TrainingRecord) -> bool:
    """Whether two runs alone trained the same, except for the order in which threads sum."""
    return distance(one, other, True, {}).largest < _VARIES[True]


# --- a resume -------------------------------------------------------------------------------------


def compared_resume(
    whole: Sequence[TrainingRecord], resumed: Sequence[TrainingRecord], double: bool
) -> Verification:
    """Whether a run that was stopped and resumed trains the same as one that was not stopped.

    Args:
        whole: The tasks of the run that was not stopped.
        resumed: The tasks of the resumed run.
        double: Whether they computed in float64.
    """
    apart = [distance(record, other, double, {}) for record, other in zip(whole, resumed)]
    steps = len(
        {number for record in resumed[:1] for optimizer, number in record.steps if optimizer == 0}
    )
    first = [
        difference_apart.first for difference_apart in apart if difference_apart.first is not None
    ]
    answer = Verification(
        Sameness.SAME,
        len(whole),
        steps=steps,
        double=double,
        largest=max((difference_apart.largest for difference_apart in apart), default=0),
    )
    if not steps:
        return replace(answer, answer=Sameness.UNKNOWN, cause=Why.NO_STEP)
    if not first:
        return answer
    difference = min(first, key=lambda difference_apart: difference_apart.step)
    return replace(answer, answer=Sameness.DIFFERS, cause=Why.RESUME, difference=difference)
