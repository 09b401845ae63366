"""The objects that a script trains, whose state a checkpoint holds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import torch
from torch import nn

from headgate.task.saving import ResumeError
from headgate.torch import added_groups, batches, sparse_layers
from headgate.torch.added_groups import AddedGroups, unwrapped
from headgate.torch.extra_state import WORKER, KeptObject, WorkerStates, of_worker
from headgate.torch.gradients import Gradients, put_back
from headgate.torch.rng import cuda_in_use
from headgate.torch.step_weights import StepWeights

Place = Optional[tuple[int, int]]
"""Phase and epoch; None: outside of the loops over epochs."""


@dataclass
class _Prepared:
    """An optimizer or a scheduler.

    Args:
        object: The object.
        model: Number of the model that it was prepared with.
        place: The place in the script where it was prepared.
        renewed: Number of earlier ones for the same model.
        loaded: Whether it has loaded its state from the checkpoint, or the checkpoint has none.
    """

    object: Any
    model: int
    place: Place
    renewed: int = 0
    loaded: bool = True


@dataclass(frozen=True)
class Added:
    """The result of a call of `prepare`.

    Args:
        model: Whether the model is new.
        optimizer: Whether the optimizer is new.
        scheduler: Whether the scheduler is new.
        loaded: Whether the model has the values of the checkpoint.
    """

    model: bool
    optimizer: bool
    scheduler: bool
    loaded: bool


class TrainingState:
    """Models, optimizers, schedulers and kept objects of a script, in the order in which they were
    prepared.

    An object counts once, however often it is prepared. A new optimizer or scheduler for a model
    replaces one that has trained the model.

    Args:
        resume: The checkpoint to load into each of them; None: start afresh.
        note: Tells the user something.
        place: Returns the place of the script.
        member: This worker's index in its job, and the number of workers.

    Attributes:
        weights: Knows whether the weights are those of the last step.
        gradients: Knows which gradients are left over.
    """

    def __init__(
        self,
        resume: Mapping[str, Any] | None,
        note: Callable[[str], None] = lambda text: None,
        place: Callable[[], Place] = lambda: None,
        member: tuple[int, int] = (0, 1),
    ) -> None:
        self._resume = resume
        self._note = note
        self._place = place
        self._member = member
        self.models: list[nn.Module] = []
        self.optimizers: list[Any] = []
        self._prepared: dict[str, list[_Prepared]] = {"optimizers": [], "schedulers": []}
        self._late: list[AddedGroups] = []
        self._trained: set[int] = set()
        # replaced optimizers and schedulers, without the objects
        self._former: dict[int, tuple[weakref.ref[Any], int, _Prepared]] = {}
        self._told_fresh = False
        self._arrived = False
        self._settled = False
        self.kept: dict[str, KeptObject] = {}
        self._compared = WorkerStates()
        self.weights = StepWeights()
        self.gradients = Gradients()

    def add(self, model: nn.Module, optimizer: Any, scheduler: Any) -> Added:
        """Add the objects of one call of `prepare`. None for a scheduler or an optimizer is
        ignored.

        Raises:
            ResumeError: The checkpoint does not fit.
        """
        fresh: list[str] = []
        inner = unwrapped(model)
        number = next(
            (n for n, known in enumerate(self.models) if unwrapped(known) is inner),
            len(self.models),
        )
        is_new, loaded = number == len(self.models), self._has("models", number)
        if is_new:
            self.models.append(model)
            if loaded:
                self._load("models", number, inner.load_state_dict, "model")
            else:
                fresh.append("model")
        is_new_optimizer = optimizer is not None and self._add(
            "optimizers", number, optimizer, fresh
        )
        is_new_scheduler = scheduler is not None and self._add(
            "schedulers", number, scheduler, fresh
        )
        if self._arrived and loaded and self._resume is not None:
            self._set_trained(self._resume.get("frozen", ()))
        if fresh and self._resume is not None and not self._told_fresh:
            self._told_fresh = True
            kinds = " and ".join(fresh)
            self._note(
                f"the {kinds} that the script prepares now (model {number + 1}) came after the "
                "checkpoint was taken: it starts afresh, and so does what comes later"
            )
        return Added(is_new, is_new_optimizer, is_new_scheduler, is_new and loaded)

    def stepped(self, optimizer: Any) -> None:
        """Note an optimizer's step."""
        if id(optimizer) not in self._trained:
            self._trained.add(id(optimizer))
            self._take_back(optimizer)
        self.weights.stepped(optimizer)
        self.gradients.stepped(optimizer)

    def stepped_unseen(self) -> None:
        """Note a step that no optimizer reports."""
        self.weights.stepped(self, self.models)

    def has_trained(self, number: int) -> bool:
        """Whether the optimizer of this number has taken a step."""
        return number < len(self.optimizers) and id(self.optimizers[number]) in self._trained

    def begins(self, optimizer: Any) -> None:
        """Note that an optimizer is about to take a step."""
        if self._resume is not None and not self._settled:
            self._settle(self._resume)
        self.weights.begins()
        self.gradients.begins(optimizer)

    def keep(self, objects: Mapping[str, Any], across: str | None) -> None:
        """Add kept objects, by name. Objects that the checkpoint does not have start afresh.

        Args:
            objects: Objects with `state_dict` and `load_state_dict`.
            across: How their states relate in several workers, as of `KeptObject`.

        Raises:
            ResumeError: The checkpoint does not fit.
        """
        for name, kept in objects.items():
            is_new = name not in self.kept
            self.kept[name] = KeptObject(kept, across)
            if is_new and self._resume is not None:
                state, key = of_worker(self._resume, name, across, *self._member)
                if key in state:
                    self._load_from(state, key, kept.load_state_dict, name)

    def arrive(self, at_place: bool) -> None:
        """Note that the script has reached the place where it resumes. The objects trained at the
        checkpoint are those trained now.

        Args:
            at_place: Whether it is the exact place, and not the beginning of an epoch that starts
                again.

        Raises:
            ResumeError: The checkpoint does not fit.
        """
        resume = self._resume
        if resume is None:
            return
        self._arrived = True
        added = sum(group.complete() for group in self._late)
        changed = self._set_trained(resume.get("frozen", ()))
        if added or changed:
            self._note(
                "as at the checkpoint, and not as the script begins: "
                + ", ".join(
                    text
                    for text, count in (
                        (f"{added} more parameter groups in optimizers", added),
                        (f"{changed} parameters frozen or trained", changed),
                    )
                    if count
                )
            )
        if at_place:
            self.put_gradients_back()

    def put_gradients_back(self) -> None:
        """Restore the gradients that were left over at the checkpoint."""
        if self._resume is not None and self._resume.get("gradients"):
            put_back(self._inner, self._resume["gradients"])

    def knows(self, optimizer: Any) -> bool:
        """Whether an optimizer was prepared."""
        former = self._former.get(id(optimizer))
        return any(optimizer is known for known in self.optimizers) or (
            former is not None and former[0]() is optimizer
        )

    @property
    def schedulers(self) -> list[Any]:
        return [entry.object for entry in self._prepared["schedulers"]]

    def gpus(self) -> set[int]:
        """Indices of the GPUs that hold its models, as this process numbers them."""
        numbers = {
            parameter.device.index
            for model in self.models
            for parameter in model.parameters()
            if parameter.is_cuda
        }
        for model in self.models:  # copies of it, as `DataParallel` has
            numbers.update(
                device
                for device in getattr(model, "device_ids", None) or ()
                if isinstance(device, int)
            )
        return numbers

    def settle(self) -> None:
        """Wait for the work started on these GPUs; without such GPUs, on the current one."""
        if cuda_in_use():
            for gpu in self.gpus() or {torch.cuda.current_device()}:
                torch.cuda.synchronize(gpu)

    def compare(
        self, across: Callable[[Mapping[str, KeptObject]], WorkerStates], tells: bool
    ) -> None:
        """Find out which kept state is each worker's own. All workers call this.

        Args:
            across: Compares the state over the workers.
            tells: Whether this worker tells the user the notes.
        """
        if self.kept:
            self._compared = across(self.kept)
            for text in self._compared.notes if tells else ():
                self._note(text)

    @property
    def has_own(self) -> bool:
        """Whether a checkpoint holds state that is each worker's own."""
        return bool(self._compared.own) or any(
            entry.across == WORKER for entry in self.kept.values()
        )

    def state_dicts(self, gradients: bool) -> dict[str, Any]:
        """State dicts by section of a checkpoint.

        Args:
            gradients: Whether left-over gradients are the same in all workers of the job.
        """
        compared = self._compared
        inner = self._inner
        kept = {name: kept_object.object.state_dict() for name, kept_object in self.kept.items()}
        alone = (
            {}
            if self._member[1] > 1
            else {n: {0: kept[n]} for n, k in self.kept.items() if k.across == WORKER}
        )
        return {
            "models": [model.state_dict() for model in inner],
            **{
                section: [entry.object.state_dict() for entry in entries]
                for section, entries in self._prepared.items()
            },
            "kept": {**kept, **compared.means},
            "own": {**alone, **compared.own},
            "gradients": self.gradients.left_over(inner) if gradients else [],
            "groups": [added_groups.names(optimizer, inner) for optimizer in self.optimizers],
            "frozen": [
                [n for n, p in model.named_parameters() if not p.requires_grad] for model in inner
            ],
            "prepared": {
                section: [[entry.place, entry.renewed] for entry in entries]
                for section, entries in self._prepared.items()
            },
        }

    def model_bytes(self) -> int:
        """Bytes of all parameters and buffers."""
        return sum(
            t.numel() * t.element_size()
            for m in self.models
            for t in batches.tensors(unwrapped(m).state_dict())
        )

    # --- replacing and loading --------------------------------------------------------------------

    @property
    def _inner(self) -> list[nn.Module]:
        return [unwrapped(model) for model in self.models]

    def _add(self, section: str, model: int, added: Any, fresh: list[str]) -> bool:
        """Add an optimizer or a scheduler. Returns whether it is new."""
        entries = self._prepared[section]
        if any(known.object is added for known in entries):
            return False
        number, entry = len(entries), _Prepared(added, model, self._place())
        former = [n for n, known in enumerate(entries) if known.model == model]
        if len(former) == 1 and self._is_over(section, entries[former[0]]):
            number = former[0]
            entry.renewed, entry.loaded = entries[number].renewed + 1, entries[number].loaded
            self._replace(section, number)
        else:
            entry.loaded = self._resume is None
        entries[number : number + 1] = [entry]
        if section == "optimizers":
            self.optimizers[number : number + 1] = [added]
        if not entry.loaded and not self._has(section, number):
            entry.loaded = True
            fresh.append(section[:-1])
        if not entry.loaded:
            self._load_or_wait(section, number)
        return True

    def _is_over(self, section: str, former: _Prepared) -> bool:
        """Whether a new object for the same model replaces this one, instead of being used beside
        it.
        """
        if not former.loaded:
            return True
        optimizers = [
            entry.object for entry in self._prepared["optimizers"] if entry.model == former.model
        ]
        steps = [former.object] if section == "optimizers" else optimizers
        return any(id(step) in self._trained for step in steps)

    def _replace(self, section: str, number: int) -> None:
        """Replace an optimizer by a new one."""
        if section == "optimizers":
            former = self._prepared[section][number]
            self._trained.discard(id(former.object))
            self.weights.forget(former.object)
            self.gradients.forget(former.object)
            entry = replace(former, object=None)
            self._former[id(former.object)] = weakref.ref(former.object), number, entry

    def _take_back(self, optimizer: Any) -> None:
        """Note that an optimizer trains. If another one has replaced it, both are used."""
        reference, number, entry = self._former.pop(id(optimizer), (None, 0, None))
        if reference is None or entry is None or reference() is not optimizer:
            return
        entries = self._prepared["optimizers"]
        later, entries[number] = entries[number], replace(entry, object=optimizer)
        self.optimizers[number] = optimizer
        if later.object is not optimizer:
            later.renewed = 0
            entries.append(later)
            self.optimizers.append(later.object)

    def _load_or_wait(self, section: str, number: int) -> None:
        """Load the state of a new object, unless it is not the one in the checkpoint."""
        assert self._resume is not None
        entry = self._prepared[section][number]
        prepared = self._resume.get("prepared", {}).get(section, ())
        born, renewed = prepared[number] if number < len(prepared) else (None, 0)
        if entry.place is None and born is not None:
            # Then it was added in an epoch. Whether it is this object is not known before the
            # script trains.
            return
        if renewed and entry.place is not None and self._resume["position"] == 0:
            entry.loaded = True  # another one than that of the epoch before
        else:
            self._load_into(section, number)

    def _load_into(self, section: str, number: int) -> None:
        assert self._resume is not None
        entry = self._prepared[section][number]
        entry.loaded = True
        target = entry.object
        if section == "schedulers":
            self._load(section, number, target.load_state_dict, "scheduler")
            return
        named = self._resume.get("groups", ())
        groups = named[number] if number < len(named) else ()
        late = self._load(
            section,
            number,
            lambda saved: added_groups.load(target, saved, groups, self.models),
            "optimizer",
        )
        if late is not None and self._arrived:
            late.complete()
        elif late is not None:
            self._late.append(late)

    def _settle(self, resume: Mapping[str, Any]) -> None:
        """Settle which objects train, when the first step begins."""
        self._settled = True
        for section, entries in self._prepared.items():
            for number, entry in enumerate(entries):
                if not entry.loaded:
                    self._load_into(section, number)
            more = len(resume[section]) - len(entries)
            if more > 0:
                self._note(
                    f"the checkpoint has {len(resume[section])} {section}, the resumed script has "
                    f"prepared {len(entries)}: those made in a finished epoch are not made again. "
                    "Prepare them before the loop over epochs, or in each epoch"
                )

    def _set_trained(self, frozen: Sequence[Sequence[str]]) -> int:
        """Freeze and unfreeze parameters as they were at the checkpoint. Returns how many
        changed.
        """
        changed = 0
        for model, names in zip(self._inner, frozen):
            known = set(names)
            for name, parameter in model.named_parameters():
                if parameter.requires_grad == (name in known) and parameter.is_leaf:
                    parameter.requires_grad_(name not in known)
                    changed += 1
        return changed

    def _has(self, section: str, number: int) -> bool:
        return self._resume is not None and number < len(self._resume[section])

    def _load(self, section: str, key: Any, load: Callable[[Any], Any], what: str) -> Any:
        assert self._resume is not None
        return self._load_from(self._resume[section], key, load, what)

    def _load_from(self, saved: Any, key: Any, load: Callable[[Any], Any], what: str) -> Any:
        try:
            with sparse_layers.lent():
                return load(saved[key])
        except (IndexError, KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            if isinstance(error, ResumeError):
                raise
            message = " ".join(str(error).split())[:500]
            raise ResumeError(
                f"the checkpoint's {what} does not fit the one in the script: {message}; "
                "undo the change to the script, or start over with: headgate resume --from-scratch"
            ) from None
