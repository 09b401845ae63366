"""How well what jobs cost each other is foretold of jobs that nobody has measured in pairs.

    python benchmarks/interference.py [--data FOLDER] [--pairs FILE ...] [--trees N] [--json PATH]

Reads `gavel/pairs.json` of FOLDER (default: HEADGATE_DATA, or ../shared/data beside the checkout):
pairs of 26 jobs on one K80, P100 or V100. `--pairs` adds tables of your own, such as the
`pairs.json` of HEADGATE_HOME, which `headgate study` writes. Repetitions are no option: nothing
here is timed.

Each job in turn is left out with all its pairs, as the first and as the second. Then each of these
pairs is predicted. `model` leaves out all batch sizes of a model at once. What is known of a job
that is left out are figures of it alone:

- its throughput, and how many times that it has on the other devices;
- its batch size, and the part of a step that grows with the batch, by a line α + β·b through the
  batch sizes of its model, for jobs of Gavel;
- what `headgate study` wrote of it, for those of your own.

| predictor | is |
|---|---|
| `headgate` | `headgate.planning.pair_model` |
| `overlap` | min(1, 100 / (u1 + u2)); u: percent of a step that grows with the batch, or 100 |
| `forest` | scikit-learn's random forest over both jobs' figures; skipped if not installed |
| `mean` | the mean of all pairs that were not left out |

Errors are mean absolute errors of the part of its throughput that a job keeps. `held` is how often
Headgate's band of nine in ten held the measured value.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import _frame
import numpy as np
from scipy.optimize import nnls

from headgate.planning.interference import THROUGHPUT, UTILISATION, Interference, read_pairs
from headgate.planning.pair_model import Kept, PairModel

Pairs = Mapping[tuple[str, str], float]
Solo = Mapping[str, Mapping[str, float]]
Predictor = Callable[[str, str], Kept]
Fit = Callable[[Solo, Pairs], Predictor]
_BATCH = re.compile(r"(.*) \(batch size (\d+)\)")


def family(job: str) -> str:
    """The model of a job, without its batch size."""
    found = _BATCH.fullmatch(job)
    return found[1] if found else job


def with_batches(solo: Mapping[str, Solo]) -> dict[str, Solo]:
    """Figures of Gavel's jobs, and those that follow from their batch sizes."""
    told: dict[str, Solo] = {}
    for device, jobs in solo.items():
        steps = {
            job: 1.0 / figures[THROUGHPUT] for job, figures in jobs.items() if THROUGHPUT in figures
        }
        told[device] = {job: {**figures, **_of_batch(job, steps)} for job, figures in jobs.items()}
    return told


def _of_batch(job: str, steps: Mapping[str, float]) -> dict[str, float]:
    found = _BATCH.fullmatch(job)
    if found is None:
        return {}
    points = [
        (float(each[2]), steps[name])
        for name in steps
        if (each := _BATCH.fullmatch(name)) and each[1] == found[1]
    ]
    batch = float(found[2])
    if len(points) < 2:
        return {"batch": batch}
    seconds = np.array([point[1] for point in points])
    lines = np.array([[1.0, point[0]] for point in points])
    (alpha, beta), _ = nnls(lines / seconds[:, None], np.ones(len(points)))
    return {"batch": batch, UTILISATION: beta * batch / (alpha + beta * batch)}


def headgate(solo: Solo, known: Pairs) -> Predictor:
    return PairModel(solo, known).predict


def overlap(solo: Solo, known: Pairs) -> Predictor:
    def predict(job: str, other: str) -> Kept:
        part = min(
            1.0, 1.0 / max(sum(solo[each].get(UTILISATION, 1.0) for each in (job, other)), 1e-9)
        )
        return Kept(part, part, part)

    return predict


def mean(solo: Solo, known: Pairs) -> Predictor:
    part = statistics.fmean(known.values())
    return lambda job, other: Kept(part, part, part)


