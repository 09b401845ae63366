"""A hub with engines besides that of its machine, here another package's: the same engine, under
names of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import User
from tests.installing import install

from headgate.recorded.reader import RunReader
from headgate.testing import wait

PLUGIN = """
    import json, os, signal, tempfile, time
    from pathlib import Path

    from headgate import isolation
    from headgate.model.cluster import Cluster, Node
    from headgate.engines.local import LocalEngine
    from headgate.model.errors import HeadgateError
    from headgate.model.endings import Exit

    class Elsewhere(LocalEngine):
        name = "elsewhere"

        def __init__(self, spec):
            self.spec = spec
            self.folder = Path(tempfile.mkdtemp())
            names = spec.address.split(",") if spec.address else ["far"]
            nodes = tuple(Node(name, cores=1, memory_bytes=1 << 30) for name in names)
            boxes = isolation.make(isolation.DEFAULT, f"elsewhere-{os.getpid()}-{self.folder.name}")
            super().__init__(Cluster(nodes), boxes, self.folder / "channel.sock")
            self.taken, self.held = set(), {}
            self.say("make", shared=spec.shared_files)

        def say(self, what, **more):
            with open(os.environ["ELSEWHERE"], "a") as file:
                file.write(json.dumps({"what": what, **more}) + "\\n")

        def open(self, listener):
            if self.spec.address == "closed":
                raise HeadgateError("the way is closed; open it")
            if self.spec.address == "broken":
                raise RuntimeError("not as it should be")
            if self.spec.address == "late":
                self.say("opens")
                while not os.path.exists(os.environ["ELSEWHERE"] + ".go"):
                    time.sleep(0.02)
            super().open(listener)
            self.told = listener
            self.say("open")

        def called(self):
            return "elsewhere"

        def reserve(self, job, attempt, slots):
            taken = {}
            for task, slot in slots.items():
                taken[task.rsplit("/", 1)[1]] = [slot.node, slot.cores]
            self.say("reserve", job=job.split("/")[1], attempt=attempt, slots=taken)

        def release(self, job, attempt, tasks):
            names = sorted(task.rsplit("/", 1)[1] for task in tasks)
            self.say("release", job=job.split("/")[1], attempt=attempt, tasks=names)
            self.taken -= set(tasks)
            if self.held and not self.taken:
                self.start(*self.held.pop(next(iter(self.held))))

        def stop(self, task, grace):
            if self.held.pop(task, None):
                reason = "it was stopped while it waited"
                self.told.exited(task, Exit(code=None, signal=signal.SIGTERM, reason=reason))
            super().stop(task, grace)

        def start(self, launch, share, log):
            if self.spec.address == "narrow" and self.taken:
                self.held[launch.task] = launch, share, log
                self.told.waits(launch.task, "for a place there")
                return
            self.taken.add(launch.task)
            self.say("start", task=launch.task.split("/", 1)[1])
            super().start(launch, share, log)
            self.told.usage(launch.task, {"cpu_cores": 0.25, "memory_bytes": 4096.0})
            self.told.usage("node:far", {"cpu_cores": 0.5})
            if os.path.exists("/" + launch.cwd.strip("/") + "/loses"):
                self.told.left("far", "it was taken away")

        def close(self):
            super().close()
            self.folder.rmdir()
            self.say("close")
