"""All-reduce: the workers sum gradients among themselves, by the collectives of torch.distributed.

It uses Gloo over the node's address, or NCCL if every worker has its own GPU. The groups are
separate from a default group that the script may have.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch

from headgate.task import Channel, PeerLost, Stop, workers_gone
from headgate.task.membership import (
    GOODBYE_SECONDS,
    START_SECONDS,
    bound,
    first_endpoint,
    listening_at,
    own_address,
)
from headgate.torch.backend import Backend, Passage, RoundResult, Transfer

_SLICE = timedelta(seconds=0.5)
"""Interval at which a waiting worker checks whether the others are still running."""
_LOOK_SECONDS = 0.02
_PATIENCE_SECONDS = 60.0
"""Time that a worker asked to stop waits for the others to finish the step."""
_NO_LIMIT = timedelta(days=365)


class AllReduce(Backend):
    """The workers of an `allreduce` plan.

    Args:
        channel: The channel to the engine, which tells the addresses of the others and who is gone.
        device: The model's device.

    Raises:
        PeerLost: A worker ended before all had started.
        RuntimeError: This PyTorch was built without torch.distributed, or a worker did not start in
            time.
    """

    sums_sparse = True

    def __init__(self, channel: Channel, device: torch.device) -> None:
        import torch.distributed as dist

        if not dist.is_available():
            raise RuntimeError(
                f"PyTorch {torch.__version__} was built without torch.distributed; a plan with "
                "several workers needs it"
            )
        self._dist: Any = dist
        self._channel = channel
        welcome = channel.welcome
        self.index = int(welcome["index"])
        self.members = tuple(range(int(welcome["plan"]["workers"])))
        address = own_address(channel)
        self._store = self._meet(address)
        self._await_all()
        self._gloo = self._gloo_group(address)
        self._group = self._gloo
        self.device = torch.device("cpu")
        if self._each_has_a_gpu(device, str(welcome["node"])):
            self._group = self._nccl_group()
            self.device = device
        # A worker may be slow, as in a validation of its own. A lost worker is detected by other
        # means.
        self._all, self._from_lowest = dist.AllreduceOptions(), dist.BroadcastOptions()
        self._all.timeout = self._from_lowest.timeout = _NO_LIMIT
        self._buffers: list[torch.Tensor] = []
        self._works: list[Any] = []
        self._pending: list[Any] = []  # collectives that are not known to be done
        self._launched: list[float] = []

    def register(self, buffers: Sequence[torch.Tensor]) -> None:
        self._buffers = list(buffers)

    def begin(self, weight: float, samples: float = 0.0) -> None:
        self._works = []
        self._launched = []

    def launch(self, index: int) -> None:
        self._launched.append(time.perf_counter())
        try:
            buffer = self._buffers[index]
            self._works.append(self._begun(self._group_of(buffer).allreduce([buffer], self._all)))
        except RuntimeError as error:
            self._lost(error)

    def sum_of(self, index: int) -> torch.Tensor:
        self._wait(self._works[index])
        return self._buffers[index]

    def finish(self) -> RoundResult:
        ended = []
        for work in self._works:
            self._wait(work)
            ended.append(time.perf_counter())
        # A ring sends and receives at once, and no worker sees how much of the time it waits. All
        # of it counts as push.
        return RoundResult(self._buffers, self.members, transfers=self._transfers(ended))

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            contiguous = tensor.detach().to(self._staging(tensor)).contiguous()
            self._wait(
                self._begun(self._group_of(contiguous).broadcast([contiguous], self._from_lowest))
            )
            if contiguous.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.detach().copy_(contiguous)

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        contiguous = tensor.detach().cpu().contiguous()
        self._wait(self._begun(self._gloo.allreduce([contiguous], self._all)))
        return contiguous

    def sum_sparse(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        coalesces = [gradient.cpu().coalesce() for gradient in gradients]
        # Messages of one group fill the pauses of others.
        works = [self._begun(self._gloo.allreduce([rows], self._all)) for rows in coalesces]
        for work in works:
            self._wait(work)
        return [rows.to(gradient.device) for rows, gradient in zip(coalesces, gradients)]

    def close(self) -> None:
        # Ended explicitly, so that a finished worker does not wait for one that is not.
        self._works = []
        for group in {
            id(group): group for group in (self._gloo, self._group) if group is not None
        }.values():
            if hasattr(group, "abort"):
                group.abort()
        # After a collective, threads of a group release tensors, which takes the interpreter's
        # lock. At the end of the interpreter that kills the process. So these threads have to end
        # before, together with their group. Ending the group waits for its collectives: for ever,
        # if another worker does not take part in one.
        if all(work.is_completed() for work in self._pending):
            self._pending = []
            group = self._gloo = self._group = None

    # --- how workers find each other --------------------------------------------------------------

    def _meet(self, address: str) -> Any:
        """The store that forms the groups: on worker 0, bound only to its node's address."""
        limit = timedelta(seconds=START_SECONDS)
        if self.index == 0:
            with bound(address) as listener:
                listener.listen(len(self.members))
                port = listener.getsockname()[1]
                store = self._dist.TCPStore(
                    address,
                    port,
                    None,
                    True,
                    limit,
                    False,
                    master_listen_fd=listener.detach(),
                    use_libuv=False,
                )
            self._channel.send(listening_at(address, [port]))
            return store
        host, _, port_text = first_endpoint(self._channel).rpartition(":")
        return self._dist.TCPStore(
            host.strip("[]"), int(port_text), None, False, limit, False, use_libuv=False
        )

    def _await_all(self) -> None:
        """Wait until all workers are ready. Forming groups does not check whether a worker is lost
        meanwhile.
        """
        self._store.set(f"here-{self.index}", "")
        until = time.monotonic() + START_SECONDS
        while not self._store.check([f"here-{member}" for member in self.members]):
            if time.monotonic() > until:
                raise RuntimeError(
                    f"not all workers of this job came to prepare within {START_SECONDS} s; see "
                    "their logs"
                )
            if self._gone() or self._channel.wait_for(lambda: bool(self._gone()), _LOOK_SECONDS):
                self._lost(None)
            if self._channel.stopping:
                raise Stop

    def _gloo_group(self, address: str) -> Any:
        kind = self._dist.ProcessGroupGloo
        options = kind._Options()
        options._devices = [kind.create_device(hostname=address)]
        options._threads = 2
        options._timeout = timedelta(seconds=START_SECONDS)
        return kind(
            self._dist.PrefixStore("gloo", self._store), self.index, len(self.members), options
        )

    def _each_has_a_gpu(self, device: torch.device, node: str) -> bool:
        """Whether every worker's model is on a GPU of its own."""
        own = ""
        if device.type == "cuda" and self._dist.is_nccl_available():
            own = f"{node} {torch.cuda.get_device_properties(device).uuid}"
        self._store.set(f"gpu-{self.index}", own)
        gpus = [self._store.get(f"gpu-{member}").decode() for member in self.members]
        return all(gpus) and len(set(gpus)) == len(gpus)

    def _nccl_group(self) -> Any:
        store = self._dist.PrefixStore("nccl", self._store)
        options = self._dist.ProcessGroupNCCL.Options()
        return self._dist.ProcessGroupNCCL(store, self.index, len(self.members), options)

    # --- waiting, and who is gone -----------------------------------------------------------------

    def _begun(self, work: Any) -> Any:
        """Note a started collective. It is pending until `_wait`."""
        self._pending.append(work)
        return work

    def _wait(self, work: Any) -> None:
        """Wait for a collective while all workers are running."""
        self._wait_for(work)
        self._pending = [other for other in self._pending if other is not work]

    def _wait_for(self, work: Any) -> None:
        while True:
            try:
                if self._group is self._gloo or not hasattr(work, "block_current_stream"):
                    work.wait(_SLICE)
                else:
                    work.wait()
                return
            except RuntimeError:
                done = bool(work.is_completed())
            if done:
                # It may have finished just after the slice. Another wait tells at once whether it
                # failed.
                try:
                    work.wait(_SLICE)
                    return
                except RuntimeError as error:
                    self._lost(error)
            self.look()
            if self._gone():
                self._lost(None)
            if (
                self._channel.stopping
                and time.monotonic() - self._channel.pending_since > _PATIENCE_SECONDS
            ):
                raise Stop  # the others do not come to the end of this step: nothing can be saved

    def _gone(self) -> list[int]:
        """Indices of workers that the engine no longer lists."""
        return workers_gone(self._channel, len(self.members))

    def _lost(self, error: RuntimeError | None) -> NoReturn:
        """End this worker after a failed collective. The job continues from its last checkpoint.

        The engine gets time to report who is gone, or to stop this worker. Then this end does not
        count as a fault of the script.
        """
        self._channel.wait_for(lambda: bool(self._gone()), GOODBYE_SECONDS)
        if self._channel.stopping:
            raise Stop
        gone = self._gone()
        if not gone:
            self.look()
        who = ", ".join(f"worker-{index}" for index in gone) or "a worker"
        cause = (
            f" ({str(error).splitlines()[0].split('] ', 1)[-1]})"
            if error is not None and not gone
            else ""
        )
        text = f"{who} is gone in the middle of a step{cause}; this worker cannot go on without it"
        print(f"headgate: {text}", file=sys.stderr, flush=True)
        self._channel.send({"type": "note", "text": text})
        raise PeerLost(text)

    def _transfers(self, ended: Sequence[float]) -> list[Transfer]:
        """The transfers of a ring: each buffer sends nearly twice its bytes to one neighbour, and
        receives as many from the other.
        """
        if not self.traced:
            return []
        world = len(self.members)
        after, before = self.members[(self.index + 1) % world], self.members[self.index - 1]
        transfers = []
        for number, end in enumerate(ended):
            buffer = self._buffers[number]
            volume = 2 * (world - 1) * buffer.numel() * buffer.element_size() // world
            passage = Passage(self._launched[number], end, volume)
            if after == before:
                transfers.append(Transfer(f"worker-{after}", passage, passage))
            else:
                transfers += [
                    Transfer(f"worker-{after}", push=passage),
                    Transfer(f"worker-{before}", pull=passage),
                ]
        return transfers

    def _group_of(self, tensor: torch.Tensor) -> Any:
        return self._group if tensor.is_cuda else self._gloo

    def _staging(self, tensor: torch.Tensor) -> torch.device:
        return (
            tensor.device
            if tensor.is_cuda and self._group is not self._gloo
            else torch.device("cpu")
        )
