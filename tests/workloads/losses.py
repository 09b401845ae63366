"""Trains workloads in one framework and prints the loss of each step as JSON.

Arguments: the framework, steps, and workloads; a size after a dash (`resnet50-short`: a bottleneck
    a stage).
"""

from __future__ import annotations

import importlib
import json
import sys

from headgate.workloads import networks, script

SHORT = networks.resnet(pixels=32, width=8, classes=10, blocks=(1, 1, 1, 1))
WHOLE = networks.build


def losses(framework: str, steps: int, workload: str) -> list[float]:
    name, _, short = workload.partition("-")
    networks.build = lambda *about: SHORT if short and about[0] == name else WHOLE(*about)
    module = importlib.import_module(
        f"headgate.workloads.{'trace' if name == 'trace' else framework}"
    )
    words = {
        "steps": steps,
        "warmup": 0,
        "batch": 1 if name == "trace" else 16,
        "seed": 3,
        "size": "small",
    }
    options = script.Options(
        workload=name, framework=framework, data=None, pull="sparse", placed="together", **words
    )
    found: list[float] = module.train(options)
    return found


if __name__ == "__main__":
    print(json.dumps({name: losses(sys.argv[1], int(sys.argv[2]), name) for name in sys.argv[3:]}))
