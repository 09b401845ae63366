"""Traffic between two nodes, both ways at once, to see what the link between them carries.

Run as a program in each of two network namespaces, it sends to the other as much as goes, and
prints what it received:

    python traffic.py ADDRESS PEER [SECONDS]
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

PORT = 5201
WARM_SECONDS = 0.4
"""Passes before anything is counted: the connection grows, and the buckets of the link are full."""
CONNECT_SECONDS = 10.0
PIECE = bytes(1 << 18)


@dataclass(frozen=True, slots=True)
class Received:
    """What one end received.

    Args:
        bytes_per_second: Of payload: headers come on top.
        congestion_control: Of the connection, at the end that accepted it.
    """

    bytes_per_second: float
    congestion_control: str


End = tuple[str, str]
"""Name of a node's network namespace, and its address."""


def both_ways(first: End, second: End, seconds: float = 1.0) -> tuple[Received, Received]:
    """Send from each of two nodes to the other at once, and count for so long.

    Returns:
        What the first received, and what the second did.

    Raises:
        RuntimeError: One of them failed.
    """
    ends = start(first, second, seconds), start(second, first, seconds)
    outputs = []
    for end in ends:
        try:
            outputs.append(end.communicate(timeout=CONNECT_SECONDS + 3 * seconds + 10)[0])
        except subprocess.TimeoutExpired:
            end.kill()
            end.communicate()
    if len(outputs) < len(ends) or any(end.returncode != 0 for end in ends):
        raise RuntimeError(f"the ends gave {[end.returncode for end in ends]}: {outputs}")
    one, other = (Received(**json.loads(output)) for output in outputs)
    return one, other


def start(here: End, there: End, seconds: float) -> subprocess.Popen[str]:
    """One end alone: it sends to the other, and ends with a line once it has received for so
    long.
    """
    (namespace, address), (_, peer) = here, there
    return subprocess.Popen(
        [
            "ip",
            "netns",
            "exec",
            namespace,
            sys.executable,
            "-I",
            "-S",
            __file__,
            address,
            peer,
            str(seconds),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def main() -> None:
    address, peer, seconds = (
        sys.argv[1],
        sys.argv[2],
        float(sys.argv[3]) if len(sys.argv) > 3 else 1.0,
    )
    with socket.create_server((address, PORT)) as listening:
        thread = threading.Thread(target=_send, args=(address, peer), daemon=True)
        thread.start()
        coming, _ = listening.accept()
        received = _receive(coming, seconds)
        control = (
            coming.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        )
        print(json.dumps({"bytes_per_second": received, "congestion_control": control}), flush=True)
        # The other end may still be counting what we send.
        thread.join(WARM_SECONDS + seconds + 5.0)


def _receive(coming: socket.socket, seconds: float) -> float:
    buffer = bytearray(1 << 20)
    until = time.monotonic() + WARM_SECONDS
    while time.monotonic() < until:
        coming.recv_into(buffer)
    count, began = 0, time.monotonic()
    while (took := time.monotonic() - began) < seconds:
        count += coming.recv_into(buffer)
    coming.shutdown(socket.SHUT_RDWR)
    return count / took


def _send(address: str, peer: str) -> None:
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            going = socket.create_connection(
                (peer, PORT), source_address=(address, 0), timeout=CONNECT_SECONDS
            )
            break
        except ConnectionError:  # it does not listen yet
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
    try:
        while True:
            going.sendall(PIECE)
    except OSError:  # it has counted enough
        return


if __name__ == "__main__":
    main()
