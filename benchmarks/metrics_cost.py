"""What a scrape of `headgate web` costs: seconds, series and bytes with 3 and 500 live jobs.

    python benchmarks/metrics_cost.py [--repetitions 20] [--json PATH]

The jobs are on a board in this process, with two metrics of their own, on 50 nodes; 24 of them are
examined, as many as of one live run. Reading is what holds up live pages; text is made in a thread.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import fields

import _frame
from tests.web.test_board import job, snapshot

from headgate.diagnosis.own_steps import PARTS
from headgate.recorded.status import NodeReading
from headgate.web import metrics
from headgate.web.board import Board, RunDetails

NODES, EXAMINED = 50, 24


def board(jobs: int) -> Board:
    """A board with so many live jobs."""
    names = [f"job-{number}" for number in range(jobs)]
    made = Board()
    made.take(snapshot(*(job(name, metrics={"accuracy": 0.5, "lr": 0.1}) for name in names)))
    reading = {field.name: 0.5 for field in fields(NodeReading)}
    made.add(nodes={f"n{i}": reading | {"name": f"n{i}"} for i in range(NODES)})
    lost = [{"to": name, "resource": "cores", "seconds": 1.0} for name in names[:10]]
    account = {"account": {part: {"seconds": 1.0} for part in PARTS}, "lost": lost}
    accounts = dict.fromkeys(names[:EXAMINED], account)
    made.set_details("r", RunDetails(dict.fromkeys(names, 0.0), accounts, {"SetShare": 5}))
    return made


def scrape(live: Board) -> tuple[float, float, bytes]:
    """Seconds to read the figures and to make text of them, and the text."""
    began = time.perf_counter()
    readings = metrics.read(live)
    read = time.perf_counter()
    text = metrics.exposition(readings, process=True)
    return read - began, time.perf_counter() - read, text


def main() -> None:
    options = _frame.parser("What a scrape costs with few and many live jobs.", 20).parse_args()
    _frame.heading(options.repetitions)
    print(f"{'jobs':>6} {'series':>8} {'bytes':>10} {'read ms':>9} {'text ms':>9}")
    rows = []
    for jobs in (3, 500):
        live = board(jobs)
        scrapes = [scrape(live) for _ in range(options.repetitions)]
        text = scrapes[-1][2]
        row = {
            "jobs": jobs,
            "series": sum(not line.startswith(b"#") for line in text.splitlines()),
            "bytes": len(text),
            "read_seconds": statistics.median(read for read, _, _ in scrapes),
            "text_seconds": statistics.median(made for _, made, _ in scrapes),
        }
        rows.append(row)
        read, made = row["read_seconds"] * 1000, row["text_seconds"] * 1000
        print(f"{jobs:>6} {row['series']:>8} {row['bytes']:>10} {read:>9.1f} {made:>9.1f}")
    _frame.write(options.json, "metrics_cost", {"rows": rows})


if __name__ == "__main__":
    main()
