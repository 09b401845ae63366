"""What jobs leave, and what changes under them, is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.hub.user import User

from headgate.sampling.shared_memory import FOLDER

FAILS_ONCE = """
    import os, pathlib, sys
    print("first" if not os.path.exists("again") else "second", flush=True)
    if not os.path.exists("again"):
        pathlib.Path("again").touch()
        pathlib.Path(__file__).write_text("print('edited')")
        sys.exit(1)
"""
IMPORTS = """
    import model
"""


def test_a_script_that_is_edited_between_two_attempts_is_warned_of(user: User) -> None:
    user.write("a.py", FAILS_ONCE)
    user.types("run", str(user.write("a.yaml", "jobs: [{script: a.py, retries: 1}]")))
    assert user.log("a").splitlines() == ["first", "edited"]
    [warning] = user.warnings()
    assert warning.startswith("a.py was edited since its last start: it runs as it is now")


@pytest.mark.slow
def test_a_script_that_is_edited_while_its_job_waits_is_warned_of(user: User) -> None:
    user.write("edits.py", "import pathlib\npathlib.Path('b.py').write_text('print(\"new\")')")
    user.write("b.py", "print('old')")
    jobs = (
        "jobs: [{script: edits.py}, {script: b.py, after: edits}, {name: c, script: "
        "edits.py, after: b}]"
    )
    user.types("run", str(user.write("jobs.yaml", jobs)))
    assert user.log("b") == "new\n"
    [warning] = user.warnings()
    assert warning.startswith("b.py was edited since the job was submitted: ")


@pytest.mark.slow
def test_modules_and_settings_that_are_edited_between_two_attempts_are_named(user: User) -> None:
    edits = (
        "pathlib.Path('model.py').write_text('size = 2'); "
        "pathlib.Path('conf.yaml').write_text('lr: 2')"
    )
    user.write(
        "a.py",
        FAILS_ONCE.replace("pathlib.Path(__file__).write_text(\"print('edited')\")", edits)
        + IMPORTS,
    )
    user.write("model.py", "size = 1")
    user.write("conf.yaml", "lr: 1")
    user.types(
        "run",
        str(
            user.write("a.yaml", "jobs: [{script: a.py, args: [--config, conf.yaml], retries: 1}]")
        ),
    )
    [warning] = user.warnings()
    assert warning.startswith(
        "conf.yaml, model.py were edited since its last start: it runs as it is now"
    )


@pytest.mark.skipif(not FOLDER.is_dir(), reason="this machine has no /dev/shm")
def test_shared_memory_that_a_job_leaves_is_told_of_and_how_to_remove_it(user: User) -> None:
    name = f"headgate-test-{os.getpid()}"
    user.write("a.py", f"open('/dev/shm/{name}', 'wb').write(b'x' * 100_000)")
    try:
        out = user.types("run", "a.py").stdout
    finally:
        Path(FOLDER / name).unlink()
    [told] = [line for line in out.splitlines() if "left in /dev/shm: " in line]
    assert name in told and "KiB of memory" in told
    assert f"/dev/shm/{name}" in told.partition("`rm ")[2]


def test_a_job_with_a_folder_of_its_own_is_told_that_one_as_the_present_one(user: User) -> None:
    (user.folder / "deep").mkdir()
    user.write(
        "deep/a.py", "import os\nprint(os.environ['PWD'], os.environ.get('OLDPWD'), os.getcwd())"
    )
    user.types("run", str(user.write("a.yaml", "jobs: [{script: a.py, workdir: deep}]")))
    deep = str(user.folder / "deep")
    assert user.log("a").split() == [deep, "None", deep]


def test_the_peak_of_a_small_program_is_not_that_of_the_hub_that_started_it(user: User) -> None:
    """The first program of a hub, which still grows as it starts it."""
    user.types("run", "sleep", "0.2")
    [job] = user.json("report")["jobs"]
    assert job["memory_peak_bytes"] is None or job["memory_peak_bytes"] < 20 << 20
