"""Scripts that import one of Headgate's libraries and never connect are told of."""

from __future__ import annotations

from tests.hub.user import User

SCRIPT = """
    import os, time
    try:
        import headgate.jax as hg
    except ImportError:
        hg = None
    print("epoch 1/2 loss 0.5", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
    print("epoch 2/2 loss 0.4", flush=True)
"""


COMMANDS = {
    "ignores": "python -E learns.py",
    "unset": "env -u HEADGATE_CHANNEL python learns.py",
    "without": "PYTHONPATH= python learns.py | cat",
}


def test_it_is_warned_of_at_its_end_and_checkpoint_says_so_meanwhile(user: User) -> None:
    user.write("learns.py", SCRIPT)
    lines = [f"  - {{name: {name}, run: '{command}'}}" for name, command in COMMANDS.items()]
    user.write("jobs.yaml", "\n".join(["jobs:", *lines]))
    run = user.detaches("jobs.yaml")
    for name in COMMANDS:
        user.sees_job(name, lambda job: job["loss"] is not None)
        refused = user.types("checkpoint", name, code=1).message
        assert refused.startswith(
            f"{name} imports one of Headgate's libraries and has not connected"
        )
    user.touch("go")
    for name in COMMANDS:
        user.sees_state(name, "done")
    warned = {
        warning["job"]
        for warning in user.json("status", run)["warnings"]
        if warning["text"].startswith("its script imports one of Headgate's libraries")
    }
    assert warned == {*COMMANDS}


def test_a_home_with_a_colon_is_refused(user: User) -> None:
    place = user.folder / "a:b"
    refused = user.types("run", "true", code=4, HEADGATE_HOME=str(place)).message
    assert f"the path {place} has a ':' in it" in refused
