"""Training over parameter servers. `python -m headgate.torch.ps` is a server; `backend` makes the
workers' side.

`transport` has the sockets, messages and calls, and `tables` the sparse tables. `rounds` has the
synchronous plans, `asynchronous` those whose workers do not wait. docs/parameter-servers.md follows
one step through them.

It needs pyzmq: the user's own, or the hub's, which `HEADGATE_ZMQ` points to.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from headgate.task import Channel
    from headgate.torch.backend import Asynchronous, Backend
    from headgate.torch.ps.transport.links import Links
    from headgate.torch.ps.transport.loop import Loop


class _Fails(Protocol):
    def failed(self, error: BaseException) -> None: ...


_Tie = TypeVar("_Tie", bound=_Fails)
_VIEW_SECONDS = 60.0


def _find_zmq() -> None:
    """Make `import zmq` work without changing the user's import path.

    Raises:
        ImportError: There is no pyzmq that this interpreter can load.
    """
    if importlib.util.find_spec("zmq") is not None:
        return
    folder = os.environ.get("HEADGATE_ZMQ", "")
    reason = "it is not installed"
    if folder:
        sys.path.append(folder)
        try:
            importlib.import_module("zmq")
            return
        except ImportError as error:
            reason = f"it is not installed, and Headgate's own cannot be loaded here ({error})"
        finally:
            sys.path.remove(folder)
    version = ".".join(map(str, sys.version_info[:2]))
    raise ImportError(
        f"parameter servers need pyzmq in the script's Python ({sys.executable}, {version}): "
        f"{reason}; install it with: pip install pyzmq"
    )


_find_zmq()


def backend(channel: Channel, joined: Mapping[str, Any] | None = None) -> Backend:
    """This worker's side of the job's parameter servers, for a synchronous plan.

    Args:
        channel: The channel to the hub, after its welcome.
        joined: The result of `Backend.before_save` with the state that this worker joined with;
            None if all begin.

    Raises:
        RuntimeError: The hub sent no view of the job's tasks.
    """
    from headgate.torch.ps.rounds.dense import Dense
    from headgate.torch.ps.tables.model_tables import RemoteTables
    from headgate.torch.ps.transport.calls import Caller

    def make(links: Links, loop: Loop) -> Dense:
        dense = Dense(channel, links, loop, joined)
        dense.tables = RemoteTables(
            Caller(links, loop, channel),
            True,
            _checkpoints(),
            lambda: dense.observer,
            lambda: dense.counted,
            dense.barrier,
        )
        return dense

    return _connect(channel, make)


def asynchronous_backend(channel: Channel) -> Asynchronous:
    """This worker's side of the job's parameter servers, for a plan whose workers do not wait for
    each other.

    Args:
        channel: The channel to the hub, after its welcome.

    Raises:
        RuntimeError: The hub sent no view of the job's tasks.
    """
    from headgate.torch.ps.asynchronous.worker import AsynchronousWorker

    return _connect(
        channel, lambda links, loop: AsynchronousWorker(channel, links, loop, _checkpoints())
    )


def _connect(channel: Channel, make: Callable[[Links, Loop], _Tie]) -> _Tie:
    """Make a worker's side from links to the servers, and start the links. It is told if their
    thread fails.
    """
    from headgate.torch.ps.transport.links import Links
    from headgate.torch.ps.transport.loop import Loop

    if not channel.wait_for(lambda: bool(channel.peers), _VIEW_SECONDS):
        raise RuntimeError(
            f"the hub did not tell this worker of its job's other tasks within {_VIEW_SECONDS:g} s"
        )
    made: list[_Tie] = []

    def failed(error: BaseException) -> None:
        for tie in made:
            tie.failed(error)

    loop = Loop("headgate-wire", failed)
    links = Links(channel, loop)
    made.append(make(links, loop))
    links.start()
    return made[0]


def _checkpoints() -> str | None:
    """The folder of the job's checkpoints, which has space for a table."""
    return os.environ.get("HEADGATE_CHECKPOINTS") or None
