"""How well `headgate predict` says when a script that prints a line an epoch ends.

    python benchmarks/end_prediction.py [--data FOLDER] [--repetitions 3] [--json PATH]

Jobs: their lines are made up, in four forms, with losses of the folder `losses/` of FOLDER
    (default: HEADGATE_DATA, or
../shared/data beside the checkout) or falling ones. The times of their epochs vary in six ways: by
little, by much, with a drift as of neighbours that come and go, with an evaluation each fifth
epoch, with an epoch now and then that takes twice as long, and with a slow first epoch. They have 6
to 80 epochs.

Forecasts: each job is asked about at a random moment between its second epoch and its last. The
    lines so far are read
as those of a task, and `expect` says when the last epoch ends. Given are the median error, as part
of what is left, the median half width of the band, and how often the band of 90 % held.
"""

from __future__ import annotations

import csv
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import _frame

from headgate.forecast.expected import expect
from headgate.hub import messages
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.output.patterns import ProgressReader
from headgate.scripts.arguments import TrainingLength

JOBS = 100
"""Of each way in each repetition."""
STARTING = (0.5, 20.0)
EPOCHS = (6, 10, 20, 40, 80)
FORMS = (
    "Epoch {epoch}/{epochs}, loss={loss:.4f}",
    "epoch {epoch} | train loss {loss:.4f} | val loss {loss:.4f}",
    "{epochs}/{epochs} - 2s - 3ms/step - loss: {loss:.4f}",
    "epoch {epoch} step {step} loss {loss:.4f}",
)
Draw = Callable[[random.Random, int], float]


def _drifting() -> Draw:
    now = 0.0

    def draw(noise: random.Random, epoch: int) -> float:
        nonlocal now
        now = 0.8 * now + noise.gauss(0.0, 0.05)
        return math.exp(now)

    return draw


WAYS: dict[str, Callable[[], Draw]] = {
    "by 2 %": lambda: lambda noise, epoch: math.exp(noise.gauss(0.0, 0.02)),
    "by 15 %": lambda: lambda noise, epoch: math.exp(noise.gauss(0.0, 0.15)),
    "drifting": _drifting,
    "evaluation each fifth epoch": lambda: (
        lambda noise, epoch: noise.gauss(1.0, 0.03) + 0.3 * (epoch % 5 == 0)
    ),
    "some take twice as long": lambda: (
        lambda noise, epoch: noise.gauss(1.0, 0.05) * (1 + (noise.random() < 0.08))
    ),
    "a slow first epoch": lambda: lambda noise, epoch: noise.gauss(1.0, 0.05) * (1 + (epoch == 1)),
}


def recorded(folder: Path) -> list[list[float]]:
    """Curves of losses that others recorded."""
    curves = []
    for path in sorted((folder / "losses").glob("*.csv")):
        with path.open() as file:
            curves.append([float(row["train_loss"]) for row in csv.DictReader(file)])
    return curves


def losses(curves: Sequence[Sequence[float]], epochs: int, noise: random.Random) -> list[float]:
    """A loss for each epoch."""
    if curves and noise.random() < 0.5:
        curve = noise.choice(curves)
        return [curve[(epoch + 1) * len(curve) // epochs - 1] for epoch in range(epochs)]
    return [0.2 + 2.0 / (1.0 + 0.3 * epoch) + noise.gauss(0.0, 0.01) for epoch in range(epochs)]


def forecast(
    form: str, times: Sequence[float], course: Sequence[float], now: float
) -> tuple[float, float, float] | None:
    """When the job ends, seconds from now on: about, at the least, at the most. None: nothing is
    said.
    """
    reader, length = ProgressReader(ProgressRule()), TrainingLength(epochs=len(times))
    reports: list[tuple[float, float | None, Progress]] = []
    for index, (at, loss) in enumerate(zip(times, course, strict=True)):
        if at > now:
            break
        values = {"epoch": index + 1, "epochs": len(times), "step": 100 * (index + 1), "loss": loss}
        head = [f"Epoch {index + 1}/{len(times)}"] if form.startswith("{epochs}/") else []
        for line in [*head, form.format(**values)]:
            for reading in reader.feed([line]):
                told = length.complete(messages.read(TaskId("run/job/worker-0"), reading, "loss"))
                reports.append((at, told.loss, replace(told, metrics={})))
    expected = expect(reports, began=0.0)
    seconds = expected.seconds(now - expected.reported) if expected is not None else None
    return (seconds.steps, seconds.low, seconds.high) if seconds is not None else None


def jobs(
    curves: Sequence[Sequence[float]], seed: int
) -> Iterator[tuple[str, str, float, bool, float]]:
    """Way, form, relative error, whether the band held, and its relative half width, of each
    forecast.
    """
    for way, drawn in WAYS.items():
        for number in range(JOBS):
            noise = random.Random(f"{seed} {way} {number}")
            draw, epochs, of_epoch = drawn(), noise.choice(EPOCHS), noise.uniform(2.0, 60.0)
            at, times = noise.uniform(*STARTING), list[float]()
            for epoch in range(1, epochs + 1):
                at += of_epoch * max(draw(noise, epoch), 0.05)
                times.append(at)
            now = noise.uniform(times[1], times[-1])
            form = noise.choice(FORMS)
            said = forecast(form, times, losses(curves, epochs, noise), now)
            if said is not None:
                left = times[-1] - now
                middle, low, high = said
                yield (
                    way,
                    form,
                    abs(middle - left) / left,
                    low <= left <= high,
                    (high - low) / 2.0 / left,
                )


def main() -> None:
    command = _frame.parser("When jobs that print a line an epoch end, predicted against true.", 3)
    command.add_argument(
        "--data", type=Path, help="folder of what others measured, with losses/ in it"
    )
    options = command.parse_args()
    _frame.heading(options.repetitions, "numpy")
    curves = recorded(options.data or _frame.measurements())
    found: dict[str, list[tuple[float, bool, float]]] = defaultdict(list)
    for seed in range(options.repetitions):
        for way, form, off, within, half in jobs(curves, seed):
            for group in (f"epochs vary: {way}", f"printed: {form[:30]}", "all"):
                found[group].append((off, within, half))
    rows = []
    print(f"{'':52}{'forecasts':>10}{'error':>8}{'band':>8}{'held':>8}")
    for group in sorted(found):
        error, width = (statistics.median(each[index] for each in found[group]) for index in (0, 2))
        held = sum(each[1] for each in found[group]) / len(found[group])
        rows.append(
            {
                "jobs": group,
                "forecasts": len(found[group]),
                "error": error,
                "band": width,
                "held": held,
            }
        )
        print(f"{group:52}{len(found[group]):>10}{error:>8.1%}{f'±{width:.0%}':>8}{held:>8.1%}")
    _frame.write(options.json, "end_prediction", {"forecasts": rows}, "numpy")


if __name__ == "__main__":
    main()
