"""A hub that stood still, as on a machine that was paused, goes on where it was."""

from __future__ import annotations

import json
import os
import signal

from tests.hub.user import User

from headgate.model.reasons import ReasonKind
from headgate.recorded.reader import RunReader

COUNTS = """
    import os, time
    step, began = 0, time.monotonic()
    while not os.path.exists("go"):
        step += 1
        print(f"epoch 1 step {step} loss {1 + 5 / step:.5f}", flush=True)
        time.sleep(0.02)
        if os.path.exists("stopped") and not os.path.exists("waited"):
            until = time.monotonic() + 3
            while time.monotonic() < until:
                print(f"epoch 1 step {step} loss {1 + 5 / step:.5f}", flush=True)
                time.sleep(0.02)
            with open("waited", "w") as file:
                file.write("three seconds")
"""


def test_a_hub_that_is_stopped_for_three_seconds_goes_on(user: User) -> None:
    user.write("a.py", COUNTS)
    run = user.detaches("a.py", "--policy", "flowcon:itval=1")
    user.sees_state("a", "running", run=run)
    hub = user.traces.hub()
    assert hub is not None
    os.kill(hub, signal.SIGSTOP)
    try:
        user.touch("stopped")
        user.sees("waited")
    finally:
        os.kill(hub, signal.SIGCONT)
    later = user.detaches("a.py")
    user.sees_state("a", "running", run=later)
    assert user.traces.hub() == hub
    user.touch("go")
    for each in (run, later):
        assert user.sees_state("a", "done", run=each)["attempt"] == 1
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        troubles = [row for row in reader.rows("events") if row["kind"] in ("fault", "warning")]
        kinds = {json.loads(row["why"])["kind"] for row in troubles}
        assert kinds <= {ReasonKind.KILLED_OUTSIDE}, "others on this machine may be killed"
        assert max(
            row["cpu_cores"] for row in reader.rows("usage") if row["cpu_cores"] is not None
        ) < 2 * (os.cpu_count() or 1)