"""


class Elsewhere:
    """What the plug-in was told."""

    def __init__(self, user: User) -> None:
        self._path = user.folder / "told"
        folder = user.folder / "plugins"
        folder.mkdir()
        install(
            folder,
            {"someones_engine": PLUGIN},
            "[headgate.engines]\nelsewhere = someones_engine:Elsewhere\n",
        )
        user.variables["PYTHONPATH"] += f"{os.pathsep}{folder}"
        user.variables["ELSEWHERE"] = str(self._path)

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [told for told in map(json.loads, lines) if not kinds or told["what"] in kinds]


@pytest.fixture
def elsewhere(user: User) -> Elsewhere:
    user.write(
        "waits.py",
        "import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.05)\n",
    )
    user.write("quick.py", "print('loss 1.0')\n")
    return Elsewhere(user)


def test_an_engine_is_opened_by_the_first_run_that_names_it_and_closed_after_the_last(
    user: User, elsewhere: Elsewhere
) -> None:
    first = user.types(
        "run", "--detach", "--json", "--engine", "elsewhere", "waits.py", "--", "go"
    ).json["run"]
    user.types("run", "quick.py", "--engine", "elsewhere")
    user.types("run", "quick.py")  # beside it, on this machine
    assert [told["what"] for told in elsewhere.told("make", "open", "close")] == ["make", "open"]
    user.touch("go")
    user.sees_state("waits", "done", run=first)
    wait.until(lambda: elsewhere.told("close"), 60, "the engine is closed")
    user.types("run", "quick.py", "--engine", "elsewhere", "--shared-files")
    wait.until(lambda: len(elsewhere.told("close")) == 2, 60, "it is closed again")
    assert [told["shared"] for told in elsewhere.told("make")] == [False, True]


def test_who_comes_while_another_run_is_taken_in_joins_its_policy(
    user: User, elsewhere: Elsewhere
) -> None:
    first = user.starts(
        "run", "--policy", "equal", "--engine", "elsewhere", "--address", "late", "quick.py"
    )
    wait.until(lambda: elsewhere.told("opens"), 60, "the engine is being opened")
    assert (
        "jobs run under policy 'equal'"
        in user.types("run", "--policy", "none", "quick.py", code=2).message
    )
    user.types("run", "quick.py")
    user.touch("told.go")
    assert first.wait(60) == 0
    assert [run["policy"] for run in user.json("ps")] == ["equal", "equal"]


def test_what_tasks_take_is_set_aside_before_they_start_and_given_back_after_their_end(
    user: User, elsewhere: Elsewhere
) -> None:
    plan = ("--strategy", "ps", "--workers", "2", "--servers", "1")
    user.types("run", "quick.py", "--engine", "elsewhere", "--address", "far,near", *plan)
    job = [
        told
        for told in elsewhere.told("reserve", "release", "start")
        if told.get("job") or told.get("task")
    ]
    assert job[0]["what"] == "reserve"
    assert set(job[0]["slots"]) == {"worker-0", "worker-1", "server-0"}
    assert sum(cores for _, cores in job[0]["slots"].values()) <= 2
    given = [told for told in job if told["what"] == "release"]
    assert {told["attempt"] for told in given} == {1}
    assert sorted(name for told in given for name in told["tasks"]) == [
        "server-0",
        "worker-0",
        "worker-1",
    ]
    assert job[-1] == given[-1]


def test_what_a_worker_took_that_leaves_is_given_back_while_its_job_runs_on(
    user: User, elsewhere: Elsewhere
) -> None:
    plan = ("--strategy", "ps", "--workers", "2", "--servers", "1", "--address", "far,near")
    words = ("--detach", "--json", "--engine", "elsewhere", *plan, "waits.py", "--", "go")
    run = user.types("run", *words).json["run"]
    user.sees_state("waits", "running", run=run)
    user.types("resize", "waits", "--workers", "1")
    wait.until(lambda: elsewhere.told("release"), 60, "something is given back")
    assert elsewhere.told("release") == [
        {"what": "release", "job": "waits", "attempt": 1, "tasks": ["worker-1"]}
    ]
    assert user.jobs(run)["waits"]["state"] == "running"
    before = len(elsewhere.told("reserve"))
    user.types("run", "quick.py", "--engine", "elsewhere", "--address", "far,near")
    [taken] = [
        told["slots"]["worker-0"]
        for told in elsewhere.told("reserve")[before:]
        if told["job"] == "quick"
    ]
    held = elsewhere.told("reserve")[0]["slots"]
    others = [name for name, (node, _) in held.items() if node == taken[0] and name != "worker-1"]
    assert taken[1] == pytest.approx(1 / (1 + len(others)), abs=0.001)
    user.touch("go")
    user.sees_state("waits", "done", run=run)


def test_a_job_gives_back_the_cores_that_a_later_one_takes(
    user: User, elsewhere: Elsewhere
) -> None:
    run = user.types(
        "run", "--detach", "--json", "--engine", "elsewhere", "waits.py", "--", "go"
    ).json["run"]
    user.sees_state("waits", "running", run=run)
    user.types("run", "quick.py", "--engine", "elsewhere")
    slots = [(told["job"], told["slots"]["worker-0"][1]) for told in elsewhere.told("reserve")]
    assert slots == [("waits", 1.0), ("waits", 0.5), ("quick", 0.5)]
    user.touch("go")
    user.sees_state("waits", "done", run=run)


def test_a_job_that_its_engine_has_no_room_for_is_shown_to_wait_until_it_starts(
    user: User, elsewhere: Elsewhere
) -> None:
    def begins(go: str) -> str:
        words = (
            "--detach",
            "--json",
            "--engine",
            "elsewhere",
            "--address",
            "narrow",
            *("--memory", "100MiB"),  # else a job waits until that of the first is seen
            "waits.py",
            "--",
            go,
        )
        return str(user.types("run", *words).json["run"])

    first, second, third = (begins(go) for go in ("first", "second", "third"))
    user.sees_state("waits", "running", run=first)
    for run in (second, third):
        waits = user.sees_job(
            "waits", lambda job: job["reason"] == "for a place there", run, "waits"
        )
        assert (waits["state"], waits["started"], waits["attempt"]) == ("waiting", None, 1)
    [row] = [
        line
        for line in user.types("status", second).stdout.splitlines()
        if line.startswith("waits  ")
    ]
    assert "waiting" in row and row.rstrip().endswith("for a place there")
    stopped = f"{third}/waits: stopped by its user; last checkpoint: none\n"
    assert user.types("stop", "waits", "--run", third).stdout == stopped
    user.touch("first")
    assert user.sees_state("waits", "running", run=second)["started"] > 0
    user.touch("second")
    user.sees_state("waits", "done", run=second)
    for run, told in (
        (second, ["for a place there", "started", "finished"]),
        (third, ["for a place there"]),
    ):
        with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
            marks = [(row["kind"], row["text"]) for row in reader.rows("events", "job = 'waits'")]
        assert [
            text for _, text in marks if text in ("for a place there", "started", "finished")
        ] == told
        assert [kind for kind, _ in marks if kind in ("running", "warning")] == ["running"] * (
            run == second
        )


def test_what_an_engine_says_of_use_and_what_is_known_of_its_nodes_is_recorded(
    user: User, elsewhere: Elsewhere
) -> None:
    measured = {"rates": {"disk_bytes_per_second": 3e8}, "gpus": {}, "notes": []}
    (user.home / "calibrations").mkdir()
    (user.home / "calibrations" / "elsewhere.json").write_text(
        json.dumps({"machines": {" x 1": measured}})
    )
    user.touch("loses")
    run = user.types(
        "run", "--detach", "--json", "--engine", "elsewhere", "waits.py", "--", "go"
    ).json["run"]
    user.sees_state("waits", "running", run=run)
    user.touch("go")
    user.sees_state("waits", "done", run=run)

    def recorded() -> bool:
        with RunReader(Path(user.home, "runs", run, "run.sqlite")) as reader:
            used = {row["target"]: row["cpu_cores"] for row in reader.rows("usage")}
            faults = [row["text"] for row in reader.rows("events", "kind = 'fault'")]
            meta = reader.meta()
        nodes = [(node["name"], node["disk_bytes_per_second"]) for node in json.loads(meta["node"])]
        return (
            used.get("waits/worker-0"),
            used.get("node:far"),
            nodes,
            faults,
            meta["engine"],
        ) == (
            0.25,
            0.5,
            [("far", 3e8)],
            ["node far is gone: it was taken away"],
            "elsewhere",
        )

    wait.until(recorded, 60, "use and nodes are recorded")


def test_an_engine_that_cannot_be_opened_is_one_message_and_leaves_no_run(
    user: User, elsewhere: Elsewhere
) -> None:
    words = ("run", "quick.py", "--engine", "elsewhere", "--address")
    assert user.types(*words, "closed", code=1).message == "the way is closed; open it"
    refused = user.types(*words, "broken", code=1).message
    assert (
        refused
        == "engine elsewhere at broken could not be opened: RuntimeError('not as it should be')"
    )
    assert list((user.home / "runs").iterdir()) == []
    assert (
        "expected one of elsewhere, local, ray"
        in user.types("run", "quick.py", "--engine", "no", code=2).message
    )
    refused = user.types("run", "quick.py", "--engine", "elsewhere", "--nodes", "a", code=2).message
    assert refused == "engine elsewhere has no node 'a'; expected some of far"


def test_options_that_contradict_each_other_are_refused(user: User, elsewhere: Elsewhere) -> None:
    for words, part in (
        (("--address", "10.0.0.1:6379"), "found --address for engine local"),
        (("--shared-files",), "found --shared-files for engine local"),
        (("--engine", "elsewhere", "--cluster", "lab"), "found --cluster with --engine elsewhere"),
        (("--engine", "elsewhere", "--dry-run"), "--dry-run shows what engine local would start"),
    ):
        assert part in user.types("run", "quick.py", *words, code=2).message


def test_two_engines_cannot_have_nodes_of_one_name_at_once(
    user: User, elsewhere: Elsewhere
) -> None:
    run = user.types(
        "run", "--detach", "--json", "--engine", "elsewhere", "waits.py", "--", "go"
    ).json["run"]
    words = ("run", "quick.py", "--engine", "elsewhere", "--address")
    refused = user.types(*words, "near,far", code=2).message
    assert refused == "a running job uses another node named 'far'; wait for it, or rename one"
    user.types(*words, "near")
    user.touch("go")
    user.sees_state("waits", "done", run=run)


def test_a_resume_goes_where_the_run_was(user: User, elsewhere: Elsewhere) -> None:
    words = ("--engine", "elsewhere", "--address", "near,far", "--nodes", "far")
    run = user.types("run", "--detach", "--json", *words, "waits.py", "--", "go").json["run"]
    user.sees_state("waits", "running", run=run)
    user.types("stop", "--kill", "waits")
    again = user.json("resume", run, "--from-scratch", "--detach")["run"]
    user.sees_state("waits", "running", run=again)
    assert [told["slots"]["worker-0"][0] for told in elsewhere.told("reserve")] == ["far", "far"]
    user.touch("go")
    user.sees_state("waits", "done", run=again)
