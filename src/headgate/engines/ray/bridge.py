"""The bridge: the process that is connected to Ray. The hub starts it, or Ray does as a job. It
ends with the hub.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from headgate.engines.ray import connect
from headgate.engines.remote.pipe import Pipe
from headgate.engines.remote.wire import Open, Refused
from headgate.model.errors import HeadgateError


def main() -> None:
    """Run the bridge of the hub at the other end of the given socket."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # unlike SIG_IGN, not inherited by the Ray that is started here
        signal.signal(number, lambda *_: None)
    key = bytes.fromhex(os.environ.pop("HEADGATE_BRIDGE_KEY", ""))
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])), key, "bridge")
    wanted = pipe.receive()
    if not isinstance(wanted, Open):
        return
    late = threading.Timer(connect.CONNECT_SECONDS, _give_up, (pipe, wanted))
    late.daemon = True
    try:
        connect.require(wanted)
        late.start()
        address = connect.connect(wanted)
        late.cancel()
        from headgate.engines.ray.driver import Driver  # needs Ray, which may not be installed

        driver = Driver(pipe, wanted)
        opened = driver.open(address)
    except HeadgateError as error:
        pipe.send(Refused(str(error), error.exit_code))
        os._exit(1)  # what Ray's own threads still wait for is of no interest
    pipe.send(opened)
    driver.serve()


def _give_up(pipe: Pipe, wanted: Open) -> None:
    pipe.send(
        Refused(
            f"the server at {wanted.address or 'this machine'} did not accept the connection "
            f"within {connect.CONNECT_SECONDS:g} s; check that it is the head of a Ray cluster"
        )
    )
    os._exit(1)


if __name__ == "__main__":
    main()
