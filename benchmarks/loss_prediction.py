"""How well `headgate.forecast.curves` predicts the steps that are left to a loss.

    python benchmarks/loss_prediction.py [--data FOLDER] [--repetitions 3] [--json PATH]

Curves: those of the folder `losses/` of FOLDER (default: HEADGATE_DATA, or ../shared/data beside
the checkout), CSV with `step` and `train_loss`; and those of small models that are trained here in
numpy: next words by Zipf's law, softmax regression, a classifier and a regression with a hidden
layer, by SGD and Adam, under four schedules of the learning rate. A repetition is one curve of
each.

Forecasts: a curve is smoothed over a 50th of its length; targets are where it first has made 50 to
95 % of its drop. At 25, 50 and 75 % of the steps to a target, the losses up to there are given to
`Losses` one after another, and a fit says how many steps are left. Given are the median error,
|predicted / true - 1| on a logarithmic scale, and how often the band of 90 % held. The constants of
the band were found with curves of other seeds.
"""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import _frame
import numpy as np

from headgate.forecast import curves
from headgate.forecast.loss_history import Losses

STEPS = 1500
PARTS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95)
WAYS = (0.25, 0.5, 0.75)
RATES = {
    ("words", "sgd"): 8.0,
    ("softmax", "sgd"): 0.3,
    ("classes", "sgd"): 0.2,
    ("regression", "sgd"): 0.03,
}
RATES |= {("softmax", "adam"): 0.01, ("classes", "adam"): 0.005, ("regression", "adam"): 0.005}
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 + 0.5 * math.cos(math.pi * done),
    "warm-up and linear": lambda done: min(1.0, 20 * done + 0.01) * (1 - done),
    "inverse": lambda done: 1 / (1 + 4 * done),
}
Array = Any
Gradient = Callable[[], tuple[float, list[Array]]]


# --- what is trained


def _against(scores: Array, answers: Array) -> tuple[float, Array]:
    """Cross entropy, and its gradient by the scores."""
    scores = scores - scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(answers))
    loss = -np.log(chances[rows, answers] + 1e-30).mean()
    chances[rows, answers] -= 1
    return float(loss), chances / len(answers)


def words(random: np.random.Generator) -> tuple[list[Array], Gradient]:
    """The next of 60 words from the one before."""
    size = 60
    often = 1 / np.arange(1, size + 1) ** 1.1
    often /= often.sum()
    summed = random.permuted(np.tile(often, (size, 1)), axis=1).cumsum(axis=1)
    weights = [np.zeros((size, size))]

    def gradient() -> tuple[float, list[Array]]:
        before = random.choice(size, 64, p=often)
        after = (summed[before] < random.random(64)[:, None]).sum(axis=1).clip(max=size - 1)
        loss, by_score = _against(weights[0][before], after)
        result = np.zeros((size, size))
        np.add.at(result, before, by_score)
        return loss, [result]

    return weights, gradient


def layers(
    random: np.random.Generator, inputs: int, hidden: int, outputs: int
) -> tuple[list[Array], Gradient]:
    """Softmax regression on clusters where there is no hidden layer, otherwise what another network
    says.
    """
    size = np.arange(1, inputs + 1) ** -0.6
    centres = 0.5 * random.normal(size=(outputs, inputs))
    first, second = (
        2 * random.normal(size=(inputs, 32)) / inputs**0.5,
        random.normal(size=(32, outputs)),
    )
    weights = [np.zeros((inputs, outputs))]
    if hidden:
        weights = [random.normal(size=(inputs, hidden)) / inputs**0.5]
        weights += [random.normal(size=(hidden, outputs)) / hidden**0.5]

    def gradient() -> tuple[float, list[Array]]:
        noise = random.normal(size=(32, inputs))
        if not hidden:
            answers = random.integers(outputs, size=32)
            given = (centres[answers] + noise) * size
            loss, by_score = _against(given @ weights[0], answers)
            return loss, [given.T @ by_score]
        given = 2 * noise * size
        told = np.tanh(given @ first) @ second
        inside = np.tanh(given @ weights[0])
        scores = inside @ weights[1]
        if outputs > 1:
            loss, by_score = _against(scores, told.argmax(axis=1))
        else:
            off = scores - told - 0.1 * random.normal(size=told.shape)
            loss, by_score = float((off * off).mean()), 2 * off / 32
        return loss, [
            given.T @ ((by_score @ weights[1].T) * (1 - inside * inside)),
            inside.T @ by_score,
        ]

    return weights, gradient


MODELS: dict[str, Callable[[np.random.Generator], tuple[list[Array], Gradient]]] = {
    "words": words,
    "softmax": lambda random: layers(random, 40, 0, 10),
    "classes": lambda random: layers(random, 30, 48, 8),
    "regression": lambda random: layers(random, 20, 48, 1),
}


