"""A verification, in words."""

from __future__ import annotations

from headgate.model.units import say_first, say_percent
from headgate.verification.verdict import (
    CutOff,
    FirstDifference,
    LeftOut,
    Sameness,
    StopPlace,
    Verification,
    Why,
)

_KINDS = {"gradient": "the gradient of", "weight": "the weights", "buffer": "the buffer"}
_PLURAL = {"gradient": "gradients of", "weight": "the weights", "buffer": "the buffers"}
_NAMED = 3

_CAUSES = {
    Why.LOSS: (
        "parts of the loss weigh unequally in the workers: say `hg.report(loss=..., weight=...)` "
        "before `backward`, or `prepare(..., loss_reduction=...)`"
    ),
    Why.HOOK: (
        "hooks change gradients in each worker before they are averaged; only a linear hook stays"
        " right"
    ),
    Why.BUFFER: "a forward pass changes buffers, in each worker by its own samples",
    Why.NORMALISATION: (
        "batch normalisation takes the statistics of each worker's own samples, as in "
        "DistributedDataParallel"
    ),
    Why.RANDOM: "the script draws random numbers in its steps, and each worker draws others",
    Why.DATA: (
        "the samples differ: the data set draws at random, or without a seed that all workers "
        "share, or its loader is not divided among them"
    ),
    Why.UNPREPARED: (
        "an optimizer takes steps that was not given to `prepare`: give it, with its model"
    ),
    Why.APART: "the workers differ from each other: each trains by gradients of its own",
    Why.SET: (
        "the script changes weights or learning rates by what each worker has, as gradients are "
        "the same: let all decide alike, by `hg.mean(...)` or `hg.agree(...)`"
    ),
    Why.OPTIMIZER: (
        "gradients are the same, and what the optimizer makes of them is not: its state, its "
        "schedule, or weights that the script sets"
    ),
    Why.RESUME: (
        "the checkpoint does not hold all that the script goes on from; `hg.keep(...)` saves more"
    ),
    Why.NO_STEP: "no step of an optimizer was seen",
    Why.FAILED: "the script failed",
    Why.WORKERS_FAILED: "its workers failed",
    Why.SLOW: "it did not take its steps in time; `--seconds` gives it more",
    Why.VARIES: (
        "the script differs from itself: run twice alone, with the same seeds, it trains "
        "something else"
    ),
    Why.SENSITIVE: "a difference of rounding alone makes it train something else",
    Why.OUTSIDE: "the script writes outside of its folder, which `--writable FOLDER` allows",
    Why.NETWORK: "it needs the network, which a trial keeps it from",
    Why.OPEN: (
        "this kernel has neither network namespaces nor Landlock for TCP, which would keep a "
        "trial from the network; ask for one: `headgate verify`"
    ),
    Why.GPU: (
        "it fails without the GPUs that the job holds; ask for a trial when they are free: "
        "`headgate verify`"
    ),
    Why.UNSEEN: (
        "it is no Python script, or its framework does not show its steps; headgate.keras and "
        "headgate.jax show them"
    ),
    Why.SHARDED: "no worker has a whole tensor, as under FullyShardedDataParallel",
    Why.OWN_BATCH: (
        "each worker has a whole batch, so that no run alone trains the same; the workers are the"
        " same as each other"
    ),
    Why.ASYNCHRONOUS: "workers that do not wait for each other are not meant to train the same",
    Why.NOT_STOPPED: "it saved no checkpoint where it was asked to stop",
    Why.UNFENCED: (
        "this kernel has no Landlock, which would keep a trial in; ask for one: `headgate verify`"
    ),
    Why.NOT_YET: "that takes a run of some seconds, from the 20th second of the job on",
    Why.ROOM: "there is no room to run it a second time",
    Why.ELSEWHERE: "it runs in a container or a guest",
    Why.ROLES: "a job of roles trains by no plan of Headgate's",
}
_NAMING = {
    Why.HOOK,
    Why.NORMALISATION,
    Why.FAILED,
    Why.WORKERS_FAILED,
    Why.SLOW,
    Why.OUTSIDE,
    Why.NETWORK,
    Why.GPU,
}
"""Causes whose detail is shown."""
_LEFT_OUT = {
    LeftOut.DROPOUT: "dropout",
    LeftOut.NOISE: "noise of layers",
    LeftOut.MIXED_PRECISION: "mixed precision",
    LeftOut.GPUS: "GPUs",
}
_OPEN = {
    CutOff.PORTS: (
        "note: without network namespaces, what it sent by UDP, and by TCP to ports from 15000 "
        "on, was not held back"
    ),
    CutOff.PYTHON: "note: without network namespaces, what extensions sent was not held back",
}
_PLACES = {
    StopPlace.VALIDATION: "in a validation",
    StopPlace.ACCUMULATION: "between accumulations",
    StopPlace.EPOCH_END: "at the end of an epoch",
    StopPlace.TRAINING: "between two steps",
}


