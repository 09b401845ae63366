"""`python -m headgate.workloads`: lists the workloads, and makes or checks the data of one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from headgate import workloads
from headgate.workloads import WorkloadError, networks, samples

_EXAMPLES = """Examples:
  python -m headgate.workloads
  python -m headgate.workloads --make alexnet --size small --data pictures
  python -m headgate.workloads --check pictures
  headgate run -m headgate.workloads.torch -- alexnet --data pictures"""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m headgate.workloads",
        description="List what studies train. Make its data, or check what was made.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument(
        "--make",
        metavar="WORKLOAD",
        help="make the data of this workload, where it is not there yet",
    )
    doing.add_argument(
        "--check",
        metavar="DIR",
        type=Path,
        help="compare the files of a folder with their checksums",
    )
    parser.add_argument(
        "--data", metavar="DIR", type=Path, help="its folder; default: below HEADGATE_HOME"
    )
    parser.add_argument("--size", choices=workloads.SIZES, default="small")
    parser.add_argument("--samples", type=int, metavar="N", help="how many")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="they are drawn from it (0)"
    )
    asked = parser.parse_args()
    if asked.samples is not None and asked.samples < 1:
        parser.error(f"--samples: found {asked.samples}; expected a whole number from 1")
    try:
        if asked.make is not None:
            _make(asked)
        elif asked.check is not None:
            _show(asked.check, samples.check(asked.check))
        else:
            _list()
    except WorkloadError as error:
        print(f"headgate.workloads: {error}", file=sys.stderr)
        sys.exit(2)


def _make(asked: argparse.Namespace) -> None:
    if "keras" not in workloads.frameworks_of(asked.make):
        raise WorkloadError(f"workload {asked.make!r} makes its blocks in memory and reads no data")
    folder = asked.data or samples.where(asked.make, asked.size)
    samples.make(folder, asked.make, asked.size, asked.seed, asked.samples)
    _show(folder, samples.manifest(folder))


def _show(folder: Path, data: dict[str, Any]) -> None:
    print(
        f"{folder}: {data['samples']} samples of {data['workload']}, {data['size']}, seed "
        f"{data['seed']}"
    )
    for name, about in data["files"].items():
        print(f"  {name:12} {about['bytes']:>14,} bytes  sha256 {about['sha256']}")


def _list() -> None:
    for name, about in workloads.WORKLOADS.items():
        print(f"{name:11} {about}")
        if name not in ("sparse", "trace"):
            for size in workloads.SIZES:
                net = networks.build(name, size)
                shape = " × ".join(map(str, net.shape))
                print(
                    f"{'':11} {size:6} {shape:13} {net.parameters:>12,} parameters, "
                    f"{net.flops / 1e6:,.2f} MFLOPs"
                )
        print(f"{'':11} in {', '.join(workloads.frameworks_of(name))}")


if __name__ == "__main__":
    main()
