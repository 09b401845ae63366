"""NIC rates of a lab: what was asked for against what TCP gets, both ways at once.

    python benchmarks/lab_rates.py [--repetitions 5] [--json PATH]

Two nodes send to each other as fast as it goes. `payload` is what TCP hands on, over the rate asked
for; `wire` counts the headers of full packets too, which is what a NIC's rate is about. Needs root.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import _frame
from tests.harness.traffic import End, both_ways

from headgate import lab
from headgate.model.cluster import Node

RATES = ("50Mbit", "200Mbit", "1Gbit")
OVERLAYS = {"plain": ("", 1500 / 1448), "vxlan": ("overlay: vxlan\n", 1500 / 1398)}
"""Line of the file, and bytes on the wire for each of payload: a full IP packet of 1500 bytes has
52 of headers, and 50 more around a packet of the overlay.
"""
SECONDS = 2.0


def end(node: Node) -> End:
    """A node as one end of traffic."""
    if node.place is None:
        raise ValueError(f"{node.name} is no lab node")
    return Path(node.place.namespace).name, node.address


def main() -> None:
    options = _frame.parser("NIC rates asked for and got.", 5).parse_args()
    _frame.heading(options.repetitions)
    payload: dict[tuple[str, str], list[float]] = {
        (kind, rate): [] for kind in OVERLAYS for rate in RATES
    }
    ups = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADGATE_HOME"] = str(Path(folder) / "home")
        file = Path(folder) / "rates.yaml"
        try:
            for _ in range(options.repetitions):
                for (kind, rate), found in payload.items():
                    node = "{kind: node, count: 2, cores: 0.9, memory: 512MiB, nic: " + rate + "}"
                    file.write_text(f"lab: true\n{OVERLAYS[kind][0]}nodes: [{node}]\n")
                    began = time.monotonic()
                    lab.up(str(file))
                    ups.append(time.monotonic() - began)
                    first, second = lab.nodes().nodes
                    asked = first.nic_bytes_per_second or 0.0
                    found += [
                        each.bytes_per_second / asked
                        for each in both_ways(end(first), end(second), SECONDS)
                    ]
                    lab.down()
        finally:
            for name in lab.names():
                lab.down(name)
    print(f"{'':8}{'asked for':>12}  {'payload, each way':30}{'wire, each way':30}")
    rows = []
    for (kind, rate), found in payload.items():
        wire = [each * OVERLAYS[kind][1] for each in found]
        print(f"{kind:8}{rate:>12}  {_frame.spread(found):30}{_frame.spread(wire):30}")
        rows.append({"network": kind, "asked": rate, "payload": found, "wire": wire})
    print(f"\nup of two nodes: {statistics.median(ups):.3f} s")
    _frame.write(options.json, "lab_rates", {"rows": rows, "up_seconds": ups})


if __name__ == "__main__":
    main()
