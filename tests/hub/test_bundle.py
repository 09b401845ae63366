"""A bundle for a bug report tells what happened, and neither who nor where."""

from __future__ import annotations

import os
import pwd
import socket
import tarfile
from pathlib import Path

import pytest
from tests.hub.user import User

TALKS = """
    import getpass, os, socket, sys
    print("I am", os.environ["USER"], "on", socket.gethostname(), "in", os.getcwd())
    print("given", sys.argv[1:], "and", os.environ["API_TOKEN"], "by", os.environ["HOME"])
    print("reads ~marie/data/set.csv and /srv/secret/lab.csv, from 10.23.45.67")
    raise ValueError(f"no {__file__} with {sys.argv[2]}")
"""
JOBS = """
    jobs:
      - name: talks
        script: confidential.py
        args: ["--customer=Initech Ltd", quarterly-figures]
        env: {API_TOKEN: hunter2hunter2}
      - name: shouts
        run: "echo quarterly-figures --password=opensesame"
"""


def _unpacked(bundle: Path) -> dict[str, str]:
    with tarfile.open(bundle) as archive:
        members = archive.getmembers()
        assert not any(member.uname or member.gname or member.uid for member in members)
        files = {member.name: archive.extractfile(member) for member in members}
        return {
            name.partition("/")[2]: file.read().decode() for name, file in files.items() if file
        }


def _run(user: User) -> Path:
    """The folder of a run that says all that is to be kept to oneself."""
    user.variables |= {"USER": "marie.curie", "LOGNAME": "marie.curie", "HOME": str(user.folder)}
    user.write("confidential.py", TALKS)
    user.write("jobs.yaml", JOBS)
    user.types("run", "jobs.yaml", code=1)
    (run,) = (user.home / "runs").iterdir()
    return run


def test_a_bundle_tells_neither_who_nor_where(user: User) -> None:
    run = _run(user)
    path = user.folder / user.types("report", run.name, "--bundle").stdout.strip()
    assert path.name == f"headgate-{run.name}.tar.gz"
    files = _unpacked(path)
    assert {*files} >= {
        "about.json",
        "events.jsonl",
        "happened.txt",
        "doctor.txt",
        "hub.txt",
        "logs/talks/worker-0.txt",
        "logs/shouts/worker-0.txt",
    }
    secrets = {
        str(user.folder),
        str(user.home),
        str(Path.home()),
        "marie",
        "curie",
        "confidential.py",
        "Initech",
        "quarterly",
        "hunter2",
        "opensesame",
        "/srv/secret",
        "10.23.45.67",
        *({pwd.getpwuid(os.geteuid()).pw_name} - {"root"}),
    }
    host = socket.gethostname()
    for name, text in files.items():
        assert not [secret for secret in secrets if secret in text], name
        assert host not in text.replace("-", " ").replace("/", " ").split(), name
    assert "ValueError: no path-" in files["logs/talks/worker-0.txt"]
    assert "talks failed" in files["happened.txt"]
    assert "I am user-" in files["logs/talks/worker-0.txt"]


@pytest.mark.slow
def test_the_events_of_a_bundle_can_be_replayed(user: User) -> None:
    run = _run(user)
    user.types("report", run.name, "--bundle", "fault.tar.gz")
    lines = _unpacked(user.folder / "fault.tar.gz")["events.jsonl"]
    (user.folder / "bundle.jsonl").write_text(lines)
    assert "the same" in user.types("replay", "bundle.jsonl").stdout


@pytest.mark.slow
def test_paths_stay_where_they_are_asked_for(user: User) -> None:
    run = _run(user)
    user.types("report", run.name, "--bundle", "all.tar.gz", "--with-paths")
    log = _unpacked(user.folder / "all.tar.gz")["logs/talks/worker-0.txt"]
    assert "quarterly-figures" in log
    assert str(user.folder) in log
    assert "expected a file *.tar.gz" in user.types("report", "--bundle", "x", code=2).message
