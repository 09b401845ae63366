"""Scripts that import one of Headgate's libraries and never connect are told of."""

from __future__ import annotations

import pytest
from tests.hub.user import User

SCRIPT = """
    import os, time
    try:
        import headgate.torch as hg
    except ImportError:
        hg = None
    print("epoch 1/2 loss 0.5", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
    print("epoch 2/2 loss 0.4", flush=True)
"""


@pytest.mark.parametrize(
    "command",
    [
        "python -E learns.py",
        "env -u HEADGATE_CHANNEL python learns.py",
        "PYTHONPATH= python learns.py | cat",
    ],
)
def test_it_is_warned_of_at_its_end_and_checkpoint_says_so_meanwhile(
    command: str, user: User
) -> None:
    user.write("learns.py", SCRIPT)
    user.write("jobs.yaml", f"jobs: [{{name: learns, run: '{command}'}}]")
    run = user.detaches("jobs.yaml")
    user.sees_job("learns", lambda job: job["loss"] is not None)
    refused = user.types("checkpoint", code=1).message
    assert refused.startswith("learns imports one of Headgate's libraries and has not connected")
    user.touch("go")
    user.sees_state("learns", "done")
    told = [each["text"] for each in user.json("status", run)["warnings"]]
    assert [
        text for text in told if text.startswith("its script imports one of Headgate's libraries")
    ] != []


def test_a_home_with_a_colon_is_refused(user: User) -> None:
    place = user.folder / "a:b"
    refused = user.types("run", "true", code=4, HEADGATE_HOME=str(place)).message
    assert f"the path {place} has a ':' in it" in refused