def forest(trees: int) -> Fit:
    from sklearn.ensemble import RandomForestRegressor

    def fit(solo: Solo, known: Pairs) -> Predictor:
        names = sorted({name for figures in solo.values() for name in figures})
        usual = {
            name: statistics.fmean(each[name] for each in solo.values() if name in each)
            for name in names
        }

        def row(job: str, other: str) -> list[float]:
            return [solo[each].get(name, usual[name]) for each in (job, other) for name in names]

        fitted = RandomForestRegressor(trees, random_state=0).fit(
            [row(*pair) for pair in known], list(known.values())
        )

        def predict(job: str, other: str) -> Kept:
            part = float(fitted.predict([row(job, other)])[0])
            return Kept(part, part, part)

        return predict

    return fit


def left_out(
    solo: Solo, pairs: Pairs, of: Callable[[str], str], fit: Callable[[Solo, Pairs], Predictor]
) -> dict[str, Any]:
    """What a predictor says of pairs that it has not seen a job of."""
    off, held = [], []
    for group in sorted({of(job) for pair in pairs for job in pair}):
        known = {pair: kept for pair, kept in pairs.items() if group not in map(of, pair)}
        try:
            predict = fit(solo, known)
        except ValueError:
            return {"error": None, "held": None, "pairs": 0}
        for pair, kept in pairs.items():
            if group in map(of, pair):
                told = predict(*pair)
                off.append(abs(told.part - kept))
                held.append(told.low <= kept <= told.high)
    return {"error": statistics.fmean(off), "held": statistics.fmean(held), "pairs": len(off)}


def tables(options: Any) -> dict[str, tuple[Solo, Pairs]]:
    """Figures and pairs by the name of a table and its device."""
    found: dict[str, tuple[Solo, Pairs]] = {}
    gavel = Path(options.data) / "gavel" / "pairs.json"
    for path in ([gavel] if gavel.exists() else []) + [Path(each) for each in options.pairs]:
        table: Interference = read_pairs(path)
        solo = with_batches(table.solo) if path == gavel else table.solo
        for device, rows in table.pairs.items():
            pairs = {(job, other): part for job, row in rows.items() for other, part in row.items()}
            if pairs:
                found[f"{path.parent.name if path == gavel else path.name} {device}".strip()] = (
                    solo[device],
                    pairs,
                )
    return found


def main() -> None:
    parser = _frame.parser(__doc__ or "", repetitions=1)
    parser.add_argument("--data", default=str(_frame.measurements()))
    parser.add_argument("--pairs", action="append", default=[])
    parser.add_argument("--trees", type=int, default=100)
    options = parser.parse_args()
    fits: dict[str, Fit] = {"headgate": headgate, "overlap": overlap, "mean": mean}
    try:
        fits["forest"] = forest(options.trees)
    except ImportError:
        print("no scikit-learn: the random forest is skipped")
    groups: dict[str, Callable[[str], str]] = {"job": str, "model": family}
    rows = []
    print(
        f"{'table':16} {'left out':8} {'pairs':>6} "
        + " ".join(f"{name:>9}" for name in fits)
        + "      held"
    )
    for name, (solo, pairs) in tables(options).items():
        for what, of in groups.items():
            if what == "model" and {family(job) for job in solo} == set(solo):
                continue
            told = {each: left_out(solo, pairs, of, fit) for each, fit in fits.items()}
            rows.append({"table": name, "left_out": what, "jobs": len(solo), **told})
            cells = [
                f"{each['error']:9.4f}" if each["pairs"] else f"{'-':>9}" for each in told.values()
            ]
            held = f"{told['headgate']['held']:9.0%}" if told["headgate"]["pairs"] else f"{'-':>9}"
            print(f"{name:16} {what:8} {told['mean']['pairs']:6}", *cells, held, flush=True)
    _frame.write(options.json, "interference", {"rows": rows}, "scikit-learn", "numpy")


if __name__ == "__main__":
    main()
