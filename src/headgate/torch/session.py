"""One training script under an engine: where its steps end, what is done there, and what is told to the engine.

A step boundary is the next fetch from the loader that fed the last step of the optimizer. By then all that the script
does in an iteration is done, and gradients that are still being accumulated are not cut. The end of an epoch is a
boundary too.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import torch
from torch import nn

from headgate.task import Channel, Gate, TaskEnvironment, at_end
from headgate.task.session import StartPoint, TaskSession
from headgate.torch import batches, checkpoints
from headgate.torch.agreed_requests import AgreedRequests
from headgate.torch.backend import Movement, TimedRound
from headgate.torch.distributed import JOIN_SECONDS, Worker, state_to_join
from headgate.torch.evaluating import Evaluating
from headgate.torch.loaders import Iteration, Loaders
from headgate.torch.measuring import Measuring, fetched
from headgate.torch.meter import Meter
from headgate.torch.spinning import Spinning
from headgate.torch.strays import Strays, watch
from headgate.torch.trained import Trained

PATIENCE_SECONDS = 3.0
"""How long an order waits for a step boundary before any report or fetch has to do, at the cost of the position."""
NEAR_SECONDS = 20.0
"""How long it waits for the end of an epoch that is about to come, where a resume goes on at an exact place."""
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Session(TaskSession):
    """The state of a PyTorch script that runs under an engine."""

    meter: Meter

    def __init__(self, environment: TaskEnvironment, channel: Channel) -> None:
        super().__init__(environment, channel, fetched)
        self._trained = Trained(self._resume)
        self._gate = Gate(channel, self._trained.settle, self._trained.gpus)
        self._worker: Worker | None = None
        self._requests: Channel | AgreedRequests = channel
        if self.plan:
            self._worker = Worker(channel, self.plan, self._resume, self)
            self._requests, self._meetings = self._worker.requests, self._worker.meetings
        self._loaders = Loaders(self)
        self._measuring = Measuring(self._trained, environment.mode, lambda: bool(self._loaders.states), self.measured)
        self.meter, self._costs, self._sweep = self._measuring.meter, self._measuring.costs, self._measuring.sweep
        if self._sweep is not None:
            self._loaders.source = self._sweep.source
        self._spinning = Spinning()
        self._evaluating = Evaluating(self._trained.models)
        watch(Strays(self._trained, self.note, self._stray_begins))
        self._stepped = False
        self._hooked = False
        self._fed: set[int] = set()
        self._feeding: set[int] = set()
        self._samples: dict[int, tuple[int, int]] = {}
        self._epoch_began = 0.0
        self._epoch_rng: dict[str, Any] | None = None
        self._joined_later = False  # a worker waits to join that can only between two epochs
        self._thread = threading.get_ident()
        self._tell_of_repeats()
        at_end(self.close)

    # --- what the script calls ---------------------------------------------------------------------------------------

    def prepare(
        self,
        model: nn.Module,
        optimizer: Any,
        loaders: Sequence[Any],
        scheduler: Any,
        loss_reduction: str | Callable[[Any], Any] = "mean",
        batch_dim: int = 0,
    ) -> list[Any]:
        """Register what the script trains with and load a checkpoint into it; the loaders, prepared."""
        self._trained.add(model, optimizer, scheduler)
        if self._worker is not None:
            self._worker.prepare(model, optimizer, scheduler, loss_reduction)
            if scheduler is not None:
                steps_on_mean(scheduler, self.mean)
            self._loaders.sharing = self._worker.sharing
        if hasattr(optimizer, "register_step_post_hook"):
            self._hooked = True
            optimizer.register_step_pre_hook(self._optimizer_begins)
            optimizer.register_step_post_hook(self._optimizer_ended)
        known = len(self._loaders.states)
        prepared = [self._loaders.prepare(loader, batch_dim) for loader in loaders]
        if self._worker is not None:
            self._worker.share_random(self._loaders.generators)
        for loader in prepared[:1]:
            self._costs.trains_on(loader, batch_dim)
            self._note_too_small(loader)
        resume = self._resume
        if resume is not None and resume["position"] is not None:
            between = resume["position"] == 0
            self._loaders.arm(resume["loaders"], None if between else resume["rng"], inside=False, start=known)
        return prepared

    def _note_too_small(self, loader: Any) -> None:
        """Say, before the first batch, that some workers get nothing of any."""
        workers = 1 if self._worker is None or not self._worker.in_step else self._worker.workers
        batch = getattr(loader, "batch_size", None)
        if isinstance(batch, int) and batch < workers and self._loaders.states[-1].shards is not None:
            self.note(
                f"the training loader's batches have batch_size={batch}, and are divided between {workers} workers: "
                f"{workers - batch} of them get nothing. If its items are ready-made batches, say batch_size=None, and "
                "each is divided; otherwise make batches larger, or workers fewer"
            )

    @property
    def on_servers(self) -> bool:
        """Whether sparse layers have their weights on parameter servers."""
        return self._worker is not None and self._worker.on_servers

    def keep(self, objects: Mapping[str, Any], across: str | None) -> None:
        """Save and load these with the checkpoints as well."""
        self._trained.keep(objects, across)

    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        super().begin_epoch(epoch, epochs, start)
        self._epoch_began = time.monotonic()
        self._loaders.enter_epoch()
        if start.place:
            self.rejoin()
        self._epoch_rng = self._loaders.capture_rng()

    def report(self, loss: Any, step: int | None, metrics: Mapping[str, Any], weight: Any = None) -> None:
        if weight is not None and self._worker is not None:
            self._worker.say_weight(weight)
        if not self._hooked:
            self._step()
        self._progress.step, self._progress.said = self.steps, step
        if isinstance(loss, torch.Tensor):
            loss = _kept(loss)
        part: Any = 1.0  # of the job's loss
        if self._worker is not None:
            metrics = {**self._worker.metrics, **metrics}
            if loss is not None:
                part = self._worker.weight_of_report()
        self._progress.report(loss, metrics, part)
        if not self._loaders.states and self._stepped:
            self._begin_step()
        if not self._requests.pending or not self._stepped:
            return
        if not self._loaders.states or self._patience_ends(self._loaders.anchor(self._feeding)):
            self.obey(None)

    def like(self, value: Any, number: float) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return torch.full_like(value.detach(), number) if floats else number

    def check_meeting(self, what: str) -> None:
        """
        Raises:
            RuntimeError: Other workers do not come there.
        """
        if self._worker is not None and not self._worker.in_step and self._loaders.dealing:
            raise RuntimeError(
                f"{what} in a pass over training data, under a plan whose workers do not wait for each other: each "
                "takes other batches, and as many as it gets to; call it between passes, or use a synchronous plan"
            )

    @property
    def is_main(self) -> bool:
        """Whether this worker is the one that writes files."""
        return self._worker is None or self._worker.is_main

    def close(self) -> None:
        """Send what is left; called when the interpreter ends."""
        self._measuring.end()
        self._evaluating.end()
        super().close()

    def left(self) -> None:
        self._epoch = None
        if self._worker is not None:
            self._worker.left()
        self._loaders.disarm()

    def leave(self, by_itself: bool) -> None:
        if self._worker is not None:
            self._worker.close(by_itself)

    # --- what the optimizer and the loaders tell ---------------------------------------------------------------------

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.optimizer_begins(optimizer)
        if self.meter.sampled:
            if optimizer is self._trained.optimizers[-1]:
                self.meter.unhook()
            self.meter.mark("optimizer")

    def _stray_begins(self, optimizer: Any) -> None:
        if self._worker is not None:
            self._worker.stray_begins(optimizer)

    def _optimizer_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.meter.sampled:
            self.meter.mark("other")
        if self._worker is not None:
            self._worker.optimizer_ended(optimizer)
        if optimizer is self._trained.optimizers[0]:
            self._step()
            if not self._loaders.states:
                self._begin_step()

    def _step(self) -> None:
        self.steps += 1
        self._stepped = True
        self._evaluating.end()
        self._feeding, self._fed = self._fed, set()
        anchor = self._loaders.anchor(self._feeding)
        self._progress.within = anchor.done / anchor.batches if anchor is not None and anchor.batches else None
        if self._samples:
            whole, here = self._samples[min(self._samples)]
            self._progress.samples = (self._progress.samples or 0) + whole
            self.meter.samples = here
            self._samples = {}
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
        boundary = self._stepped and iteration.number in self._feeding
        if boundary or self.meter.completed or not self.meter.open:
            self._begin_step()
        if boundary:
            if self._requests.pending:
                self.obey(self._loaders.anchor(self._feeding))
            self._stepped = False
        elif self._requests.pending and self._patience_ends(iteration):
            self.obey(None)
        if self._feeding and iteration.number not in self._feeding:
            self._evaluating.watch()
        if self.meter.sampled:
            self.meter.mark("input")

    def fetched(self, iteration: Iteration, batch: Any) -> Any:
        if self.meter.sampled:
            self.meter.mark("other")
        if self._costs.batch is None and iteration.state.index == 0:
            self._costs.saw_batch(batch)
        if self._sweep is not None:
            batch = self._sweep.part(batch)
        here = batches.size(batch, iteration.state.batch_dim)
        index = iteration.state.index
        dealt = iteration.dealt
        if self._worker is not None:
            self._worker.fetched(index, dealt, batch)
        if here is not None:
            whole = here if dealt is None or dealt.whole is None else dealt.whole
            before = self._samples.get(index, (0, 0))
            self._samples[index] = before[0] + whole, before[1] + here
        self._fed.add(iteration.number)
        return batch

    def divided(self, iteration: Iteration, batch: Any, whole: int) -> None:
        dim = iteration.state.batch_dim
        if iteration.done or self._worker is None or not self._worker.in_step:
            return
        shapes = [(tuple(t.shape), batches.is_cut(t, whole, dim)) for t in batches.tensors(batch)]
        cut = ", ".join(str(shape) for shape, is_cut in shapes if is_cut)
        kept = ", ".join(str(shape) for shape, is_cut in shapes if not is_cut)
        text = f"each batch is read whole by every worker, which takes its part along dimension {dim} of {cut}"
        text += f"; {kept} it takes whole" if kept else ""
        recurrent = [
            m for model in self._trained.models for m in model.modules() if getattr(m, "batch_first", 1) is False
        ]
        if recurrent and not dim:
            kind = type(recurrent[0]).__name__
            text += f". The model has {kind}(batch_first=False), which takes samples along dimension 1"
        self.note(f"{text}. Where samples lie along another, say prepare(..., batch_dim=N)")

    def exhausted(self, iteration: Iteration) -> None:
        self.meter.end()
        self._evaluating.watch()
        self._samples.pop(iteration.state.index, None)

    def lost_some(self, iteration: Iteration) -> None:
        self.note(
            f"{iteration.state.cannot_rejoin}: of the batches that were read ahead when a worker left or joined, "
            "some samples are skipped"
        )

    # --- what a worker of several asks and tells ---------------------------------------------------------------------

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

    # --- boundaries --------------------------------------------------------------------------------------------------

    def _patience_ends(self, iteration: Iteration | None) -> bool:
        now = time.monotonic()
        waited = now - self._requests.pending_since
        ends = waited > PATIENCE_SECONDS
        if ends and self._epoch is not None and iteration is not None and iteration.batches and iteration.done:
            left = (now - self._epoch_began) * (iteration.batches / iteration.done - 1.0)
            ends = waited + left > NEAR_SECONDS
        if ends and self._worker is not None:
            self._worker.insist()
        return ends

    def obey(self, at: Iteration | None = None) -> None:
        """Do what the engine asked for, in the middle of an epoch.

        Args:
            at: The iteration whose position a checkpoint records; None where there is no exact one.
        """
        super().obey(at)
        if at is not None and self._channel.take_hold() and self.save("join", at):
            self._channel.hold(JOIN_SECONDS)

    def saves_inside(self, at: Iteration | None) -> bool:
        known = at is not None or self._epoch is None or bool(self._loaders.states)
        if not known:
            self.note("no loader was prepared: a checkpoint that is asked for is saved at the end of the epoch")
        return known

    def set_threads(self, threads: int) -> None:
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        self._spinning.allow(self._channel.spin)

    def rejoin(self) -> None:
        resume = self._resume or {}
        if resume["position"]:
            self._loaders.restore_rng(resume["epoch_rng"])
            self._loaders.arm(resume["loaders"], resume["rng"], inside=True)
        else:
            with self._loaders.drawing():
                self._loaders.restore_rng(resume["rng"])
        if self._worker is not None:
            self._worker.reseed()

    def asked(self) -> str:
        joins, self._joined_later = self._channel.take_hold() or self._joined_later, False
        requested = super().asked()
        return "join" if joins else requested

    def end_epoch(self, epoch: int) -> str:
        self.meter.end()
        self._loaders.disarm()
        self._stepped = False
        why = super().end_epoch(epoch)
        while why == "join":
            self._channel.hold(JOIN_SECONDS)
            why = "join" if self._channel.take_hold() and self.save("join", after=epoch) else ""
        return why

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def join(self) -> str:
        return state_to_join(self._channel) if self.plan else ""

    def read(self, path: str) -> tuple[None, dict[str, Any]]:
        return None, checkpoints.read(path)

    def write(self, folder: Path, place: Mapping[str, Any]) -> tuple[Path, int]:
        return checkpoints.write(folder, self.steps, {**self._trained.state_dicts(), **place})

    def state_bytes(self) -> int:
        return self._trained.model_bytes()

    def position(self, why: str, at: Iteration | None, after: int | None) -> dict[str, Any] | None:
        joins, worker = why == "join", self._worker
        if not self._trained.models or not (worker is None or worker.saves or joins):
            return None
        more = {} if worker is None else worker.before_save()
        epoch, done, loaders = (
            self._loaders.position(self._epoch, at, self.note)
            if after is None
            else (after + 1, 0, self._loaders.snapshot(None) or [])
        )
        if joins and done is None:
            self._joined_later = epoch is not None
            if not self._joined_later:
                error = "no worker can join a script that does not use headgate.torch.epochs"
                self._channel.send({"type": "checkpoint_failed", "error": error, "why": why})
            return None
        with self._loaders.drawing():
            data_rng = self._loaders.capture_rng()
        random = {"rng": data_rng, "epoch_rng": self._epoch_rng}
        return {"epoch": epoch, "position": done, "loaders": loaders, **random, **more}

    # --- what is told ------------------------------------------------------------------------------------------------

    def profile(self) -> dict[str, Any]:
        return self._measuring.profile()

    def _tell_of_repeats(self) -> None:
        """Where workers did not wait for each other, some were ahead of the position that is resumed from."""
        ahead = self._resume.get("ahead", 0) if self._resume is not None else 0
        welcome = self._channel.welcome
        if ahead and not welcome.get("index") and not welcome.get("joins"):
            self.note(
                f"batches past the position of the checkpoint that were done before it was saved: {ahead}; they are "
                "trained on again"
            )


def steps_on_mean(scheduler: Any, mean: Callable[[Any], Any]) -> None:
    """Have `step(metric)`, as `ReduceLROnPlateau` has it, take the mean over the workers. Other schedulers
    are left as they are.

    Args:
        scheduler: Its class is exchanged for a subclass with another `step`: an attribute of its own would be saved
            with its state.
        mean: A number's mean over the workers.
    """
    kind = type(scheduler)
    parameters = list(inspect.signature(scheduler.step).parameters.values())
    if not parameters or parameters[0].default is not inspect.Parameter.empty or parameters[0].kind in _MANY:
        return
    metric = parameters[0].name

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (mean(args[0]), *args[1:])
        elif metric in kwargs:
            kwargs[metric] = mean(kwargs[metric])
        return kind.step(self, *args, **kwargs)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    scheduler.__class__ = type(kind.__name__, (kind,), {**names, "step": step})


def _kept(loss: torch.Tensor) -> Any:
    """A loss as it is now, since the script may change it in place; one on a GPU is not waited for."""
    if loss.is_cpu and loss.numel() == 1 and not loss.is_complex():
        return loss.item()
    return loss.detach() if loss.is_cuda else loss.detach().clone()
