"""One worker of a job with several: shares data, gradients and requests with the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headgate.task import Channel
from headgate.torch import rng
from headgate.torch.agreed_requests import AgreedRequests
from headgate.torch.averaging import GradientAveraging, Owner
from headgate.torch.backend import REMOTE, Asynchronous, Backend, WorkerGroup
from headgate.torch.buffers import Buffers, check_layers
from headgate.torch.control_vector import ReduceError
from headgate.torch.extra_state import MEAN, WORKER, KeptObject, WorkerStates, compared
from headgate.torch.gradient_weights import GradientWeights
from headgate.torch.round_weights import RoundWeights
from headgate.torch.sample_comparison import warner
from headgate.torch.sharded_loaders import Sharing
from headgate.torch.sharding import Assigned, Assigner, Slices
from headgate.torch.training_state import Added
from headgate.torch.worker_position import PositionComparison, WorkerPosition, sizes


class Worker:
    """A worker of a plan with several tasks.

    Args:
        channel: The channel to the engine.
        plan: The plan, with the fields of `headgate.Plan`.
        resume: The loaded checkpoint; None on a fresh start.
        owner: Knows the script's position, and takes the rounds.

    Attributes:
        requests: The engine's requests, to be used in place of the channel.
        weights: Weights this worker's gradients and losses.
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
        self._averaging: GradientAveraging | None = None
        self._models: list[nn.Module] = []
        self._agreed = AgreedRequests(channel)
        self.index = int(channel.welcome["index"])
        self.workers = int(plan["workers"])
        self.in_step = bool(plan["synchronous"])
        self.buffers = Buffers(self._models)
        position = WorkerPosition(owner.place, lambda: owner.step, self.buffers)
        self._comparison = PositionComparison(position, channel, self.in_step, self._rounds)
        self.sync_points = self._comparison.sync_points
        losses = GradientWeights(
            self._named, self._meet_to_weigh, self._take_part, owner.note, warner(self, channel)
        )
        self.weights = RoundWeights(losses, owner.note)
        self.sharing: Sharing | None = None

    @property
    def averaging(self) -> GradientAveraging | None:
        """Averages gradients over the workers that step together; None: they do not, or nothing
        was prepared yet.
        """
        return self._averaging

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
        elif self._averaging is not None and self.weights.summed != summed:
            raise ValueError(
                f"prepare(loss_reduction={loss_reduction!r}): a model before was prepared "
                "with another"
            )
        if added.model:
            self._models.append(model)
        if callable(loss_reduction):
            self.weights.losses.by_batch = loss_reduction
        if self._plan["workers"] > 1:
            check_layers(model)
        if self.on_servers:
            from headgate.torch.ps.tables.lazy_tensor import defer

            defer(model)
        if not added.loaded:
            tensors = [t for t in (*model.parameters(), *model.buffers()) if not hasattr(t, REMOTE)]
            link.broadcast(list({id(tensor): tensor for tensor in tensors}.values()))
        self.weights.summed = summed
        if self._averaging is not None:
            self._averaging.reducer.add(model)
        trains = added.model or added.optimizer
        if isinstance(link, Asynchronous):
            if trains:
                link.adopt(model, optimizer)
            if added.scheduler:
                link.follow(scheduler)
        elif trains and isinstance(link, Backend) and self._averaging is not None:
            steps = self._joined["tables"] if self._joined else {}
            link.adopt_tables(model, optimizer, self._averaging.reducer.table_arrives, steps)

    def share_random(self, generators: Sequence[torch.Generator]) -> None:
        """From now on, draw data with the same random stream as the other workers, and everything
        else with a stream of this worker.

        Args:
            generators: Generators given to loaders.
        """
        if self.sharing is None or self._link is None or self.weights.iterated:
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
        self.weights.fetched(loader, assigned, batch, assigned is not None or self._divides())
        if assigned is not None and self.sharing is not None:
            self.sharing.assigner.given(loader, assigned.number)

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
        if isinstance(self._link, Backend) and self._agreed.together:
            return bool(self._link.broadcast_value(value))
        return value

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

    def unexchanged(self) -> list[dict[str, float]] | None:
        """What workers compare at the end of an epoch if no gradients were exchanged yet. None if
        some were.
        """
        if self._averaging is None or self.workers == 1 or self._rounds():
            return None
        return [sizes(self._models)]

    def stray_begins(self, optimizer: Any) -> None:
        """Check a step of an optimizer that was not given to `prepare`.

        Raises:
            ReduceError: It trains parameters of no prepared model. Or workers do not wait for each
                other, and the servers do not have this optimizer.
        """
        if self._averaging is not None:
            self._averaging.stray_begins(optimizer)
        elif self._link is not None and not self.in_step:
            raise ReduceError(
                f"the optimizer {type(optimizer).__name__} was not given to prepare: under a plan "
                "whose workers do not wait for each other, servers take the steps, and this "
                "optimizer would only train this worker's copy. Give it to prepare, or "
                "use a synchronous plan"
            )

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
        return {} if self._averaging is None else self._averaging.state()

    def left(self) -> None:
        """Note that the script has left a loop over epochs."""
        self._comparison.left(self._models)

    def close(self, by_itself: bool) -> None:
        """Note the end of the script.

        Args:
            by_itself: It was not asked to end.
        """
        self._comparison.close(by_itself)
        if self._averaging is not None:
            self._averaging.close()
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
        link.look = self._comparison.look
        assigner: Assigner
        if isinstance(link, Backend):
            assigner = slices = self._slices_of(link)
            self._averaging = GradientAveraging(
                link,
                self.workers,
                slices,
                self.weights,
                self._comparison,
                self._agreed,
                self.buffers,
                self._channel.send,
                self._owner,
            )
            if self._joined is not None:
                self._averaging.go_on(self._joined)
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

    def _rounds(self) -> int:
        """Number of finished rounds."""
        return 0 if self._averaging is None else self._averaging.reducer.rounds

    def _take_part(self) -> None:
        if self._averaging is not None:
            self._averaging.take_part()

    def _named(self, parameter: torch.Tensor) -> str:
        for model in self._models:
            for name, candidate in model.named_parameters():
                if candidate is parameter:
                    return name
        return f"a parameter of shape {tuple(parameter.shape)}"

    def _meet_to_weigh(self, value: Any) -> Mapping[int, Any] | None:
        return self.sync_points.exchange("weighing a loss", value)


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
