"""One worker of a job with several: shares data, gradients and requests with the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol

import torch
from torch import nn

from headgate.task import Channel, Stop
from headgate.task.script_position import CURE, difference, place
from headgate.task.sync_points import SyncPoints
from headgate.torch import gradient_hooks, loss_mean, rng
from headgate.torch.agreed_requests import AgreedRequests
from headgate.torch.backend import REMOTE, Asynchronous, Backend, Observer, TimedRound, WorkerGroup
from headgate.torch.buffers import Buffers, check_layers
from headgate.torch.closures import Arguments, averaged
from headgate.torch.control_vector import ReduceError
from headgate.torch.extra_state import MEAN, WORKER, KeptObject, WorkerStates, compared
from headgate.torch.gradient_weights import GradientWeights, Weight
from headgate.torch.gradients import check_averaged, check_same
from headgate.torch.reduce import Reducer
from headgate.torch.sample_comparison import warner
from headgate.torch.sharded_loaders import Sharing
from headgate.torch.sharding import Assigned, Assigner, Slices
from headgate.torch.straggler_wait import StragglerWait
from headgate.torch.training_state import Added
from headgate.torch.worker_position import WorkerPosition, sizes

_MOST_PARTS = 1024
"""Most rounds that a reported loss covers. A script may report no loss, or one per epoch."""


class Owner(Observer, Protocol):
    """The session that a worker belongs to."""

    def place(self) -> tuple[int, int]:
        """The current phase and epoch; -1 outside of a loop over epochs."""

    def exchanged(self, exchange: TimedRound) -> None: ...

    def note(self, text: str) -> None:
        """Tell the user something."""


class Worker:
    """A worker of a plan with several tasks.

    Args:
        channel: The channel to the engine.
        plan: The plan, with the fields of `headgate.Plan`.
        resume: The loaded checkpoint; None on a fresh start.
        owner: Knows the script's position, and takes the rounds.

    Attributes:
        requests: The engine's requests, to be used in place of the channel.
        sharing: How loaders share their data; in force once a model was prepared.
        index: This worker's index in the plan.
        workers: Number of workers in the plan.
        in_step: Whether the workers step together.
        sync_points: The barriers with the other workers.
        buffers: The buffers of the models.
    """

    def __init__(
        self,
        channel: Channel,
        plan: Mapping[str, Any],
        resume: Mapping[str, Any] | None,
        owner: Owner,
    ) -> None:
        self._channel = channel
        self._plan = plan
        self._resume = resume
        self._joined = resume if channel.welcome.get("joins") else None
        self._owner = owner
        self._link: WorkerGroup | None = None
        self._reducer: Reducer | None = None
        self._slices: Slices | None = None
        self._models: list[nn.Module] = []
        self._iterated = False
        self._rounds: dict[int, int] = {}
        self._fed: dict[int, Assigned | None] = {}
        self._weighing = GradientWeights(
            self._named, self._meet_to_weigh, self._take_part, owner.note, warner(self, channel)
        )
        self._batch: tuple[int, Assigned] | None = None
        self._weight: Weight | None = None
        self._parts: deque[Any] = deque(maxlen=_MOST_PARTS)  # of the rounds since the latest report
        self._value_factors: deque[float] = deque(maxlen=_MOST_PARTS)  # of the same rounds
        self._agreed = AgreedRequests(channel)
        self._waits = StragglerWait(channel.send)
        self.index = int(channel.welcome["index"])
        self.workers = int(plan["workers"])
        self.in_step = bool(plan["synchronous"])
        self.buffers = Buffers(self._models)
        self._position = WorkerPosition(owner.place, lambda: owner.step, self.buffers)
        self._sizes: dict[str, float] = {}
        self.sync_points = SyncPoints(channel, self._standing)
        self.sharing: Sharing | None = None

    @property
    def requests(self) -> AgreedRequests | Channel:
        return self._agreed if self.in_step else self._channel

    @property
    def saves(self) -> bool:
        """Whether this is the worker that saves checkpoints."""
        return self._link is None or self._link.lowest

    @property
    def is_main(self) -> bool:
        """Whether this is the worker that writes files for all."""
        return self.index == 0 if self._link is None else self._link.lowest

    @property
    def on_servers(self) -> bool:
        """Whether the plan has parameter servers."""
        return bool(self._plan["strategy"] == "ps")

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics to send in addition to the script's own."""
        return {"staleness": self._link.staleness} if isinstance(self._link, Asynchronous) else {}

    def insist(self) -> None:
        """Handle the engine's requests alone, because no step comes."""
        self._agreed.insist()

    def prepare(
        self,
        model: nn.Module,
        optimizer: Any,
        scheduler: Any,
        loss_reduction: str | Callable[[Any], Any],
        added: Added,
    ) -> None:
        """Start from the same values as the other workers, and share gradients from now on.

        Raises:
            RuntimeError: The script shares gradients itself.
            ValueError: An earlier model has another `loss_reduction`.
        """
        if isinstance(model, nn.parallel.DistributedDataParallel):
            raise RuntimeError(
                "prepare(model): found a DistributedDataParallel; expected the model inside of it"
            )
        summed = loss_reduction == "sum"
        link = self._link
        if link is None:
            link = self._tie(_device_of(model))
        elif self._reducer is not None and self._reducer.summed != summed:
            raise ValueError(
                f"prepare(loss_reduction={loss_reduction!r}): a model before was prepared "
                "with another"
            )
        if added.model:
            self._models.append(model)
        if callable(loss_reduction):
            self._weighing.by_batch = loss_reduction
        if self._plan["workers"] > 1:
            check_layers(model)
        if self.on_servers:
            from headgate.torch.ps.tables.lazy_tensor import defer

            defer(model)
        if not added.loaded:
            tensors = [t for t in (*model.parameters(), *model.buffers()) if not hasattr(t, REMOTE)]
            link.broadcast(list({id(tensor): tensor for tensor in tensors}.values()))
        if self._reducer is not None:
            self._reducer.summed = summed
            self._reducer.add(model)
        trains = added.model or added.optimizer
        if isinstance(link, Asynchronous):
            if trains:
                link.adopt(model, optimizer)
            if added.scheduler:
                link.follow(scheduler)
        elif trains and isinstance(link, Backend) and self._reducer is not None:
            steps = self._joined["tables"] if self._joined else {}
            link.adopt_tables(model, optimizer, self._reducer.table_arrives, steps)

    def share_random(self, generators: Sequence[torch.Generator]) -> None:
        """From now on, draw data with the same random stream as the other workers, and everything
        else with a stream of this worker.

        Args:
            generators: Generators given to loaders.
        """
        if self.sharing is None or self._link is None or self._iterated:
            return
        if self._resume is not None:
            state = self._resume["rng"]
        else:
            state = self._link.broadcast_value(rng.capture(generators, devices=False))
        for generator, saved in zip(generators, state["generators"]):
            generator.set_state(saved)
        self.sharing.stream.move(state)
        self.reseed()

    def reseed(self) -> None:
        """Give dropout and similar operations a random stream that differs from the other workers',
        and from that before a resume.
        """
        index = int(self._channel.welcome["index"])
        steps = 0 if self._resume is None else int(self._resume["step"])
        if index or steps:
            torch.manual_seed((torch.initial_seed() + index + 65537 * steps) % 2**63)

    def fetched(self, loader: int, assigned: Assigned | None, batch: Any) -> None:
        """Note a batch of a loader."""
        self._iterated = True
        if assigned is not None or self._divides():  # not a validation's
            self._fed[loader] = assigned
            self._weighing.fetched(loader, batch, 0 if assigned is None else assigned.taken)
        if assigned is not None and self.sharing is not None:
            self.sharing.assigner.given(loader, assigned.number)

    def say_weight(self, value: Any) -> None:
        """Note the number that the loss of the batch is a mean over.

        Raises:
            ValueError: It is no valid weight, or comes too late.
        """
        if self._reducer is not None and not self._reducer.summed:
            self._weighing.say(value)
            self._reducer.weight_said(bool(self._fed) or not self._iterated)

    def weighted_report(self, loss: Any) -> tuple[Any, Any]:
        """A reported loss, and its weight among those of all workers, 1 on average.

        The weight is that of the gradients in the rounds since the last report. Without a round,
        all workers weigh the same.
        """
        if not self._parts:
            return loss, 1.0
        weight = sum(self._parts) / len(self._parts)
        factor = sum(self._value_factors) / len(self._value_factors)
        self._parts.clear()
        self._value_factors.clear()
        if factor != 1.0 and isinstance(loss, (Real, torch.Tensor)):
            loss = loss * factor
        return loss, weight

    @property
    def copies(self) -> bool:
        """Whether this worker saves checkpoints and holds everything in them."""
        held_here = not any(
            hasattr(p, REMOTE) for model in self._models for p in model.parameters()
        )
        return self.in_step and self.saves and held_here

    def as_lowest(self, value: bool) -> bool:
        """The value of the worker that saves. All workers call this at the same place, if they step
        together.
        """
        together = isinstance(self._link, Backend) and self._agreed.together
        return (
            bool(self._link.broadcast_value(value))
            if together and self._link is not None
            else value
        )

    def compare(self, kept: Mapping[str, KeptObject]) -> WorkerStates:
        """Compare the states of kept objects between the workers. All workers call this at the same
        place.
        """
        if isinstance(self._link, Backend) and self._agreed.together:
            return compared(kept, self._link.gather)
        own = [name for name, entry in kept.items() if entry.across in (WORKER, MEAN)]
        notes = [
            f"{name} is kept across the workers, which cannot be brought together here: the "
            "checkpoint holds that of the first worker"
            for name in own
        ]
        return WorkerStates(notes=notes)

    def check_barrier(self, what: str) -> None:
        """Check a call that all workers have to make, within a pass over training data.

        Raises:
            RuntimeError: Other workers do not come to this call.
        """
        if not self.in_step:
            raise RuntimeError(
                f"{what} in a pass over training data, under a plan whose workers do not wait for "
                "each other: each takes different batches, and not as many; call it between "
                "passes, or use a synchronous plan"
            )

    def optimizer_begins(
        self, optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Arguments | None:
        """Wait for the gradients, at the beginning of an optimizer's step.

        Args:
            optimizer: The optimizer.
            args: Positional arguments of its step.
            kwargs: Keyword arguments of its step.

        Returns:
            Other arguments for the step; None: unchanged.

        Raises:
            ReduceError: The optimizer steps parameters of no prepared model, or gradients that no
                backward made: these are this worker's alone.
        """
        if self._reducer is None or not isinstance(self._link, Backend):
            return None
        self._reducer.settle()
        self._weighing.settle()
        check_averaged(optimizer, self._reducer.averages)
        self._position.steps(optimizer)
        if self.workers == 1:
            return None
        replaced = averaged(args, kwargs, self._mean_loss)
        is_new = self._reducer.rounds != self._rounds.get(id(optimizer), 0)
        if not (is_new or replaced):
            check_same(optimizer, self._link.add_up)
        return replaced

    def _mean_loss(self, loss: float) -> float:
        """The loss of the whole batch, from this worker's part. All workers call this at the same
        place.
        """
        assert self._reducer is not None and isinstance(self._link, Backend)
        part = float(self._reducer.part_of_loss) * self._weighing.value_factor
        return float(
            self._link.add_up(torch.tensor([loss * part if part else 0.0], dtype=torch.float64))
        )

    def unexchanged(self) -> list[dict[str, float]] | None:
        """What workers compare at the end of an epoch if no gradients were exchanged yet. None if
        some were.
        """
        if not self.in_step or self._reducer is None or self.workers == 1 or self._reducer.rounds:
            return None
        return [sizes(self._models)]

    def stray_begins(self, optimizer: Any) -> None:
        """Check a step of an optimizer that was not given to `prepare`.

        Raises:
            ReduceError: It trains parameters of no prepared model. Or workers do not wait for each
                other, and the servers do not have this optimizer.
        """
        if self._reducer is not None:
            self._reducer.settle()
            self._weighing.settle()
            check_averaged(optimizer, self._reducer.averages, tensors=False)
        elif self._link is not None and not self.in_step:
            raise ReduceError(
                f"the optimizer {type(optimizer).__name__} was not given to prepare: under a plan "
                "whose workers do not wait for each other, servers take the steps, and this "
                "optimizer would only train this worker's copy. Give it to prepare, or "
                "use a synchronous plan"
            )

    def optimizer_ended(self, optimizer: Any) -> None:
        """Note the end of an optimizer's step."""
        if self._reducer is None:
            return
        if self._reducer.rounds == self._rounds.get(id(optimizer), 0):
            self._owner.note(
                "the optimizer took a step without a backward: its gradients were not averaged"
            )
        self._rounds[id(optimizer)] = self._reducer.rounds

    def before_save(self) -> dict[str, Any]:
        """The worker's part of a checkpoint, for a resume or for joining workers."""
        if isinstance(self._link, Asynchronous):
            ahead = self._link.before_save()
            if ahead:
                self._owner.note(
                    "batches past the position of the checkpoint that is saved now which were "
                    f"done already: {ahead}; a resume from it trains on them again"
                )
            return {"ahead": ahead}
        if isinstance(self._link, Backend) and self._reducer is not None:
            position = {"rounds": self._reducer.rounds, "used": self._position.used}
            late = {"weighed_late": self._reducer.said.waits, "weighing": self._weighing.state()}
            return {**self._link.before_save(), **position, **late}
        return {}

    def left(self) -> None:
        """Note that the script has left a loop over epochs."""
        if self.in_step:
            self.sync_points.left()
            self._sizes = sizes(self._models)

    def close(self, by_itself: bool) -> None:
        """Note the end of the script.

        Args:
            by_itself: It was not asked to end.
        """
        end = self._position.end(self._passed, self._sizes) if by_itself and self.in_step else None
        self.sync_points.close(end)
        self._waits.close()
        if self._link is not None:
            self._link.close()

    # --- connecting -------------------------------------------------------------------------------

    def _connected(self, device: torch.device) -> WorkerGroup:
        if self._plan["strategy"] == "allreduce":
            from headgate.torch.allreduce import AllReduce

            return AllReduce(self._channel, device)
        from headgate.torch import ps

        if not self.in_step:
            return ps.asynchronous_backend(self._channel)
        return ps.backend(self._channel, self._joined)

    def _tie(self, device: torch.device) -> WorkerGroup:
        link = self._link = self._connected(device)
        link.observer = self._owner
        link.look = self._look
        assigner: Assigner
        if isinstance(link, Backend):
            assigner = self._slices = self._slices_of(link)
            flags, agree = self._agreed.flags, self._agreed.agree
            self._reducer = Reducer(
                link, self, self._mark, flags, agree, self._differs, self._exchanged
            )
            self._weighing.start()
            loss_mean.watch(self._weighing.sees, self._backward_failed)
            gradient_hooks.watch(self._reducer.averages, self._reducer.sees_hook)
            if self._joined is not None:
                self._reducer.rounds = self._joined["rounds"]
                self._reducer.said.waits = self._joined["weighed_late"]
                self._position.used = self._joined["used"]
                self._weighing.go_on(self._joined["weighing"])
        elif isinstance(link, Asynchronous):
            assigner = link.assigner
        stream = rng.Stream(rng.capture((), devices=False))
        self.sharing = Sharing(assigner, stream, self._divides, self._owner.place, self._smallest)
        return link

    def _slices_of(self, link: Backend) -> Slices:
        batch = self._plan.get("batch_per_worker")
        return Slices(
            link.index,
            link.members,
            batch if isinstance(batch, (list, tuple)) else None,
            self._smallest,
        )

    def _divides(self) -> bool:
        return torch.is_grad_enabled() and any(model.training for model in self._models)

    def _smallest(self) -> int:
        normalised = any(
            isinstance(m, nn.modules.batchnorm._BatchNorm)
            for model in self._models
            for m in model.modules()
        )
        return 2 if normalised else 1

    # --- rounds -----------------------------------------------------------------------------------

    def weigh(self) -> Weight:
        """The weight of the gradients of the running backward, by the first loader that fed it."""
        assert isinstance(self._link, Backend) and self._slices is not None
        self._link.traced = self._owner.sampling()
        loader: int | None = None
        if self._fed:
            loader = min(self._fed)
            assigned = self._fed[loader]
            self._fed = {}
            self._batch = self._weight = None
            if assigned is not None:
                self._batch = (loader, assigned)
                self._weight = Weight(float(assigned.taken), 1.0 if assigned.taken else 0.0)
        weight = self._weight
        # all workers train on the same data: a whole batch, or data that the script reads itself
        if weight is None:
            if not self._iterated:
                self._owner.note("no loader was prepared: every worker trains on the same samples")
            counts = self._link.index in self._slices.members
            weight = Weight(1.0, 1.0 / len(self._slices.members)) if counts else Weight(0.0, 0.0)
        if self._reducer is not None and self._reducer.summed:
            return weight
        return self._weighing.weigh(weight, loader, None if self._batch is None else self._batch[1])

    def head(self) -> Sequence[float]:
        """The numbers about the weight at the head of a round."""
        return self._weighing.numbers()

    @property
    def asks(self) -> bool:
        """Whether this worker needs the summed head of the round."""
        return self._weighing.asks and not (self._reducer is not None and self._reducer.summed)

    def agree(self, sums: Sequence[float]) -> Weight:
        """The weight, given the summed head of the round."""
        return self._weighing.agree(sums)

    def check(self, sums: Sequence[float]) -> None:
        """Check the summed head of a round that this worker did not ask for."""
        if self._reducer is not None and not self._reducer.summed:
            self._weighing.check(sums)

    def _take_part(self) -> None:
        if self._reducer is not None and not self._reducer.summed:
            self._reducer.take_part()

    def _backward_failed(self, error: BaseException) -> None:
        if self._reducer is not None and not self.sync_points.failure:
            # ends the worker, if the script continues to its end
            self.sync_points.failure = self._reducer.failed(error)

    def _named(self, parameter: torch.Tensor) -> str:
        for model in self._models:
            for name, candidate in model.named_parameters():
                if candidate is parameter:
                    return name
        return f"a parameter of shape {tuple(parameter.shape)}"

    def _meet_to_weigh(self, value: Any) -> Mapping[int, Any] | None:
        return self.sync_points.exchange("weighing a loss", value)

    # --- positions of the others ------------------------------------------------------------------

    @property
    def _passed(self) -> int:
        """Number of finished rounds."""
        return 0 if self._reducer is None else self._reducer.rounds

    def _standing(self) -> Mapping[str, Any]:
        """The position of this worker between two rounds, without fields that differ if workers do
        not step together.
        """
        position = self._position.now(self._passed)
        return (
            position
            if self.in_step
            else {name: position[name] for name in ("rounds", "phase", "epoch")}
        )

    def _mark(self) -> int:
        parameter = None if self._reducer is None else self._reducer.one_of_all
        return self._position.exchanges(self._batch, self._passed, parameter)

    def _look(self) -> None:
        self.sync_points.look({**self._standing(), "rounds": self._passed + 1})

    def _differs(self, before: int, alone: bool) -> None:
        """Find out what differs, after the marks of a round differed.

        Raises:
            WorkersDiffer: Something relevant differs.
            Stop: The job ends meanwhile.
        """
        position = self._position.exchanged(before)
        if alone:
            self.sync_points.fail(
                f"worker-{self.index} does not do what the other workers do: it is "
                f"{place(position)}; {CURE}"
            )
        given = self.sync_points.barrier(position)
        if given is None:
            raise Stop
        text = difference({index: entry for index, (entry, _) in given.items()})
        if text:
            self.sync_points.fail(text)

    def _exchanged(self, exchange: TimedRound) -> None:
        if self._channel.positions:  # the round may have been ended without one that has left
            self.sync_points.look(self._standing())
        if isinstance(self._link, Backend):
            self.buffers.combine(
                self._link.add_up, 0.0 if self._weight is None else self._weight.samples
            )
        if self._slices is not None:
            self._slices.members = exchange.result.members
            if (
                self._agreed.leaving
                and self._link is not None
                and self._link.index not in self._slices.members
            ):
                self._agreed.leave()
        if self._reducer is not None:
            part = 0.0 if self._weighing.lacks else self._reducer.part
            self._parts.append(part * len(exchange.result.members))
            self._value_factors.append(self._weighing.value_factor)
        self._weighing.release()
        if exchange.result.changed:
            self._waits.skip(exchange.end)
        else:
            self._waits.add(exchange.begin, exchange.end, self._owner.step, exchange.result.waited)
        self._owner.exchanged(exchange)


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
