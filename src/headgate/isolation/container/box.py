"""A task that the isolation `container` started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.isolation.box import EnclosedBox, said_shortage, told_exit
from headgate.isolation.container import limits
from headgate.isolation.container.daemon import (
    RESTART_SECONDS,
    RETRY_SECONDS,
    Daemon,
    GoneError,
    NoAnswerError,
)
from headgate.isolation.container.outside import copy_out
from headgate.isolation.container.parents import Parent
from headgate.isolation.container.watch import ContainerWatch
from headgate.machine.cgroup_v1 import LIMIT_SLACK_BYTES
from headgate.machine.cgroups import KILL_SECONDS, Cgroups, memory_refusal
from headgate.machine.enclosure import MemoryRecord
from headgate.model.endings import Exit
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.shares import WEIGHT_DEFAULT, Lever, Share, Uncontrolled, Unlimited

REMOVED = "its container was removed by somebody else"
REMOVAL_SECONDS = 1.0
"""Seconds in which a container disappears that somebody kills first and then removes."""
KERNEL_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192
_KILL = re.compile(rb"oom-kill:.*oom_memcg=([^,]*),task_memcg=([^,]*),")
_SHARE_THE_KERNEL = frozenset(
    {"runc", "crun", "youki", "nvidia", "io.containerd.runc.v2", "io.containerd.runtime.v1.linux"}
)
_SIGNALS = frozenset(int(number) for number in signal.valid_signals())


@dataclass(frozen=True, slots=True)
class Container:
    """A container that runs a task.

    Args:
        daemon: Its daemon.
        id: Its id.
        token: Value of the label that it shares with the container that holds its network, if there
            is one.
        pid: Process id of its first process on this machine; 0 if it ended before it was seen.
        cgroups: Its cgroups, as far as this process can see them.
        outer: The cgroup around these, which outlives them; None: one of Docker's.
        runtime: The runtime that its user chose; None: the daemon's default.
        machine: The basis of its limits.
        parent: The parent that gave `outer`.
        where: Where memory ran out if it is killed below its own limit.
        mounted: Paths in it that are mounted.
        keeps: As of `Launch`.
    """

    daemon: Daemon
    id: str
    token: str
    pid: int
    cgroups: Cgroups
    outer: Cgroups | None
    runtime: str | None
    machine: limits.DockerHost
    parent: Parent
    where: str
    mounted: frozenset[str] = frozenset()
    keeps: str = ""

    @property
    def has_own_kernel(self) -> bool:
        """Whether its processes are not this machine's, so that its runtime may be unable to change
        limits.
        """
        return self.runtime is not None and self.runtime not in _SHARE_THE_KERNEL


class ContainerBox(EnclosedBox):
    """A task that `ContainerIsolation` started."""

    def __init__(
        self, task: TaskId, container: Container, share: Share, stream: int, output: int
    ) -> None:
        """
        Args:
            task: Id of the task.
            container: The container.
            share: Its initial share.
            stream: As of `ContainerWatch`.
            output: As of `ContainerWatch`.
        """
        super().__init__(task, container.pid, container.cgroups)
        self._enclosure: Cgroups = container.cgroups
        self._container = container
        self._daemon = container.daemon
        self._share = share
        self._by_cgroups = False
        self._killed = threading.Event()
        self._used = MemoryRecord()
        self._cpu_seconds: float | None = None
        self._end = Exit(code=None, reason="how it ended is not known")
        try:
            pidfd = os.pidfd_open(container.pid) if container.pid else None
        except OSError:
            pidfd = None
        self._set_outer_weights()
        self._watch = ContainerWatch(
            task, stream, output, pidfd, self._look, self._ended, self._reattach
        )

    @property
    def exit_fd(self) -> int:
        return self._watch.exit_fd

    def pids(self) -> list[int]:
        return [] if self._is_over or not self.cgroups else self._enclosure.pids()

    # --- limits -----------------------------------------------------------------------------------

    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        with self._lock:
            if self._is_over:
                return ()
            self._share = self._share.merged(share)
            if share.cpu_weight is not None:
                self._set_outer_weights()  # counts at once, where Docker's answer takes its time
            refused: list[str] = []
            docker = self._limit_unmanaged(share, refused)
            for part in self._docker_changes(docker, refused):
                self._change_share(part, refused)
            uncontrolled = (
                [self._limit_disk(share, refused)]
                if share.disk_bytes_per_second is not None
                else []
            )
            if isinstance(share.gpu_fraction, float | int):
                uncontrolled.append(
                    Uncontrolled(Lever.GPU_FRACTION, "not limited", f"{share.gpu_fraction:g}")
                )
            if refused and not self._is_over:
                raise IsolationError(f"{self.task}: {'; '.join(refused)}")
            return tuple(filter(None, uncontrolled))

    def _docker_changes(self, share: Share, refused: list[str]) -> Sequence[Share]:
        """The changes to make by Docker, in one request if possible. A memory limit below the
        present usage would end the task.
        """
        wanted, held = share.memory_bytes, self._enclosure.memory_now()
        if (
            wanted is not None
            and not isinstance(wanted, Unlimited)
            and held is not None
            and held > wanted
        ):
            refused.append(memory_refusal(wanted, held))
            share = replace(share, memory_bytes=None)
        if not limits.changes(share, self._container.machine):
            return ()
        problems: list[str] = []
        self._change_share(share, problems)
        return limits.parts(share) if problems else ()

    def _change_share(self, share: Share, refused: list[str]) -> None:
        def write() -> None:
            for part in limits.parts(share):
                self._enclosure.apply(part)

        self._change(limits.changes(share, self._container.machine), write, refused)

    def _change(
        self, changes: Mapping[str, object], write: Callable[[], object], refused: list[str]
    ) -> None:
        """Have Docker change limits. A runtime with its own kernel, such as runsc, may be unable
        to. Then they are written to the container's cgroups.
        """
        problems: list[str] = []
        if not self._by_cgroups:
            self._update(changes, problems)
        if self._by_cgroups or (problems and self._container.has_own_kernel):
            try:
                write()
            except IsolationError as error:
                problems = problems or [str(error)]
            else:
                self._by_cgroups, problems = True, []
        refused += problems

    def _limit_unmanaged(self, share: Share, refused: list[str]) -> Share:
        """Limit the memory if Docker does not control it. Returns the changes that remain for
        Docker.
        """
        if (
            "memory" not in self._container.parent.unmanaged
            or share.memory_bytes is None
            or not self.cgroups
        ):
            return share
        try:
            self._enclosure.apply(Share(memory_bytes=share.memory_bytes))
        except IsolationError as error:
            refused.append(str(error))
        return replace(share, memory_bytes=None)

    def _update(self, changes: Mapping[str, object], refused: list[str]) -> None:
        try:
            self._daemon.update(self._container.id, changes)
        except IsolationError as error:
            refused.append(str(error))
        else:
            rate = self._share.disk_bytes_per_second
            if rate is not None:  # the runtime has just put back what the container was made with
                self._limit_disk(Share(disk_bytes_per_second=rate), [])

    def _limit_disk(self, share: Share, refused: list[str]) -> Uncontrolled | None:
        """Limit the disk rate. Docker sets none for a running container, but root can write it to
        the cgroup.
        """
        rate, around = share.disk_bytes_per_second, self._container.outer or self._enclosure
        folder = next(
            (self.cgroups[name] for name in ("blkio", "io") if name in self.cgroups), None
        )
        if folder is None:
            return Uncontrolled(
                Lever.DISK_RATE, "it is not limited, since there is no controller for it"
            )
        writes = around.writes("disk_bytes_per_second", rate) if rate is not None else ()
        if writes is None:
            return Uncontrolled(
                Lever.DISK_RATE, "it is not limited, since its folder is on no disk of its own"
            )
        try:
            for write in writes:
                (folder / write.path.name).write_text(write.text)
        except PermissionError:
            return Uncontrolled(
                Lever.DISK_RATE, "Docker cannot change it while a task runs; only root can"
            )
        except OSError as error:
            refused.append(f"disk rate: {error}")
        return None

    def _pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        refused: list[str] = []
        writes = self._enclosure.pin_writes(cpus)
        if writes is None:
            return (Uncontrolled(Lever.CPU_SET, "no cpuset controller on this machine"),)
        self._change({"cpuset_cpus": writes[0].text}, lambda: self._enclosure.pin(cpus), refused)
        if refused and not self._is_over:
            raise IsolationError(f"{self.task}: {refused[0]}")
        return ()

    # --- the end ----------------------------------------------------------------------------------

    def kills(self) -> int:
        return max(self._enclosure.kills(), self._used.kills)

    def shortage(self) -> str:
        self._look()  # what was read last stays where there is nothing left to read
        return said_shortage(self._used, self._container.where)

    def _stand_still(self, seconds: float) -> None:
        # the daemon says how long it takes, and ends no pause that it began
        try:
            self._daemon.pause(self._container.id)
        except IsolationError as error:
            raise IsolationError(f"it cannot be held: {error}") from error

    def _go_on(self) -> None:
        try:
            self._daemon.unpause(self._container.id)
        except IsolationError:  # the daemon is away, or the task has ended
            if not self._is_over:
                self._enclosure.release()

    def ask(self, number: int) -> None:
        if not self._is_over and not self._signal(number):
            super().ask(number)

    def terminate(self) -> None:
        if not self._is_over and not self._signal(signal.SIGTERM) and self.cgroups:
            super().terminate()

    def _signal(self, number: int) -> bool:
        """If the container has its own kernel, have its runtime signal the first process, which
        only the runtime sees. Returns whether it has one.
        """
        self._release_for_good()
        if not self._container.has_own_kernel:
            return False
        try:
            self._daemon.kill(self._container.id, number)
        except IsolationError:
            if not self._is_over:
                raise
        return True

    def kill(self) -> None:
        if self._closed:
            return
        self._ending = True
        self._killed.set()
        if not self.cgroups:
            return
        self._look()  # soon there is nothing left to read
        try:
            self._enclosure.kill()
        except PermissionError:  # not root
            self._kill_each()

    def _kill_each(self) -> None:
        """End it without its cgroups. This user's processes need no daemon, which may be gone. For
        others (set-user-id) Docker ends the first process, and the rest with it.
        """
        deadline, pause = time.monotonic() + KILL_SECONDS, 0.005
        while self._enclosure.pids() and time.monotonic() < deadline:
            self._enclosure.send(signal.SIGKILL)
            with contextlib.suppress(IsolationError):
                self._daemon.kill(self._container.id)
            time.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS)

    def reap(self) -> Exit:
        return self._end

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self.kill()
            self._daemon.clear(self._container.token, self._container.parent.remove)
            self._closed = True
        self._watch.close()  # without the lock, which it may be waiting for
        if self._container.outer is not None:
            self._container.outer.weigh_group()

    def record(self) -> dict[str, object]:
        return {
            **super().record(),
            "daemon": self._daemon.url,
            "token": self._container.token,
            "folders": [str(path) for path in self._container.parent.made],
        }

    @property
    def _has_ended(self) -> bool:
        return self._watch.over.is_set() or super()._has_ended

    def _set_outer_weights(self) -> None:
        """Give the cgroup around the container's the same weights for CPU and disk, and the group
        the sum of those in it.
        """
        if self._container.outer is not None and self.cgroups:
            weight = self._share.cpu_weight or WEIGHT_DEFAULT
            self._enclosure.weigh_around(weight)
            self._container.outer.weigh_group()
            for write in self._container.outer.disk_weight_writes(weight):
                with contextlib.suppress(OSError):  # it has ended, and its cgroup with it
                    write.path.write_text(write.text)

    def _look(self) -> None:
        if not self.cgroups:
            return
        used, cpu = self._enclosure.memory(), self._enclosure.cpu_seconds()
        if used.peak_bytes is not None:
            self._used = used
        self._cpu_seconds = self._cpu_seconds if cpu is None else cpu

    def _reattach(self) -> int | None:
        """Reattach to its output, and make Docker's pending changes. None if the daemon is gone, or
        did not let the container run on (`live-restore`).
        """
        with contextlib.suppress(IsolationError):
            if self._daemon.state(self._container.id)["Running"]:
                with contextlib.suppress(IsolationError):
                    self.apply(self._share)
                return self._daemon.attach(self._container.id)
        return None

    def _ended(self, cut: bool) -> None:
        container = self._container
        stopped = (
            f"the Docker daemon at {self._daemon.url} stopped, and with it the task's container"
        )
        try:
            status, state, away = self._read_end()
        except GoneError:
            self._end = self._lost_exit(REMOVED)
        except NoAnswerError:
            self._end = self._lost_exit(stopped)
        except IsolationError as error:
            self._end = Exit(code=None, reason=f"how it ended is not known: {error}")
        else:
            status = 128 - status if status - 128 in _SIGNALS else status
            self._used = self._memory(state)
            self._end = told_exit(status, None, self._used, container.where)
            unexplained = not self._killed.is_set() and self._end.reason is None
            # A daemon that stops asks containers to end. One that was killed ends them when it is
            # back.
            if unexplained and (away or cut) and (status < 0 or not cut):
                number = self._end.signal or signal.SIGKILL
                self._end = replace(self._end, code=None, signal=number, reason=stopped, lost=True)
            elif unexplained and status == -signal.SIGKILL and self._is_removed(state):
                self._end = replace(self._end, reason=REMOVED, lost=True)
        outer_seconds = container.outer.cpu_seconds() if container.outer is not None else None
        outside = None
        # the container is gone, or the daemon is
        with contextlib.suppress(IsolationError, OSError):
            outside = copy_out(self._daemon, container.id, container.mounted, container.keeps)
        cpu_seconds = self._cpu_seconds if outer_seconds is None else outer_seconds
        self._end = replace(self._end, cpu_seconds=cpu_seconds, outside=outside)

    def _lost_exit(self, reason: str) -> Exit:
        """How it ended if its container or its daemon is gone: lost, unless it was to be killed."""
        killed = self._killed.is_set()
        return Exit(
            code=None, signal=signal.SIGKILL, reason=None if killed else reason, lost=not killed
        )

    def _read_end(self) -> tuple[int, Mapping[str, object], bool]:
        """Its exit status, its state, and whether the daemon was gone when it ended.

        It waits for the daemon unless the task was killed. While the daemon has not seen the end,
        it is asked again, because the container may run.

        Raises:
            NoAnswerError: The daemon does not come back, or does not answer about a killed task.
            GoneError: The container no longer exists.
        """
        away, deadline = False, time.monotonic() + RESTART_SECONDS
        while True:
            try:
                return (
                    self._daemon.wait(self._container.id),
                    self._daemon.state(self._container.id),
                    away,
                )
            except NoAnswerError:
                away = self._daemon.await_answer(self._killed) or away
                if self._killed.is_set() and time.monotonic() >= deadline:
                    raise

    def _is_removed(self, state: Mapping[str, object]) -> bool:
        """Whether it was killed in order to be removed. If so, Docker says from before the kill
        that it removes it.
        """
        return state.get("Status") in ("removing", "dead") or self._daemon.is_removed(
            self._container.id, REMOVAL_SECONDS
        )

    def _memory(self, state: Mapping[str, object]) -> MemoryRecord:
        """The record of its memory. If its cgroup was removed before it was read, the surrounding
        one (under v1 without kills), the kernel's log and Docker are used.
        """
        limit = self._share.memory_bytes if isinstance(self._share.memory_bytes, int) else None
        outer, used = self._container.outer, self._used
        if used.kills:
            return used
        late = outer.memory() if outer is not None else MemoryRecord()
        logged, own = _killed_in(self._container.id)
        kills = late.kills or int(logged or bool(state.get("OOMKilled")))
        known = [record.peak_bytes for record in (used, late) if record.peak_bytes is not None]
        full = limit is not None and (
            own or (max(known) >= limit - LIMIT_SLACK_BYTES if known else kills > 0)
        )
        # The surrounding cgroup includes page cache, so the lower value is closer.
        return MemoryRecord(
            limit if full and kills else min(known, default=None), kills, limit, full
        )


def _killed_in(container: str) -> tuple[bool, bool]:
    """Whether the kernel killed a process of a container for lack of memory, and whether by the
    container's own limit.

    Only the kernel's log outlives a cgroup under v1. Both are false if the log cannot be read, as
    by users other than root.

    Args:
        container: Id of the container, which names the cgroup.
    """
    killed = own = False
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False, False
    try:
        while True:
            try:
                match = _KILL.search(os.read(log, _RECORD_BYTES))
            except BrokenPipeError:  # records that were overwritten meanwhile
                continue
            if match is not None and match[2].endswith(container.encode()):
                killed, own = True, own or match[1] == match[2]
    except OSError:  # no more for now
        return killed, own
    finally:
        os.close(log)