def words(verification: Verification) -> str:
    """The whole answer."""
    lines = [sentence(verification)]
    if verification.cause is not None and verification.answer is Sameness.DIFFERS:
        lines.append(f"probably: {_CAUSES[verification.cause]}{_detail(verification)}")
    if verification.stopped_in is not None:
        where = f"{_PLACES[verification.stopped_in]}, in forward pass {verification.stopped_at}"
        lines.append(f"stopped {where}; again with: --resume --seed {verification.seed}")
    lines += _notes(verification)
    return "\n".join(lines)


def sentence(verification: Verification) -> str:
    """The answer in one sentence."""
    with_what = (
        "after a stop and a resume"
        if verification.stopped_in is not None
        else f"with {verification.workers} workers"
    )
    if verification.answer is Sameness.SAME:
        return (
            f"the same {with_what} to {_least(verification.largest)}, over "
            f"{_steps(verification.steps)}{_left_out(verification)}"
        )
    if verification.answer is Sameness.DIFFERS and verification.difference is not None:
        return f"differs {with_what} by {differs(verification.difference)}{_left_out(verification)}"
    reason = (
        _CAUSES[verification.cause] if verification.cause is not None else "nothing can be said"
    )
    return f"not verified: {reason}{_detail(verification)}"


def kept_alone(verification: Verification) -> str:
    """Why a job keeps one worker although Headgate would give it several."""
    if verification.answer is Sameness.DIFFERS:
        return f"because several would train something else: {sentence(verification)}"
    if verification.cause is Why.WORKERS_FAILED:
        return f"because several fail: {sentence(verification)}"
    return "until it is verified that several train the same; a trial beside it is to tell"


def differs(difference: FirstDifference) -> str:
    """In words, what differs, by how much, and from which step on."""
    named = say_first([f"`{name}`" for name in difference.tensors], _NAMED)
    kind = (_KINDS if len(difference.tensors) == 1 else _PLURAL)[difference.kind]
    text = f"{_percent(difference.size)} from step {difference.step} on: {kind} {named}"
    return text + (f" (optimizer {difference.optimizer})" if difference.optimizer > 1 else "")


def _detail(verification: Verification) -> str:
    if not verification.detail or verification.cause not in _NAMING:
        return ""
    return f" ({', '.join(verification.detail)})"


def _notes(verification: Verification) -> list[str]:
    lines = []
    if verification.steps and not verification.double:
        alone = _least(verification.rounding)
        lines.append(
            "note: it cannot compute in float64; two runs alone, rounded otherwise, differ "
            f"by {alone}"
        )
    if verification.loss_differs:
        off = _percent(verification.loss_differs)
        lines.append(
            f"note: the loss that is reported differs by {off}; what is trained is the same"
        )
    if not verification.fenced:
        lines.append(
            "note: without Landlock in the kernel, what extensions write elsewhere was "
            "not kept away"
        )
    if verification.answer is Sameness.SAME and verification.outside:
        paths = ", ".join(verification.outside[:_NAMED])
        lines.append(f"note: it tried to write outside of its folder, and could not: {paths}")
    if verification.cut_off is not CutOff.NAMESPACE:
        lines.append(_OPEN[verification.cut_off])
    if verification.cause is not Why.NETWORK and verification.network:
        places = ", ".join(verification.network[:_NAMED])
        lines.append(f"note: it tried to reach the network, and could not: {places}")
    if verification.output:
        lines.append(f"its output: headgate logs {verification.output}")
    return lines


def _left_out(verification: Verification) -> str:
    """In words, what the trial did not do, alone or with workers."""
    return (
        f"; left out: {', '.join(_LEFT_OUT[part] for part in verification.left_out)}"
        if verification.left_out
        else ""
    )


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _least(size: float) -> str:
    return "the last bit" if size == 0 else f"{size:.0e}"


def _percent(size: float) -> str:
    if size >= 0.005:
        return say_percent(size) if size < 10 else f"{size:.0f} times"
    return f"{size:.1e}"
