"""Jobs that say odd things or ask for too much, on a real hub: they harm nobody, and are told what
is wrong.
"""

from __future__ import annotations

import socket
import time

from tests.hub.user import User

from headgate.recorded.reader import RunReader

ODD = """
    import json, os, socket, sys
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(os.environ["HEADGATE_CHANNEL"].removeprefix("unix:"))
    task, key = os.environ["HEADGATE_TASK"], os.environ["HEADGATE_KEY"]
    hello = {"type": "hello", "v": 1, "task": task, "key": key}
    channel.sendall(json.dumps(hello).encode() + b"\\n")
    for line in (
        '{"type": "progress", "step": 1e999, "loss": 1}',
        '{"type": "progress", "step": 1, "loss": 1e308, "count": 1e999}',
        '{"type": "spans", "step": 1, "spans": ["x"]}',
        '{"type": "progress", "step": 2, "loss": 1e308, "metrics": {"a": 1e999, "b": NaN}}',
        '{"type": "progress", "step": 3, "loss": -1.7e308, "samples": 9007199254740992}',
        '{"type": "progress", "step": 4, "loss": NaN, "epoch": 9007199254740991}',
        '{"type": "profile", "profile": {"parameters_dense": 1e999}}',
        '{"type": "checkpoint", "path": "/etc/passwd", "step": 1, "epoch": 0}',
        '{"type": "note", "text": "\\\\ud800 \\\\u001b[2J"}',
        "[" * 5000,
        "no JSON",
    ):
        channel.sendall(line.encode() + b"\\n")
    for part in range(100):
        metrics = {f"m{part}-{i}": i for i in range(1000)}
        progress = {"type": "progress", "step": 5 + part, "metrics": metrics}
        channel.sendall(json.dumps(progress).encode() + b"\\n")
    channel.sendall(b'{"type": "progress", "step": 200, "loss": 0.5}\\n')
"""
SLOW = """
    print("a" * 4000, flush=True)
    print("loss 1", flush=True)
"""


def test_odd_numbers_and_slow_patterns_leave_a_run_done_told_and_reported(user: User) -> None:
    user.variables.pop("HEADGATE_REPORT")
    user.write("odd.py", ODD)
    user.write("slow.py", SLOW)
    pattern = "'.*a.*a.*a.*a.*a(?P<loss>[0-9])'"
    user.write(
        "jobs.yaml",
        f"jobs: [{{script: odd.py}}, {{script: slow.py, progress: {{pattern: {pattern}}}}}]",
    )
    run = user.json("run", "jobs.yaml")
    assert run["state"] == "done"
    assert run["report"] is not None
    with RunReader(user.home / "runs" / run["id"] / "run.sqlite") as reader:
        rows = list(reader.rows("events", "kind = 'warning' AND job IS NOT NULL"))
        steps = [row["step"] for row in reader.rows("progress", "step IS NOT NULL")]
    told = {job: [row["text"] for row in rows if row["job"] == job] for job in ("odd", "slow")}
    assert sum("left out" in text for text in told["odd"]) == 8, told["odd"]
    assert [text for text in told["slow"] if "no longer searched for" in text]
    assert steps[-1] == 200
    for command in (
        ("status",),
        ("ps",),
        ("metrics",),
        ("report",),
        ("status", "--json"),
        ("report", "--json"),
    ):
        user.types(*command)


def test_more_workers_than_its_cores_could_ever_use_are_refused_at_once(user: User) -> None:
    user.write("train.py", "print('loss 1')")
    user.write("jobs.yaml", "jobs: [{script: train.py, limits: {workers: 100000}}]")
    begun = time.monotonic()
    for words in (("train.py", "--strategy", "allreduce", "--workers", "100000"), ("jobs.yaml",)):
        said = user.types("run", *words, code=2).message
        assert "job 'train' asks for 100,000 tasks; at most" in said
        assert "ask for fewer workers" in said
    assert time.monotonic() - begun < 30.0  # to start, or even to place them all, takes longer


def test_strangers_on_the_hub_s_sockets_hold_neither_memory_nor_anybody_up(user: User) -> None:
    user.write(
        "train.py",
        (
            "import time\nprint('loss 1', flush=True)\nopen('begun', "
            "'w').write('x')\ntime.sleep(600)\n"
        ),
    )
    run = user.detaches("train.py")
    user.sees("begun")
    user.sees_state("train", "running", run=run)
    hub = user.traces.hub()
    strangers = []
    for _ in range(200):
        for name in ("channel.sock", "hub.sock"):
            stranger = socket.socket(socket.AF_UNIX)
            stranger.settimeout(5)
            strangers.append(stranger)
            try:
                stranger.connect(str(user.home / "hub" / name))
                for _ in range(64):
                    stranger.sendall(b"x" * 2**14)
            except OSError:
                continue  # it was closed for that
    assert user.jobs(run)["train"]["state"] == "running"
    with open(f"/proc/{hub}/statm") as file:
        pages = int(file.read().split()[1])
    assert pages * 4096 < 400e6
    for stranger in strangers:
        stranger.close()
    user.types("stop", "--kill", "--run", run)
