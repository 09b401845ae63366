"""What is left of containers that could not be removed at once: kept in mind, and removed before
others start.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headgate.isolation.container import isolation as isolation_module
from headgate.isolation.container import watch as watch_module
from headgate.isolation.container.daemon import TOKEN, Daemon
from headgate.isolation.container.isolation import FOLDERS, OWNER, ContainerIsolation
from headgate.isolation.container.parents import Parent
from headgate.isolation.container.watch import ContainerWatch
from headgate.model.errors import IsolationError

SECONDS = 30.0
DEAD = f"{os.geteuid()}:another boot:1:0"
"""A process that is gone, as the label of what it started."""


class Containers:
    """What a daemon lists, removes and refuses, by id."""

    def __init__(self) -> None:
        self.labels: dict[str, Mapping[str, str]] = {}
        self.refusals = 0
        """How many questions are still refused."""
        self.asked: Callable[[str], None] = lambda label: None

    def find(self, label: str) -> list[Mapping[str, str]]:
        self.asked(label)
        self._refuse()
        name, _, value = label.partition("=")
        return [
            {**each, "id": id} for id, each in self.labels.items() if value in ("", each.get(name))
        ]

    def remove(self, id: str) -> None:
        self._refuse()
        self.labels.pop(id, None)

    def _refuse(self) -> None:
        if self.refusals > 0:
            self.refusals -= 1
            raise IsolationError("not now")


@pytest.fixture
def containers(monkeypatch: pytest.MonkeyPatch) -> Containers:
    found = Containers()
    monkeypatch.setattr(Daemon, "find", found.find)
    monkeypatch.setattr(Daemon, "remove", found.remove)
    return found


def test_what_a_dead_process_left_goes_with_the_cgroups_that_docker_knows_nothing_of(
    daemon: str, containers: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation_module, "CGROUPS", tmp_path)
    (tmp_path / "group" / "task" / "one").mkdir(parents=True)
    made = f"{tmp_path}/group/task\n{tmp_path}/group"
    containers.labels["one"] = {OWNER: DEAD, TOKEN: "a", FOLDERS: made}
    ContainerIsolation("g", daemon=daemon).check()
    assert containers.labels == {}
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_listed_or_removed_at_first_is_tried_again(
    daemon: str, containers: Containers
) -> None:
    isolation = ContainerIsolation("g", daemon=daemon)
    containers.labels |= {id: {OWNER: DEAD, TOKEN: id} for id in ("one", "two")}
    containers.refusals = 1
    with pytest.raises(IsolationError, match="not now"):
        isolation.check()
    asked = list[str]()

    def refuse_once(label: str) -> None:
        containers.refusals = int(label == f"{TOKEN}=one" and label not in asked)
        asked.append(label)

    containers.asked = refuse_once
    isolation.check()
    assert containers.labels == {}


def test_what_a_start_named_first_is_removed_though_it_is_named_again(
    daemon: str, containers: Containers
) -> None:
    docker, removed = Daemon(daemon), list[str]()
    containers.refusals = 2
    docker.clear("a", lambda: removed.append("all its folders"))
    docker.clear("a", lambda: removed.append("those of the task"))
    removed.clear()
    docker.await_answer(threading.Event())
    assert removed == ["all its folders"]


def test_a_start_finds_no_folder_that_another_one_is_removing(
    daemon: str, containers: Containers
) -> None:
    docker, removed = Daemon(daemon), list[str]()
    containers.refusals = 2
    for token in ("a", "b"):
        docker.clear(token, lambda: removed.append("its folder"))
    removed.clear()
    found = list[int]()

    def starts() -> None:
        docker.await_answer(threading.Event())
        found.append(len(removed))

    others = threading.Thread(target=starts)

    def hold(label: str) -> None:
        if label == f"{TOKEN}=a":
            others.start()
            others.join(0.2)  # it would be through by then

    containers.asked = hold
    starts()
    others.join(SECONDS)
    assert found == [2, 2]


def test_one_that_is_away_again_is_not_asked_for_each(daemon: str, containers: Containers) -> None:
    docker, asked = Daemon(daemon), list[str]()
    containers.refusals = 3
    for token in ("a", "b"):
        docker.clear(token, lambda: None)
    containers.asked = asked.append
    docker.await_answer(threading.Event())
    assert asked == [f"{TOKEN}=a"]
    docker.await_answer(threading.Event())
    assert asked[1:] == [f"{TOKEN}=b", f"{TOKEN}=a"]


def test_a_folder_that_goes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, folder = Path.mkdir, tmp_path / "group"
    folder.mkdir()

    def goes(path: Path, *args: object, **kwargs: object) -> None:
        if folder.exists():
            folder.rmdir()
            raise FileExistsError(path)
        make(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", goes)
    Parent(own=[folder]).make()
    assert folder.is_dir()


def test_a_watch_ends_though_its_task_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "LOOK_MILLISECONDS", 10)
    with subprocess.Popen(["sleep", "1000"]) as stays:
        stream, printer = os.pipe()
        ended = list[bool]()
        output, pidfd = os.open(os.devnull, os.O_WRONLY), os.pidfd_open(stays.pid)
        watch = ContainerWatch("t", stream, output, pidfd, lambda: None, ended.append, lambda: None)
        closing = threading.Thread(target=watch.close, daemon=True)
        closing.start()
        closing.join(60)
        stays.kill()
        assert not closing.is_alive()
        assert ended == [False]
        os.close(printer)
