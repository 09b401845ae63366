"""The job of a soak, which notes its begin, its steps and its end, and what is right of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

TASK = "soak_job.py"
JOB = """
import os, sys, termios, time
name, seconds, pause, *kind = sys.argv[1:]
pause = float(pause)
note = os.open(os.environ.get("SOAK_NOTES", name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def tell(*words):
    os.write(note, (" ".join(map(str, (name, *words))) + "\\n").encode())
    if os.isatty(note):
        termios.tcdrain(note)  # it is out of this machine

def save(step):
    with open(f"{name}.new", "w") as file:
        file.write(str(step))
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{name}.new", f"{name}.saved")
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    tell("saved", step)

step = 0
if os.path.exists(f"{name}.saved"):
    with open(f"{name}.saved") as file:
        step = int(file.read())
tell("begin", step)
while step * pause < float(seconds):
    step += 1
    began = time.monotonic()
    print(f"step {step} loss {1 / step:.4f}", flush=True)
    time.sleep(pause)
    tell("trained", f"{time.monotonic() - began:.3f}")
    if kind:
        save(step)
tell("end")
"""
"""Arguments: its name, seconds, seconds of a step, and `saves` if it goes on from what it saved."""
LOST = "lost-with-hub"
LATE_LOOKS = 2
"""Most looks at a run that may miss what its hub wrote last: about a second."""


@dataclass(slots=True)
class Notes:
    """What a job noted."""

    counts: Counter[str] = field(default_factory=Counter[str])
    trained: float = 0.0

    @classmethod
    def of(cls, lines: Iterable[str]) -> Notes:
        """From its lines, each with its name, a word, and for most words a number."""
        notes = cls()
        for line in lines:
            _, word, *numbers = line.split()
            notes.counts[word] += 1
            if word == "trained":
                notes.trained += float(numbers[0])
        return notes


@dataclass(frozen=True, slots=True)
class Expected:
    """What is right of a job.

    Args:
        states: How it may have ended.
        begins: How many times it may have begun.
        ends: How many times it may have come to its end.
    """

    states: Sequence[str]
    begins: Sequence[int] = (1,)
    ends: Sequence[int] = (1,)


@dataclass(slots=True)
class Seen:
    """What was seen of a job from outside of a machine whose power is cut.

    Attributes:
        entry: Its entry in the job file.
        lines: What it noted.
        saved: The last step that it saved.
        cut_off: How many cuts came while it ran.
        has_ended: Whether it came to its end.
        noted_in: The boot in which it last noted anything, from 1.
        left_open: How many times a hub showed in this boot, after it, that it had not ended.
        most_left_open: The most of it in one later boot; a cut can come before the hub tells.
        told: The state in which it was shown to have ended.
    """

    entry: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    saved: int = 0
    is_running: bool = False
    cut_off: int = 0
    has_ended: bool = False
    noted_in: int = 0
    left_open: int = 0
    most_left_open: int = 0
    told: str | None = None

    def cut(self) -> None:
        """The power was cut."""
        self.cut_off += self.is_running
        self.most_left_open = max(self.most_left_open, self.left_open)
        self.is_running, self.left_open = False, 0

    def expected(self, job: dict[str, Any], boots: int) -> Expected:
        """What is right of the job after these cuts.

        Args:
            job: How it stands, as `headgate status --json` has it.
            boots: Number of boots; the power was cut at the end of all but the last.
        """
        if "resumes" in self.entry or "retries" in self.entry:
            # one whose end was not on the disk yet begins again
            return Expected(("done",), range(1, self.cut_off + 3), (1, 2))
        if (job.get("why") or {}).get("kind") != LOST:
            return Expected(("done",) if self.has_ended else ())
        if not self.noted_in:  # cut off before its first line: its start is on the disk
            return Expected(("failed",) if job["tasks"] else (), (0,), (0,))
        # cut off, or as it ended: the next hub told it
        is_right = self.noted_in < boots and self.most_left_open <= LATE_LOOKS
        return Expected(("failed",) if is_right else (), (1,), (0, 1))


@dataclass(slots=True)
class Tally:
    """What became of the jobs of a soak.

    Attributes:
        trained: Seconds in which jobs trained.
        lasted: Seconds between their starts and ends.
    """

    states: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list)
    trained: float = 0.0
    lasted: float = 0.0

    def add(self, run: str, job: dict[str, Any], notes: Notes, expected: Expected) -> None:
        """Add a job of a run that ended, as `headgate status --json` has it."""
        self.states[job["state"]] += 1
        counts = notes.counts
        is_right = (
            job["state"] in expected.states
            and counts["begin"] in expected.begins
            and counts["end"] in expected.ends
        )
        if not is_right:
            self.problem(f"{run} {job['name']}: {job['state']}, {job['reason']} {dict(counts)}")
        self.trained += notes.trained
        if job["started"] is not None:
            self.lasted += job["ended"] - job["started"]

    def problem(self, text: str) -> None:
        self.problems.append(text)
        print(text, flush=True)

    def show(self) -> None:
        """Print the sums."""
        share = self.trained / max(self.lasted, 1e-9)
        print(f"{share:.1%} of the time of jobs was spent training")
        print(f"{len(self.problems)} problems")
