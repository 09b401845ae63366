"""One PyTorch script under an engine: its step boundaries, what happens there, and what the engine
is told.

A step boundary is the next fetch from the loader that fed the last step of the optimizer. By then
the script has finished its iteration, and gradients that are still being accumulated are not cut
off. The end of an epoch is a boundary too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import torch
from torch import nn

from headgate.task import Channel, Gate, TaskEnvironment, at_end
from headgate.task.membership import JOIN_SECONDS, state_to_join
from headgate.task.session import StartPoint, TaskSession
from headgate.torch import batches, checkpoints, data_notes
from headgate.torch.agreed_requests import AgreedRequests
from headgate.torch.backend import Movement, TimedRound
from headgate.torch.boundary_state import BoundarySaver, BoundaryState
from headgate.torch.distributed import Worker
from headgate.torch.evaluation_time import EvaluationTime
from headgate.torch.iteration import Iteration
from headgate.torch.loaders import Loaders
from headgate.torch.main_optimizer import MainOptimizer
from headgate.torch.manual_epochs import ManualEpochs
from headgate.torch.measurements import Measurements, fetched, kept
from headgate.torch.meter import Meter
from headgate.torch.request_timing import RequestTiming
from headgate.torch.schedulers import steps_on_mean
from headgate.torch.script_place import ScriptPlace
from headgate.torch.spinning import Spinning
from headgate.torch.step_feed import StepFeed, StepSamples
from headgate.torch.training_state import TrainingState
from headgate.torch.unprepared import Unprepared, watch


class Session(TaskSession):
    """The state of a PyTorch script that runs under an engine."""

    meter: Meter

    def __init__(self, environment: TaskEnvironment, channel: Channel) -> None:
        super().__init__(environment, channel, fetched)
        member = (int(channel.welcome["index"]), int(self.plan["workers"])) if self.plan else (0, 1)
        self._trained = TrainingState(self._resume, self.note, self._in_epoch, member)
        self._gate = Gate(channel, self._trained.settle, self._trained.gpus)
        self._worker: Worker | None = None
        self._requests: Channel | AgreedRequests = channel
        if self.plan:
            self._worker = Worker(channel, self.plan, self._resume, self)
            self._requests, self._sync_points = self._worker.requests, self._worker.sync_points
        self._loaders = Loaders(self)
        self._measuring = Measurements(
            self._trained, environment.mode, lambda: bool(self._loaders.states), self.measured
        )
        self.meter, self._costs, self._sweep = (
            self._measuring.meter,
            self._measuring.costs,
            self._measuring.sweep,
        )
        if self._sweep is not None:
            self._loaders.source = self._sweep.source
        self._spinning = Spinning()
        self._evaluating = EvaluationTime(self._trained.models)
        watch(Unprepared(self._trained, self.note, lambda: self._worker))
        self._boundaries = BoundarySaver(channel, self._saver, self._trained.weights)
        self._to_arrive = self._resume is not None
        self._place = ScriptPlace(self._loaders, self._resume)
        self._feed = StepFeed(self._loaders)
        self._held_in = 0  # number of a pass
        self._counted = MainOptimizer(self._trained.optimizers)
        self._hooked = False
        self._own_counts = ManualEpochs(self._loaders, self.note, self._as_lowest)
        self._timing = RequestTiming(
            self._requests,
            channel,
            self._own_counts,
            lambda: self._epoch is not None,
            self._insist,
        )
        self._joined_later = False  # a worker waits to join that can only between two epochs
        self._thread = threading.get_ident()
        self.note(data_notes.repeats(self._resume, channel.welcome))
        at_end(self.close)

    # --- calls of the script ----------------------------------------------------------------------

    def prepare(
        self,
        model: nn.Module,
        optimizer: Any,
        loaders: Sequence[Any],
        scheduler: Any,
        loss_reduction: str | Callable[[Any], Any] = "mean",
        batch_dim: int = 0,
    ) -> list[Any]:
        """Register what the script trains with, and load a checkpoint into it. Returns the prepared
        loaders.
        """
        added = self._trained.add(model, optimizer, scheduler)
        if self._worker is not None:
            self._worker.prepare(model, optimizer, scheduler, loss_reduction, added)
            if scheduler is not None:
                steps_on_mean(scheduler, self.mean)
            self._loaders.sharing = self._worker.sharing
        if added.optimizer and hasattr(optimizer, "register_step_post_hook"):
            self._hooked = True
            self._counted.added(self._trained.has_trained)
            optimizer.register_step_pre_hook(self._optimizer_begins)
            optimizer.register_step_post_hook(self._optimizer_ended)
        known = len(self._loaders.states)
        prepared = [self._loaders.prepare(loader, batch_dim) for loader in loaders]
        if self._worker is not None:
            self._worker.share_random(self._loaders.generators)
        for loader in prepared[:1]:
            self._costs.trains_on(loader, batch_dim)
            workers = (
                1 if self._worker is None or not self._worker.in_step else self._worker.workers
            )
            self.note(
                data_notes.too_small(loader, workers, self._loaders.states[-1].shards is not None)
            )
        resume = self._resume
        if resume is not None and resume["position"] is not None:
            self._loaders.arm(
                resume["loaders"], resume["rng"] if resume["position"] else None, start=known
            )
        return prepared

    @property
    def on_servers(self) -> bool:
        """Whether sparse layers have their weights on parameter servers."""
        return self._worker is not None and self._worker.on_servers

    def combine(self, modules: Sequence[nn.Module], how: str) -> None:
        """Combine the buffers of these modules over the workers after each backward."""
        if self._worker is not None and self._worker.in_step:
            for module in modules:
                self._worker.buffers.combine_in(module, how)

    def keep(self, objects: Mapping[str, Any], across: str | None) -> None:
        """Save these objects with the checkpoints, and load them on a resume."""
        self._trained.keep(objects, across)

    def begin(self) -> StartPoint | None:
        start = super().begin()
        if self._phase > 0:
            self._counted.begins()
        if start is None:
            self._place.skip(self._phase)
        return start

    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        super().begin_epoch(epoch, epochs, start)
        self._own_counts.begin_epoch()
        self._loaders.enter_epoch()
        if start.place:
            self.rejoin()
        self._place.begin_epoch()

    def report(
        self, loss: Any, step: int | None, metrics: Mapping[str, Any], weight: Any = None
    ) -> None:
        averaging = None if self._worker is None else self._worker.averaging
        if weight is not None and averaging is not None:
            averaging.say_weight(weight)
        if not self._hooked:
            self._trained.stepped_unseen()
            self._step()
        self._progress.step, self._progress.said = self.steps, step
        if isinstance(loss, torch.Tensor):
            loss = kept(loss)
        part: Any = 1.0  # of the job's loss
        if self._worker is not None:
            metrics = {**self._worker.metrics, **metrics}
            if loss is not None:
                loss, part = self._worker.weights.of_report(loss)
        self._progress.report(loss, metrics, part)
        if not self._loaders.states and self._feed.stepped:
            self._begin_step()
        if not self._requests.pending or not self._feed.stepped:
            return
        anchor = self._feed.anchor()
        comes = anchor is not None and not self._boundaries.gives_up()  # at the next fetch
        if not self._loaders.states or (not comes and self._timing.patience_ends(anchor)):
            self.obey(None)

    def settings(self) -> Sequence[Mapping[str, Any]] | None:
        return None if self._worker is None else self._worker.unexchanged()

    def like(self, value: Any, number: float) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return torch.full_like(value.detach(), number) if floats else number

    def check_barrier(self, what: str) -> None:
        if self._worker is not None and self._loaders.assigning:
            self._worker.check_barrier(what)

    @property
    def is_main(self) -> bool:
        """Whether this worker writes files for all."""
        return self._worker is None or self._worker.is_main

    def close(self) -> None:
        """Send all pending messages. Called at the end of the interpreter."""
        self._boundaries.close()
        self._measuring.end()
        self._evaluating.end()
        super().close()

    def left(self) -> None:
        self._epoch = None
        self._place.left(self._phase)
        if self._worker is not None:
            self._worker.left()
        self._loaders.disarm()

    def leave(self, by_itself: bool) -> None:
        if self._worker is not None:
            self._worker.close(by_itself)

    # --- events of the optimizer and the loaders --------------------------------------------------

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if self._to_arrive:
            self.arrived(False)
        self._trained.begins(optimizer)
        averaging = None if self._worker is None else self._worker.averaging
        changed = None if averaging is None else averaging.optimizer_begins(optimizer, args, kwargs)
        if self.meter.sampled:
            if optimizer is self._trained.optimizers[-1]:
                self.meter.unhook()
            self.meter.mark("optimizer")
        return changed

    def _optimizer_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.meter.sampled:
            self.meter.mark("other")
        if self._worker is not None and self._worker.averaging is not None:
            self._worker.averaging.optimizer_ended(optimizer)
        self._trained.stepped(optimizer)
        if self._counted.is_step(optimizer, self._feed.stepped):
            self._step()
            if not self._loaders.states:
                self._begin_step()

    def _step(self) -> None:
        self.steps += 1
        self._evaluating.end()
        self._own_counts.stepped(self._feed.has_batch)
        anchor = self._feed.step()
        self._progress.within = (
            anchor.done / anchor.batches if anchor is not None and anchor.batches else None
        )
        if (samples := self._feed.take_samples()) is not None:
            self._progress.samples = (self._progress.samples or 0) + samples.of_all
            self.meter.samples = samples.own
        self.meter.complete()

    def _begin_step(self) -> None:
        self.meter.end()
        if self._sweep is not None and self._sweep.done:
            self.end()
        self._gate.boundary()
        self.meter.begin()

    def fetching(self, iteration: Iteration) -> None:
        if threading.get_ident() != self._thread:
            self.note("batches are fetched by a thread: a resume starts the epoch again")
            iteration.state.cannot_rejoin = "its batches are fetched by a thread"
            return
        if self._to_arrive:
            self._note_resumed_epoch()
        boundary = self._feed.is_boundary(iteration)
        if boundary or self.meter.completed or not self.meter.open:
            self._begin_step()
        if boundary:
            self._trained.weights.boundary()
            if self._deferred or (
                self._requests.pending and not self._timing.waits_for_epoch_end(self._feed.passes)
            ):
                self.obey(self._feed.anchor())
            self._feed.stepped = False
        elif self._requests.pending and self._timing.patience_ends(iteration):
            comes = self._feed.accumulates(iteration)  # a step of its batches
            if not comes or self._boundaries.gives_up():
                self.obey(None)
        if self._feed.is_other(iteration):
            self._evaluating.watch()
            self._boundaries.evaluates(self._feed.anchor() is not None)
        elif boundary and (iteration.is_at_last or self._boundaries.validates_within):
            self._hold(iteration, ends=iteration.is_at_last)
        if self.meter.sampled:
            self.meter.mark("input")

    def fetched(self, iteration: Iteration, batch: Any) -> Any:
        if self.meter.sampled:
            self.meter.mark("other")
        if self._costs.batch is None and iteration.state.index == 0:
            self._costs.saw_batch(batch)
        if self._sweep is not None:
            batch = self._sweep.part(batch)
        size = batches.size(batch, iteration.state.batch_dim)
        assigned = iteration.assigned
        if self._worker is not None:
            self._worker.fetched(iteration.state.index, assigned, batch)
        samples: StepSamples | None = None
        if size is not None:
            whole = None if assigned is None else assigned.whole
            samples = StepSamples(size if whole is None else whole, size)
        self._feed.fetched(iteration, samples)
        return batch

    def divided(self, iteration: Iteration, batch: Any, whole: int) -> None:
        if not iteration.done and self._worker is not None and self._worker.in_step:
            self.note(
                data_notes.divided(batch, whole, iteration.state.batch_dim, self._trained.models)
            )

    def exhausted(self, iteration: Iteration) -> None:
        if iteration.number in self._feed.passes:
            self._trained.weights.settle()
            if self._held_in != iteration.number or self._boundaries.validates_within:
                self._hold(iteration, ends=True)
        self.meter.end()
        self._evaluating.watch()
        self._feed.ended(iteration)

    def replays(self, iteration: Iteration, drawn: bool) -> None:
        self._own_counts.replays(drawn)

    def lost_some(self, iteration: Iteration) -> None:
        self.note(
            f"{iteration.state.cannot_rejoin}: of the batches that were read ahead when a worker "
            "left or joined, some samples are skipped"
        )

    # --- as a worker of several -------------------------------------------------------------------

    def place(self) -> tuple[int, int]:
        return self._phase, -1 if self._epoch is None else self._epoch

    @property
    def step(self) -> int:
        return self.steps + 1

    def sampling(self) -> bool:
        return self.meter.sampled

    def exchanged(self, exchange: TimedRound) -> None:
        self.meter.exchanged(exchange.begin, exchange.end, exchange.result)

    def moved(self, movement: Movement) -> None:
        self.meter.moved(movement)

    def _in_epoch(self) -> tuple[int, int] | None:
        return None if self._epoch is None else (self._phase, self._epoch)

    def _note_resumed_epoch(self) -> None:
        """Note a fetched batch. If it belongs to the epoch that starts again, the script has
        reached its place.
        """
        resume = self._resume or {}
        if resume["position"] is None and (self._epoch is not None or resume["phase"] is None):
            self.arrived(False)

    def arrived(self, at_place: bool = True) -> None:
        if self._to_arrive:
            self._to_arrive = False
            self._trained.arrive(at_place)

    # --- boundaries -------------------------------------------------------------------------------

    def _insist(self) -> None:
        if self._worker is not None:
            self._worker.insist()

    def _as_lowest(self, value: bool) -> bool:
        return value if self._worker is None else self._worker.as_lowest(value)

    def obey(self, at: Iteration | None = None) -> None:
        """Handle the engine's requests in the middle of an epoch.

        Args:
            at: The iteration whose position a checkpoint records; None: no exact position is known.
        """
        if at is None and self._boundaries.waits:
            if self._boundaries.gives_up():
                self._boundaries.tell_unsaved()
                self.end()
            return
        super().obey(at)
        if at is not None and self._channel.take_hold() and self.save("join", at):
            self._channel.hold(JOIN_SECONDS)

    def saves_inside(self, at: Iteration | None) -> bool:
        unfed = self._own_counts.unfed
        known = at is not None or self._epoch is None or (bool(self._loaders.states) and not unfed)
        if not known:
            cause = "batches come from no prepared loader" if unfed else "no loader was prepared"
            self.note(f"{cause}: a checkpoint that is asked for is saved at the end of the epoch")
        return known

    def set_threads(self, threads: int) -> None:
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        super().set_threads(threads)
        self._spinning.allow(self._channel.spin)

    def rejoin(self) -> None:
        if self._place.rejoin():
            self.arrived(True)
        if self._worker is not None:
            self._worker.reseed()

    def asked(self) -> str:
        joins, self._joined_later = self._channel.take_hold() or self._joined_later, False
        requested = super().asked()
        return "join" if joins else requested

    def end_epoch(self, epoch: int) -> str:
        self.meter.end()
        self._own_counts.end_epoch(bool(self._resume and self._resume["position"]))
        self._loaders.disarm()
        self._feed.stepped = False
        why = super().end_epoch(epoch)
        while why == "join":
            self._channel.hold(JOIN_SECONDS)
            why = "join" if self._channel.take_hold() and self.save("join", after=epoch) else ""
        return why

    # --- checkpoints ------------------------------------------------------------------------------

    def join(self) -> str:
        return state_to_join(self._channel) if self.plan else ""

    def read(self, path: str) -> tuple[None, dict[str, Any]]:
        return None, checkpoints.read(path)

    def write(self, folder: Path, place: Mapping[str, Any]) -> tuple[Path, int]:
        return checkpoints.write(folder, self.steps, self._contents(place))

    def _contents(self, place: Mapping[str, Any]) -> dict[str, Any]:
        in_step = self._worker is None or self._worker.in_step
        return {**self._trained.state_dicts(in_step), **place}

    def state_bytes(self) -> int:
        return self._trained.model_bytes()

    def due(self) -> bool:
        due = super().due()
        return self._as_lowest(due) if self._trained.kept else due

    def defers(self, epoch: int) -> bool:
        epochs, states = self._progress.epochs, self._loaders.states
        goes_on = self._worker is None and epochs is not None and epoch + 1 < epochs
        can_rejoin = bool(states) and not any(state.cannot_rejoin for state in states)
        return goes_on and can_rejoin and self._trained.weights.changed

    def save(self, why: str, at: Any = None, after: int | None = None) -> bool:
        saves = not (self._ended or self.profiling or why == "join")
        if saves and self._worker is not None and (at is not None or after is not None):
            self._trained.compare(self._worker.compare, self._worker.saves)
        saves = saves and at is None and (self._worker is None or self._worker.saves)
        held = (
            self._boundaries.in_place_of(after, self._progress.epochs, self.note) if saves else None
        )
        if held is None:
            with self._boundaries.saves():
                saved = super().save(why, at, after)
            if saved:
                self._boundaries.saved()
            return saved
        self.flush()
        return self._boundaries.save(why, held, self.note)

    def _hold(self, iteration: Iteration, ends: bool) -> None:
        """Copy the state at this boundary. `ends`: it is the end of a pass."""
        if self.profiling or self._feed.anchor() is not iteration:
            return
        if self._worker is not None and self._trained.kept:
            if not ends:
                return
            self._trained.compare(self._worker.compare, self._worker.saves)
        self._held_in = iteration.number
        if not self._boundaries.due or (self._worker is not None and not self._worker.copies):
            return
        notes: list[str] = []
        place = self.placed(self._position(iteration, None, notes.append))
        self._boundaries.hold(BoundaryState(self.steps, place, self._contents(place), tuple(notes)))

    def position(self, why: str, at: Iteration | None, after: int | None) -> dict[str, Any] | None:
        joins, worker = why == "join", self._worker
        if not self._trained.models or not (worker is None or worker.saves or joins):
            return None
        more = {} if worker is None else worker.before_save()
        position = {**self._position(at, after, self.note), **more}
        if joins and position["position"] is None:
            self._joined_later = position["epoch"] is not None
            if not self._joined_later:
                error = "no worker can join a script that does not use headgate.torch.epochs"
                self._channel.send({"type": "checkpoint_failed", "error": error, "why": why})
            return None
        return position

    def _position(
        self,
        at: Iteration | None,
        after: int | None,
        note: Callable[[str], None],
    ) -> dict[str, Any]:
        if after is None and self._epoch is None and self._phase >= 0:
            after = (self._progress.epochs or 0) - 1  # the script is past a loop
        place = self._place.recorded(self._epoch, at, after, note)
        return {**place, "own_states": self._trained.has_own}

    # --- messages to the engine -------------------------------------------------------------------

    def profile(self) -> dict[str, Any]:
        return self._measuring.profile()
