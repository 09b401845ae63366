"""The tables of a run's store."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.sampling.columns import COLUMNS

VERSION = 3
NODE, NEIGHBOUR = "node:", "user:"
"""Prefixes of targets of `usage` that are no tasks: a node, and a neighbour that is no job of the
run, `USER:JOB@NODE` or `others@NODE`.
"""
ON_GPU = "/gpu-"
LATE_SECONDS = 30.0
"""How late a row may be added after one with a later time: remote tasks and long steps report
late.
"""

# Times `t` are seconds since the run began; `meta.began` is the wall clock at that moment (seconds
# since the epoch).
TABLES: Mapping[str, tuple[str, ...]] = {
    "meta": ("key TEXT PRIMARY KEY", "value TEXT"),
    "jobs": (
        "name TEXT PRIMARY KEY",
        "position INTEGER",
        "spec TEXT",  # JSON of the Job
        "state TEXT",
        "reason TEXT",
        "exit_code INTEGER",
        "submitted REAL",
        "started REAL",
        "ended REAL",
        "attempt INTEGER",
        "plan TEXT",  # JSON of the Plan
        "profile TEXT",  # JSON of the Profile
        "expected REAL",  # predicted start while it waits for room
        # JSON of the Ending: answer to a stop request, what is saved, doubts
        "ending TEXT",
        "verified TEXT",  # JSON of the Verification: whether its workers train the same as one
        # JSON: what it waits for, as kind, facts, and jobs that hold some of it
        "waits TEXT",
        "why TEXT",  # JSON of the Reason that `reason` says in words: its kind and facts
    ),
    "tasks": (
        "id TEXT PRIMARY KEY",  # JOB/ROLE-INDEX
        "job TEXT",
        "node TEXT",
        "attempt INTEGER",
        "pid INTEGER",
        "started REAL",
        "ended REAL",
        "exit TEXT",  # JSON of the Exit
        "gpus TEXT",  # JSON: numbers of GPUs of its node on which it holds memory
    ),
    "events": (
        "t REAL",
        "job TEXT",
        "task TEXT",
        "kind TEXT",
        "text TEXT",
        "seconds REAL",  # cost of a fault, if known
        "steps INTEGER",  # steps repeated or lost by it
        "why TEXT",  # JSON of the Reason that `text` says in words
    ),
    "progress": (
        "t REAL",
        "task TEXT",
        "step INTEGER",
        "epoch INTEGER",
        "epochs INTEGER",
        "samples INTEGER",
        # NULL if none was reported or it was not finite; `nan` tells which
        "loss REAL",
        "nan INTEGER",
        "count INTEGER",
        "metrics TEXT",  # JSON object or NULL
        "within REAL",  # fraction of the epoch that is done
        "steps INTEGER",  # in all
        "remaining REAL",  # seconds, as its script says
    ),
    # a task's id, or `node:NAME`
    "usage": ("t REAL", "target TEXT", *(f"{column} REAL" for column in COLUMNS)),
    "shares": (
        "t REAL",
        "task TEXT",
        "cpu_weight REAL",
        "cpu_cap_cores REAL",  # NULL: no cap
        "entitled_cores REAL",  # cores by weight or cap when every task wants the CPU
        "memory_bytes REAL",
        "threads INTEGER",
        "reason TEXT",
        "disk_bytes_per_second REAL",  # NULL: no limit
        "gpu_fraction REAL",  # NULL: all of its time
        "why TEXT",  # JSON of the Reason that `reason` says in words
    ),
    "spans": (
        "t REAL",  # the same for all rows of one message, which comes after the step
        "task TEXT",
        "step INTEGER",
        "name TEXT",
        "seconds REAL",
        "bytes_in REAL",
        "bytes_out REAL",
        "begin REAL",  # seconds from the start of the step
        "workers REAL",  # for `input`: processes that read it beside the task; NULL: unknown
        "steps REAL",  # whose mean it is; NULL: it is that of one step
    ),
    "transfers": (  # traffic of a sampled step between two tasks; may overlap with its spans
        "t REAL",  # as of the spans in the same message
        "task TEXT",
        "step INTEGER",
        "peer TEXT",  # ROLE-INDEX of the same job
        "push_begin REAL",  # seconds from the start of the step
        "push_end REAL",
        "push_bytes REAL",
        "pull_begin REAL",
        "pull_end REAL",
        "pull_bytes REAL",
    ),
    "asides": (  # a task's time beside its steps since its last report
        "t REAL",
        "task TEXT",
        "name TEXT",
        "seconds REAL",
    ),
    "checkpoints": (
        "t REAL",
        "task TEXT",
        "path TEXT",
        "step INTEGER",
        "epoch INTEGER",
        "position INTEGER",
        "bytes INTEGER",
        "seconds REAL",
        "why TEXT",
        "own INTEGER",  # whether its script saved it by itself
        "node TEXT",  # the node that alone has it; empty: this machine sees it
    ),
    "proofs": (
        "t REAL",
        "culprit TEXT",  # the paused job
        "victim TEXT",  # the job whose steps were observed
        "pauses INTEGER",
        "seconds REAL",  # of a pause
        "gain REAL",  # how much faster the victim would be without the culprit
        "low REAL",
        "high REAL",
        "outcome TEXT",  # seen, none or open
    ),
    "trials": (  # ended jobs of sweeps that state `stop_early`
        "job TEXT PRIMARY KEY",
        "ended TEXT",  # JSON of the PastTrial that others are compared with
    ),
    "log": (  # the controller's input and decisions (docs/events.md)
        # in the order of arrival; runs of one controller share the numbers
        "id INTEGER PRIMARY KEY",
        "t REAL",
        "now REAL",  # the hub's clock as told to the controller
        "kind TEXT",  # event, action or notice
        "job TEXT",  # a job of this run; NULL: none, or of another run
        "cause INTEGER",  # id of its cause
        "value TEXT",  # JSON of the event, the action or the notice
    ),
}
KEYS = {"usage": "target", "progress": "task"}
INDEXES = (
    "CREATE INDEX IF NOT EXISTS usage_target ON usage (target, t)",
    "CREATE INDEX IF NOT EXISTS progress_task ON progress (task, t)",
    # Each of very many jobs is read by itself, without reading the rows of all.
    "CREATE INDEX IF NOT EXISTS shares_task ON shares (task)",
    "CREATE INDEX IF NOT EXISTS tasks_job ON tasks (job)",
    "CREATE INDEX IF NOT EXISTS checkpoints_task ON checkpoints (task)",
    "CREATE INDEX IF NOT EXISTS asides_task ON asides (task)",
)


def columns_of(table: str) -> tuple[str, ...]:
    return tuple(column.split()[0] for column in TABLES[table])


TEXTS = {
    table: frozenset(column.split()[0] for column in columns if column.split()[1] == "TEXT")
    for table, columns in TABLES.items()
}
INSERTS = {
    table: f"INSERT OR REPLACE INTO {table} ({', '.join(columns_of(table))}) "
    f"VALUES ({', '.join('?' * len(columns))})"
    for table, columns in TABLES.items()
}


def neighbour_on_gpu(name: str, gpu: int) -> str:
    """What stands for a neighbour in the target of its use of a GPU."""
    return f"{name}{ON_GPU}{gpu}"
