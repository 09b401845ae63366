"""Jobs of several tasks without a framework: workers and servers that speak the task channel, and
say what they see.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.hub.user import SECONDS, User

from headgate.recorded.reader import RunReader
from headgate.testing import wait

WORKER = """
    import json, os, zipfile
    from headgate.task import Channel, TaskEnvironment

    def say(*words):
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # whole lines, from two threads

    def members():
        return {member["task"]: member for member in channel.peers.get("members", [])}

    def save(why):
        path = os.path.join(environment.checkpoints, f"step-{step}.pt")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("step", str(step))
        message = {"type": "checkpoint", "path": path, "step": step, "position": step, "why": why}
        channel.send({**message, "epoch": 0})

    def saved(path):
        with zipfile.ZipFile(path) as archive:
            return int(archive.read("step"))

    environment = TaskEnvironment.claim()
    name = environment.task.rpartition("/")[2]
    channel = Channel.open(environment, "plain", "1", 0)
    channel.watcher = lambda message: say(json.dumps(message))
    channel.wait_for(lambda: name in members(), 60)
    say("welcome", json.dumps(dict(channel.welcome)))
    channel.send({"type": "listening", "endpoints": ["tcp://" + channel.welcome["address"] + ":1"]})
    step = saved(environment.resume) if environment.resume else 0
    if channel.welcome["joins"]:
        channel.send({"type": "joining"})
        channel.wait_for(lambda: channel.state and members()[name]["active"], 60)
        step = saved(channel.state)
    say("begins", os.getpid(), step)
    while not os.path.exists("go"):
        if os.path.exists("fails") and name == "worker-1":
            raise SystemExit(3)
        if channel.stopping:
            if not members()[name]["leaving"]:
                save("stop")
            break
        if channel.take_hold():
            save("join")
            channel.hold(60)
        if channel.take_checkpoint():
            save("request")
        step += 1
        loss = 1.0 + channel.welcome["index"]
        channel.send({"type": "progress", "step": step, "epoch": 0, "loss": loss, "count": 1})
        channel.take_threads()
        channel.wait_for(lambda: channel.pending, 0.05)
    say("ends", step)
    channel.flush(5)
"""

SERVER = """
    import json, os
    from headgate.task import Channel, TaskEnvironment

    def say(*words):
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "plain", "1", 0)
    channel.watcher = lambda message: say(json.dumps(message))
    channel.wait_for(lambda: bool(channel.welcome), 60)
    say("welcome", json.dumps(dict(channel.welcome)))
    say("begins", os.getpid(), 0)
    channel.send({"type": "listening", "endpoints": ["tcp://" + channel.welcome["address"] + ":2"]})
    while channel.stopping != "stop" and channel.connected:
        channel.wait_for(lambda: False, 60)
    say("ends", channel.stopping)
"""

PYTHON = f"""#!/bin/sh
if [ "$1 $2" = "-m headgate.torch.ps" ]; then exec {sys.executable} server.py; fi
exec {sys.executable} "$@"
"""


class Team:
    """A job `team` of a user: what its tasks said, and what was recorded of it."""

    def __init__(self, user: User) -> None:
        self.user = user
        user.write("worker.py", WORKER)
        user.write("server.py", SERVER)
        interpreter = user.folder / "python"
        interpreter.write_text(PYTHON)
        interpreter.chmod(0o755)
        user.variables["PATH"] = f"{user.folder}{os.pathsep}{user.variables['PATH']}"
        self.run = ""

    def starts(self, *options: str, wait_for: tuple[str, ...] = ()) -> None:
        """Start it, and wait until these tasks are at work."""
        self.run = self.user.detaches("worker.py", "--name", "team", *options)
        for task in wait_for:
            self.begun(task)

    @property
    def folder(self) -> Path:
        return self.user.home / "runs" / self.run

    def lines(self, task: str) -> list[str]:
        """What a task said so far, in whole lines: one may be half written."""
        path = self.folder / "jobs" / "team" / f"{task}.log"
        return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []

    def begun(self, task: str, times: int = 1) -> tuple[int, int]:
        """Process and first step of a task, once it has begun for that time."""

        def look() -> list[str] | None:
            found = [line for line in self.lines(task) if line.startswith("begins")]
            return found[times - 1].split() if len(found) >= times else None

        words = wait.until(look, SECONDS, f"{task} begins, {times}")
        assert words is not None
        return int(words[1]), int(words[2])

    def welcome(self, task: str) -> dict[str, Any]:
        """The greeting of a task, its first."""
        line = next(line for line in self.lines(task) if line.startswith("welcome"))
        return dict(json.loads(line.removeprefix("welcome ")))

    def sees(self, task: str, expected: dict[str, tuple[int, bool]]) -> dict[str, dict[str, Any]]:
        """The first view of a task in which these tasks are, each with its life and whether it is
        active, all of them listening.
        """

        def look() -> dict[str, dict[str, Any]] | None:
            for line in self.lines(task):
                message = json.loads(line) if line.startswith("{") else {}
                members = {member["task"]: member for member in message.get("members", [])}
                states = {
                    name: (member["life"], member["active"]) for name, member in members.items()
                }
                if states == expected and all(member["endpoints"] for member in members.values()):
                    return members
            return None

        found = wait.until(look, SECONDS, f"{task} sees {expected}")
        assert found is not None
        return found

    def kills(self, task: str, times: int = 1) -> None:
        """kill -9 of a task that has begun."""
        self.user.kills(self.begun(task, times)[0])

    def events(self, kind: str) -> list[str]:
        """What was recorded of that kind."""
        with RunReader(self.folder / "run.sqlite") as reader:
            return [row["text"] for row in reader.rows("events", "kind = ?", [kind])]

    def sees_event(self, kind: str, part: str) -> str:
        """The first event of that kind which says so."""
        found = wait.until(
            lambda: next((text for text in self.events(kind) if part in text), None),
            SECONDS,
            f"{kind}: {part}",
        )
        assert found is not None
        return found

    def ends(self, *states: str) -> dict[str, Any]:
        return self.user.sees_state("team", *states, run=self.run)

    def ended(self) -> dict[str, float]:
        """When each task ended, as it was recorded."""
        with RunReader(self.folder / "run.sqlite") as reader:
            return {row["id"].removeprefix("team/"): row["ended"] for row in reader.rows("tasks")}
