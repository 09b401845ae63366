"""Whether the steps and the wait for input that Headgate observes in plain programs are the true
ones: each program counts its steps itself, and has a stopwatch of its own.

    python benchmarks/observed_programs.py [--only KIND,...] [--python PATH] [--json PATH]

Runs the programs of `plain/kinds.py` under `headgate run`, one after the other: loops of PyTorch,
`Trainer` of transformers, Lightning, Accelerate, skorch, Keras over each of its back ends,
`tf_keras`, and JAX with Optax. Then it reads from each run's store the number of steps, and the
mean wait of a step as `headgate explain` has it. A program whose framework is not installed is left
out. `--python` names an interpreter that has them:

    python -m venv --system-site-packages observed
    observed/bin/pip install transformers accelerate lightning skorch

Over TensorFlow a part of the steps is timed, so that differences are by chance, too. It takes about
three minutes on an idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import _frame
import numpy as np

import headgate

PROGRAMS = Path(__file__).parent / "plain" / "kinds.py"
AIM = 0.05
"""Most that an observed wait differs from the stopwatch's, as a part of it."""
NEEDS = {
    "plain-loop": ("torch",),
    "accumulation": ("torch",),
    "loader-workers": ("torch",),
    "gan": ("torch",),
    "two-phases": ("torch",),
    "trainer": ("torch", "transformers", "accelerate"),
    "lightning": ("torch", "lightning"),
    "accelerate": ("torch", "accelerate"),
    "skorch": ("torch", "skorch"),
    "keras-over-tensorflow": ("keras", "tensorflow"),
    "keras-over-jax": ("keras", "jax"),
    "keras-over-torch": ("keras", "torch"),
    "tf-keras": ("tf_keras", "tensorflow"),
    "optax": ("jax", "optax", "torch"),
}
"""The modules that each program imports."""


@dataclass(frozen=True)
class Outcome:
    """A program's own figures, and what was observed of it.

    Args:
        steps: Steps by the program.
        steps_seen: Steps in the store.
        milliseconds: Mean wait of a step by its stopwatch.
        milliseconds_seen: Mean wait of a step from its spans; None: nothing tells it.
    """

    program: str
    steps: int
    steps_seen: int
    milliseconds: float
    milliseconds_seen: float | None

    @property
    def difference(self) -> float | None:
        """What was seen over the stopwatch, less one."""
        if self.milliseconds_seen is None:
            return None
        return self.milliseconds_seen / self.milliseconds - 1.0

    @property
    def is_good(self) -> bool:
        difference = self.difference
        return self.steps == self.steps_seen and difference is not None and abs(difference) <= AIM


def installed(python: str) -> frozenset[str]:
    """Those of the modules that an interpreter has."""
    names = sorted({name for needed in NEEDS.values() for name in needed})
    code = (
        "import importlib.util, json, sys\n"
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n)]))"
    )
    output = subprocess.run([python, "-c", code, *names], stdout=subprocess.PIPE, check=True)
    return frozenset(json.loads(output.stdout))


def observed(program: str, python: str, folder: Path) -> Outcome:
    """Run a program under Headgate.

    Raises:
        RuntimeError: It failed.
    """
    result = folder / f"{program}.json"
    backend = program.removeprefix("keras-over-") if program.startswith("keras") else "tensorflow"
    job = headgate.Job(
        name=program,
        script=str(PROGRAMS),
        args=(program, str(result)),
        python=python,
        env={"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    with headgate.Client() as client:
        run = client.run(job)
        run.wait()
    if not result.exists():
        raise RuntimeError(f"{program} failed:\n{run.logs(tail=20)}")
    own = json.loads(result.read_text())
    [recorded] = run.recording().jobs
    parts = recorded.division
    steps = recorded.progress.step[np.isfinite(recorded.progress.step)]  # lines may tell none
    return Outcome(
        program,
        own["steps"],
        int(max(steps)) if len(steps) else 0,
        own["milliseconds"],
        parts.seconds["input"] * 1e3 if parts is not None and "input" in parts.seconds else None,
    )


def line(outcome: Outcome) -> str:
    """A row of the table."""
    seen, difference = outcome.milliseconds_seen, outcome.difference
    return (
        f"{outcome.program:<24}{outcome.steps:>7}{outcome.steps_seen:>7}"
        f"{outcome.milliseconds:>11.2f} ms"
        + (f"{'none':>11}{'':>11}" if seen is None else f"{seen:>8.2f} ms{difference:>+11.1%}")
        + ("" if outcome.is_good else "  off")
    )


def main() -> None:
    parser = _frame.parser(__doc__.split("\n\n")[0], repetitions=1)
    parser.add_argument(
        "--only", default=",".join(NEEDS), help=f"some of {', '.join(NEEDS)} (default: all)"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter of the programs (default: this)"
    )
    options = parser.parse_args()
    packages = ("torch", "keras", "tf_keras", "tensorflow-cpu", "jax", "optax")
    _frame.heading(options.repetitions, *packages)
    has = installed(options.python)
    print(f"{'program':<24}{'steps':>7}{'seen':>7}{'wait':>14}{'seen':>11}{'difference':>11}")
    outcomes = []
    with _frame.leaving(), tempfile.TemporaryDirectory(prefix="headgate-bench-") as place:
        folder = Path(place)
        os.environ["HEADGATE_HOME"] = str(folder / "home")
        try:
            for _ in range(options.repetitions):
                for program in options.only.split(","):
                    if missing := set(NEEDS[program]) - has:
                        print(f"{program:<24} left out: no {', '.join(sorted(missing))}")
                        continue
                    outcomes.append(observed(program, options.python, folder))
                    print(line(outcomes[-1]), flush=True)
        finally:
            _frame.end_hubs(dict(os.environ))
    good = sum(outcome.is_good for outcome in outcomes)
    print(f"\n{good} of {len(outcomes)}: all steps, and a wait within {AIM:.0%}")
    rows = [{**asdict(outcome), "difference": outcome.difference} for outcome in outcomes]
    _frame.write(options.json, "observed_programs", {"rows": rows}, *packages)


if __name__ == "__main__":
    main()
