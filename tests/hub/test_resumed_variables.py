"""`headgate resume` from another terminal: the variables and the interpreter of the first
submission hold.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.hub.user import User

from headgate.scripts import variables

SHOWS = """
    import os, sys
    print(sys.executable, *map(os.environ.get, ["LR", "ONLY_HERE", "MY_TOKEN"]))
    sys.exit(not os.path.exists("ends"))
"""


def test_variables_and_interpreter_are_those_of_the_first_submission(
    user: User, tmp_path: Path
) -> None:
    user.write("shows.py", SHOWS)
    other = tmp_path / "other"
    other.mkdir()
    (other / "python").symlink_to(
        "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    )
    python = Path(sys.executable).parent / "python"
    user.types("run", "shows.py", "--env", "ONLY_HERE=1", LR="0.1", MY_TOKEN="t0ken", code=1)
    first = user.json("ps")[-1]["id"]
    assert user.log("shows") == f"{python} 0.1 1 t0ken\n"
    path = f"{other}:{user.variables['PATH']}"
    resumed = user.types("resume", "--from-scratch", LR="0.5", MY_TOKEN="new", PATH=path, code=1)
    assert user.log("shows") == f"{python} 0.1 1 t0ken\n"
    assert "\n  LR: '0.1', here '0.5'\n" in resumed.stderr
    assert f"Python of shows: {python}, here {other / 'python'}\n" in resumed.stderr
    assert "MY_TOKEN: (not shown), here another (not shown)" in resumed.stderr
    assert "t0ken" not in resumed.stderr
    user.touch("ends")
    told = user.types(
        "resume", "--from-scratch", "--env", "LR", "--env", "ONLY_HERE=2", LR="0.5"
    ).stderr
    assert user.log("shows") == f"{python} 0.5 2 t0ken\n"
    assert "LR" not in told
    last = user.json("ps")[-1]["id"]
    kept = variables.read(user.home / "runs" / last)
    assert kept is not None
    # every job is done: nobody goes on with it
    assert (kept["LR"], kept["MY_TOKEN"]) == ("0.1", None)
    [job] = user.json("compare", first, last)["jobs"]
    assert {"what": "variable LR", "first": "not set", "second": "'0.5'"} in job["differs"]
    user.types("run", "shows.py", LR="7")
    differs = user.json("compare", last, user.json("ps")[-1]["id"])["differs"]
    assert {"what": "variable LR", "first": "'0.1'", "second": "'7'"} in differs
    said = user.types("resume", first, "--env", "NOT_SET_HERE", code=2).message
    assert "which is not set in this terminal; give its value: --env NOT_SET_HERE=VALUE" in said
