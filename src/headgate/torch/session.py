"""One training script under an engine: where its steps end, what is done there, and what is told to the engine.

A step boundary is the next fetch from the loader that fed the last step of the optimizer. By then all that the script
does in an iteration is done, and gradients that are still being accumulated are not cut. The end of an epoch is a
boundary too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import torch
from torch import nn

from headgate.task import Channel, Gate, ProgressReporter, Saver, Stop, TaskEnvironment, at_end, plan_of
from headgate.task.progress import whole
from headgate.task.saving import restored
from headgate.torch import batches, checkpoints
from headgate.torch.agreed_requests import AgreedRequests
from headgate.torch.backend import Movement, TimedRound
from headgate.torch.distributed import JOIN_SECONDS, Worker, state_to_join
from headgate.torch.loaders import Iteration, Loaders, Position
from headgate.torch.measuring import Measuring, fetched
from headgate.torch.schedulers import steps_on_mean
from headgate.torch.spinning import Spinning
from headgate.torch.trained import Trained

PATIENCE_SECONDS = 3.0
"""How long an order waits for a step boundary before any report or fetch has to do, at the cost of the position."""
NEAR_SECONDS = 20.0
"""How long it waits for the end of an epoch that is about to come, where a resume goes on at an exact place."""
_FLUSH_SECONDS = 2.0


class Session:
    """The state of a script that runs under an engine."""

    def __init__(self, environment: TaskEnvironment, channel: Channel) -> None:
        self._channel = channel
        self._profiling = environment.mode == "profile"
        self._progress = ProgressReporter(channel.send, fetched)
        self._resume: dict[str, Any] | None = None
        plan = {} if self._profiling else plan_of(channel)
        resume = (state_to_join(channel) if plan else "") or environment.resume
        if resume is not None and not self._profiling:
            self._resume = restored(resume, checkpoints.read, channel.send)
            self._progress.samples = self._resume["samples"]
        self._steps: int = self._resume["step"] if self._resume else 0
        self._progress.step = self._steps
        self._trained = Trained(self._resume)
        self._saver = Saver(environment.checkpoints, channel.send)
        self._worker = Worker(channel, plan, self._resume, self) if plan else None
        self._orders: Channel | AgreedRequests = channel if self._worker is None else self._worker.requests
        self._loaders = Loaders(self)
        self._measuring = Measuring(
            self._trained,
            environment.mode,
            lambda: bool(self._loaders.states),
            lambda: (self._steps, self._epoch),
            channel.send,
            self.note,
        )
        self._meter, self._costs, self._sweep = self._measuring.meter, self._measuring.costs, self._measuring.sweep
        if self._sweep is not None:
            self._loaders.source = self._sweep.source
        self._spinning = Spinning()
        self._gate = Gate(channel, self._trained.settle, self._trained.gpus)
        self._stepped = False
        self._hooked = False
        self._fed: set[int] = set()
        self._feeding: set[int] = set()
        self._samples: dict[int, tuple[int, int]] = {}
        self._phase = -1
        self._epoch: int | None = None
        self._epoch_began = 0.0
        self._epoch_rng: dict[str, Any] | None = None
        self._joined_later = False  # a worker waits to join that can only between two epochs
        self._ended = False
        self._noted: set[str] = set()
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

    def keep(self, objects: Mapping[str, Any]) -> None:
        """Save and load these with the checkpoints as well."""
        self._trained.keep(objects)

    def epochs(self, count: int) -> Iterator[int]:
        """Epoch numbers, from the one to resume on; saves and obeys between them."""
        self._phase += 1
        self._progress.epochs = whole(count, 0)
        start, resume = 0, None
        if self._resume is not None and self._resume["phase"] is not None:
            if self._phase < self._resume["phase"]:
                return
            if self._phase == self._resume["phase"]:
                start, resume = self._resume["epoch"], self._resume
                if start >= count:
                    self.note(f"the checkpoint is at the end of epoch {start} of {count}: nothing is left to train")
        try:
            for epoch in range(start, count):
                self._epoch = self._progress.epoch = epoch
                self._epoch_began = time.monotonic()
                self._loaders.enter_epoch()
                if resume is not None:
                    self._rejoin_epoch(resume)
                    resume = None
                self._epoch_rng = self._loaders.capture_rng()
                yield epoch
                self._end_epoch(epoch)
        finally:
            self._epoch = None
            if self._worker is not None:
                self._worker.left()
            self._loaders.disarm()

    def report(self, loss: Any, step: int | None, metrics: Mapping[str, Any], weight: Any = None) -> None:
        if weight is not None and self._worker is not None:
            self._worker.say_weight(weight)
        if not self._hooked:
            self._step()
        self._progress.step, self._progress.said = self._steps, step
        if isinstance(loss, torch.Tensor):
            loss = loss.detach() if loss.is_cuda else loss.detach().clone()  # the script may change it in place
        part: Any = 1.0  # of the job's loss
        if self._worker is not None:
            metrics = {**self._worker.metrics, **metrics}
            if loss is not None:
                part = self._worker.weight_of_report()
        self._progress.report(loss, metrics, part)
        if not self._loaders.states and self._stepped:
            self._begin_step()
        if not self._orders.pending or not self._stepped:
            return
        if not self._loaders.states or self._patience_ends(self._loaders.anchor(self._feeding)):
            self._obey(None)

    def mean(self, value: Any) -> Any:
        """The mean of a number over the workers, of the same type; a whole number's as a float."""
        if self._worker is None:
            return value
        mean = self._together("hg.mean()", self._worker.meetings.mean, float(value))
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return torch.full_like(value.detach(), mean)
        return mean

    def agree(self, flag: Any) -> Any:
        """Whether the flag holds in any worker."""
        return flag if self._worker is None else self._together("hg.agree()", self._worker.meetings.agree, bool(flag))

    @property
    def rank(self) -> int:
        """This worker's index."""
        return 0 if self._worker is None else self._worker.index

    @property
    def is_main(self) -> bool:
        """Whether this worker is the one that writes files."""
        return self._worker is None or self._worker.is_main

    def _together(self, what: str, meet: Callable[[Any], Any], value: Any) -> Any:
        assert self._worker is not None
        if not self._worker.in_step and self._loaders.dealing:
            raise RuntimeError(
                f"{what} in a pass over training data, under a plan whose workers do not wait for each other: each "
                "takes other batches, and as many as it gets to; call it between passes, or use a synchronous plan"
            )
        met = meet(value)
        if met is None:
            self._worker.insist()
            self._obey(None)
            raise Stop
        return met

    def close(self) -> None:
        """Send what is left; called when the interpreter ends."""
        self._progress.flush()
        self._measuring.end()
        if self._worker is not None:
            self._worker.close(by_itself=not (self._ended or self._channel.stopping))
        self._channel.flush(_FLUSH_SECONDS)
        if self._worker is not None:
            self._worker.meetings.exit_failed()

    # --- what the optimizer and the loaders tell ---------------------------------------------------------------------

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.optimizer_begins(optimizer)
        if optimizer is self._trained.optimizers[-1]:
            self._meter.unhook()
        self._meter.mark("optimizer")

    def _optimizer_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._meter.mark("other")
        if self._worker is not None:
            self._worker.optimizer_ended(optimizer)
        if optimizer is self._trained.optimizers[0]:
            self._step()
            if not self._loaders.states:
                self._begin_step()

    def _step(self) -> None:
        self._steps += 1
        self._stepped = True
        self._feeding, self._fed = self._fed, set()
        anchor = self._loaders.anchor(self._feeding)
        self._progress.within = anchor.done / anchor.batches if anchor is not None and anchor.batches else None
        if self._samples:
            whole, here = self._samples[min(self._samples)]
            self._progress.samples = (self._progress.samples or 0) + whole
            self._meter.samples = here
            self._samples = {}
        self._meter.complete()

    def _begin_step(self) -> None:
        self._meter.end()
        if self._sweep is not None and self._sweep.done:
            self._end()
        self._gate.boundary()
        self._meter.begin()

    def fetching(self, iteration: Iteration) -> None:
        if threading.get_ident() != self._thread:
            self.note("batches are fetched by a thread: a resume starts the epoch again")
            iteration.state.cannot_rejoin = "its batches are fetched by a thread"
            return
        boundary = self._stepped and iteration.number in self._feeding
        if boundary or self._meter.completed or not self._meter.open:
            self._begin_step()
        if boundary:
            if self._orders.pending:
                self._obey(self._loaders.anchor(self._feeding))
            self._stepped = False
        elif self._orders.pending and self._patience_ends(iteration):
            self._obey(None)
        self._meter.mark("input")

    def fetched(self, iteration: Iteration, batch: Any) -> Any:
        self._meter.mark("other")
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
        self._meter.end()
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
        return self._steps + 1

    def sampling(self) -> bool:
        return self._meter.sampled

    def exchanged(self, exchange: TimedRound) -> None:
        self._meter.exchanged(exchange.begin, exchange.end, exchange.result)

    def moved(self, movement: Movement) -> None:
        self._meter.moved(movement)

    # --- boundaries --------------------------------------------------------------------------------------------------

    def _patience_ends(self, iteration: Iteration | None) -> bool:
        now = time.monotonic()
        waited = now - self._orders.pending_since
        ends = waited > PATIENCE_SECONDS
        if ends and self._epoch is not None and iteration is not None and iteration.batches and iteration.done:
            left = (now - self._epoch_began) * (iteration.batches / iteration.done - 1.0)
            ends = waited + left > NEAR_SECONDS
        if ends and self._worker is not None:
            self._worker.insist()
        return ends

    def _obey(self, anchor: Iteration | None) -> None:
        """Do what the engine asked for, in the middle of an epoch.

        Args:
            anchor: The iteration whose position a checkpoint records; None where there is no exact one.
        """
        self._follow_threads()
        stopping = self._orders.stopping
        if stopping:
            self._save_in_epoch(stopping, anchor)
            self._end()
        if anchor is not None and self._orders.take_hold() and self._save_in_epoch("join", anchor):
            self._channel.hold(JOIN_SECONDS)
        if anchor is None and self._epoch is not None and not self._loaders.states:
            self.note("no loader was prepared: a checkpoint that is asked for is saved at the end of the epoch")
            return
        if self._orders.take_checkpoint():
            self._save_in_epoch("request", anchor)

    def _follow_threads(self) -> None:
        threads = self._orders.take_threads()
        if threads is None or self._profiling:
            return
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        self._spinning.allow(self._channel.spin)

    def _end(self) -> None:
        self._ended = True
        self._progress.flush()
        if self._profiling and not self._measuring.profiled:
            self._measuring.send_profile()
        self._channel.flush(_FLUSH_SECONDS)
        raise Stop

    def _rejoin_epoch(self, resume: dict[str, Any]) -> None:
        position = resume["position"]
        if position:
            self._loaders.restore_rng(resume["epoch_rng"])
            self._loaders.arm(resume["loaders"], resume["rng"], inside=True)
        else:
            with self._loaders.drawing():
                self._loaders.restore_rng(resume["rng"])
        if self._worker is not None:
            self._worker.reseed()

    def _end_epoch(self, epoch: int) -> None:
        self._meter.end()
        self._gate.pause()
        self._progress.flush()
        self._loaders.disarm()
        self._stepped = False
        self._follow_threads()
        joins = self._orders.take_hold() or self._joined_later
        self._joined_later = False
        asked = self._orders.take_checkpoint()
        why = self._orders.stopping or ("join" if joins else "request" if asked else "")
        if why or self._saver.due(self._trained.model_bytes()):
            joins = self._save_after(epoch, why or "epoch") and joins
        if self._orders.stopping:
            self._end()
        while joins:
            self._channel.hold(JOIN_SECONDS)
            joins = self._orders.take_hold() and self._save_after(epoch, "join")

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save_after(self, epoch: int, why: str) -> bool:
        return self._save(why, lambda: (epoch + 1, 0, self._loaders.snapshot(None) or []))

    def _save_in_epoch(self, why: str, anchor: Iteration | None) -> bool:
        return self._save(why, lambda: self._loaders.position(self._epoch, anchor, self.note))

    def _save(self, why: str, position: Callable[[], Position]) -> bool:
        """Save a checkpoint, where this worker does; whether it was saved."""
        self._progress.flush()
        if self._ended or self._profiling or not self._trained.models:
            return False
        joins = why == "join"
        if self._worker is not None and not self._worker.saves and not joins:
            return False
        more = {} if self._worker is None else self._worker.before_save()
        epoch, done, loaders = position()
        if joins and done is None:
            self._joined_later = epoch is not None
            if not self._joined_later:
                error = "no worker can join a script that does not use headgate.torch.epochs"
                self._channel.send({"type": "checkpoint_failed", "error": error, "why": why})
            return False
        with self._loaders.drawing():
            data_rng = self._loaders.capture_rng()
        place = {
            "step": self._steps,
            "samples": self._progress.samples,
            "phase": self._phase if epoch is not None else None,
            "epoch": epoch,
            "position": done,
            "loaders": loaders,
            "rng": data_rng,
            "epoch_rng": self._epoch_rng,
            **more,
        }
        trained, step = self._trained, self._steps
        return self._saver.save(
            why, step, place, lambda to: checkpoints.write(to, step, {**trained.state_dicts(), **place})
        )

    # --- what is told ------------------------------------------------------------------------------------------------

    def _tell_of_repeats(self) -> None:
        """Where workers did not wait for each other, some were ahead of the position that is resumed from."""
        ahead = self._resume.get("ahead", 0) if self._resume is not None else 0
        welcome = self._channel.welcome
        if ahead and not welcome.get("index") and not welcome.get("joins"):
            self.note(
                f"batches past the position of the checkpoint that were done before it was saved: {ahead}; they are "
                "trained on again"
            )

    def note(self, text: str) -> None:
        """Tell the user something, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._channel.send({"type": "note", "text": text})