def train(
    model: str, optimizer: str, schedule: str, seed: int, factor: float | None = None
) -> list[float]:
    """The loss of each step, with the learning rate times a factor; None: one that is drawn."""
    random = np.random.default_rng([seed, *map(ord, model + optimizer + schedule)])
    weights, gradient = MODELS[model](random)
    drawn = random.uniform(0.4, 1.5)
    rate = RATES[model, optimizer] * (drawn if factor is None else factor)
    first, second = ([np.zeros_like(each) for each in weights] for _ in range(2))
    losses = []
    for step in range(STEPS):
        loss, by_weight = gradient()
        losses.append(loss)
        now = rate * SCHEDULES[schedule](step / STEPS)
        for i, (weight, by) in enumerate(zip(weights, by_weight, strict=True)):
            if optimizer == "adam":
                first[i] = 0.9 * first[i] + 0.1 * by
                second[i] = 0.99 * second[i] + 0.01 * by * by
                by = (
                    first[i]
                    / (1 - 0.9 ** (step + 1))
                    / (np.sqrt(second[i] / (1 - 0.99 ** (step + 1))) + 1e-8)
                )
            weight -= now * by
    return losses


def curves_to_predict(folder: Path, repetitions: int) -> Iterator[tuple[str, list[float]]]:
    """Name of a kind, and losses."""
    for path in sorted((folder / "losses").glob("*.csv")):
        with path.open() as file:
            yield (
                "recorded: GPT-2" if "gpt2" in path.name else "recorded",
                [float(row["train_loss"]) for row in csv.DictReader(file)],
            )
    for model, optimizer in RATES:
        for schedule in SCHEDULES:
            for seed in range(20, 20 + repetitions):
                yield f"trained: {model}", train(model, optimizer, schedule, seed)


# --- what is measured


def targets(losses: Sequence[float]) -> Iterator[tuple[float, int]]:
    """Losses to reach, and the step at which each is."""
    width = max(len(losses) // 50, 5)
    smooth = np.convolve(losses, np.full(width, 1 / width), "valid")
    start, best = statistics.mean(losses[:5]), smooth.min()
    for part in PARTS:
        target = start - part * (start - best)
        step = int(np.argmax(smooth <= target)) + width // 2
        if step >= 3 * width:  # before that, smoothing itself would move it
            yield target, step


def forecasts(losses: Sequence[float]) -> Iterator[tuple[float, float, bool, float]]:
    """Of each forecast: part of the way, predicted over true, whether the band held, and seconds
    that the fit took.
    """
    for target, step in targets(losses):
        for way in WAYS:
            now, heard = int(way * step), Losses()
            for index in range(now):
                heard.add(index + 1, losses[index])
            before = time.process_time()
            fit = curves.fit(heard.points())
            took = time.process_time() - before
            if fit is not None:
                said = fit.to(target)
                yield (
                    way,
                    max(said.steps, 1.0) / (step - now),
                    said.low <= step - now <= said.high,
                    took,
                )


def main() -> None:
    command = _frame.parser("Predicted against true steps to a loss.", 3)
    command.add_argument(
        "--data", type=Path, help="folder of what others measured, with losses/ in it"
    )
    options = command.parse_args()
    folder = options.data or _frame.measurements()
    if not (folder / "losses").is_dir():
        print(
            f"no {folder / 'losses'}: only curves that are trained here; name the folder with "
            "--data or HEADGATE_DATA"
        )
    _frame.heading(options.repetitions, "numpy")
    found: dict[tuple[str, float], list[tuple[float, bool]]] = defaultdict(list)
    times: list[float] = []
    for kind, losses in curves_to_predict(folder, options.repetitions):
        for way, ratio, held, took in forecasts(losses):
            times.append(took)
            for group in (kind, kind.partition(":")[0] + ": all"):
                found[group, way].append((ratio, held))
    print(
        f"{'error (held by the band of 90 %) at':38}"
        + "".join(f"{way:>16.0%}" for way in WAYS)
        + f"{'all':>24}"
    )
    rows = []
    for group in sorted({group for group, _ in found}):
        line = f"{group:38}"
        for ways in (*((way,) for way in WAYS), WAYS):
            these = [each for way in ways for each in found[group, way]]
            error = math.expm1(statistics.median(abs(math.log(ratio)) for ratio, _ in these))
            right = sum(within for _, within in these) / len(these)
            rows.append(
                {
                    "curves": group,
                    "ways": ways,
                    "forecasts": len(these),
                    "error": error,
                    "held": right,
                }
            )
            cell = f"{error:.0%} ({right:.1%})"
            line += f"{cell:>16}" if len(ways) == 1 else f"{f'{cell} of {len(these)}':>24}"
        print(line)
    slowest = sorted(times)[int(0.99 * len(times))]
    print(
        f"\na fit takes {1e3 * statistics.median(times):.2f} ms, {1e3 * slowest:.2f} ms in "
        "the slowest 1 %"
    )
    _frame.write(
        options.json,
        "loss_prediction",
        {"forecasts": rows, "fit_seconds": statistics.median(times)},
        "numpy",
    )


if __name__ == "__main__":
    main()
