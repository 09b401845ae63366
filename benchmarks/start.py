"""How long the command takes to answer, and how large the core install is.

    python benchmarks/start.py [--repetitions 20] [--json PATH]

Beside it a bare `python -c pass`, which is what any Python command starts from.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distribution, requires
from pathlib import Path

import _frame

COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "headgate --help": (sys.executable, "-m", "headgate", "--help"),
    "headgate run --help": (sys.executable, "-m", "headgate", "run", "--help"),
    "headgate ps": (sys.executable, "-m", "headgate", "ps"),
}


def milliseconds(command: tuple[str, ...], home: str) -> float:
    """Wall milliseconds of a command."""
    environment = {**os.environ, "HEADGATE_HOME": home}
    began = time.monotonic()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return (time.monotonic() - began) * 1e3


def core() -> dict[str, int]:
    """Bytes on disk of each package of the core install, and of Headgate itself."""
    found: dict[str, int] = {}
    waiting = ["headgate"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        package = distribution(name)
        files = [Path(str(package.locate_file(file))) for file in package.files or ()]
        found[name] = sum(file.stat().st_size for file in files if file.is_file())
        needed = [text for text in requires(name) or () if "extra ==" not in text and ";" not in text]
        waiting += [re.split(r"[^A-Za-z0-9._-]", text)[0] for text in needed]
    source = Path(__file__).parent.parent / "src" / "headgate"
    found["headgate"] = sum(
        file.stat().st_size for file in source.rglob("*") if file.is_file() and file.suffix != ".pyc"
    )
    return found


def main() -> None:
    options = _frame.parser("Start of the command, size of the core install.", 20).parse_args()
    _frame.heading(options.repetitions, "click", "pydantic")
    rows = []
    with tempfile.TemporaryDirectory() as home:
        times: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(options.repetitions):
            for name, command in COMMANDS.items():
                times[name].append(milliseconds(command, home))
    for name, found in times.items():
        print(f"{name:24}{statistics.median(found):>8.0f} ms ({min(found):.0f} to {max(found):.0f})")
        rows.append({"command": name, "milliseconds": found})
    sizes = core()
    print(
        f"\ncore install: {sum(sizes.values()) / 1e6:.1f} MB: "
        + ", ".join(f"{name} {size / 1e6:.1f}" for name, size in sorted(sizes.items(), key=lambda item: -item[1]))
    )
    _frame.write(options.json, "start", {"rows": rows, "core_bytes": sizes}, "click", "pydantic")


if __name__ == "__main__":
    main()
