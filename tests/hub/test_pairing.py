"""On a real hub, the job that goes best beside those that run starts before one that came
earlier.
"""

from __future__ import annotations

import json

import psutil
from tests.hub.user import User

WAITS = "until test -e {}; do sleep 0.05; done"


def test_of_three_jobs_of_which_two_fit_those_start_that_go_best_side_by_side(user: User) -> None:
    keeps = {"cnn": 0.61, "mlp": 0.61, "vae": 0.93}  # beside vae everybody keeps more
    table = {
        job: {"null": 2.0} | {other: [2.0 * max(keeps[job], keeps[other])] * 2 for other in keeps}
        for job in keeps
    }
    (user.home / "pairs.json").write_text(json.dumps({"": table}))
    # two leave a fifth for what others take meanwhile
    most = psutil.virtual_memory().available * 4 // 10
    jobs = [{"name": name, "run": WAITS.format(name), "limits": {"memory": most}} for name in keeps]
    user.write("jobs.yaml", json.dumps({"jobs": jobs}))
    run = user.detaches("jobs.yaml")
    user.sees_state("cnn", "running", run=run)
    user.sees_state("vae", "running", run=run)
    told = user.jobs(run)
    why = (
        "started before mlp, for it goes better beside cnn: each keeps 0.93 of its rate on "
        "average, not 0.61"
    )
    assert (told["vae"]["reason"], told["mlp"]["state"]) == (why, "waiting")
    assert why in user.types("status", run).stdout
    user.touch("vae")
    user.sees_state("mlp", "running", run=run)
    [explained] = user.json("explain", run, "mlp")["jobs"]
    [waited] = [finding for finding in explained["findings"] if finding["kind"] == "waiting"]
    assert "vae went better beside those that ran, and started first" in waited["why"]
    user.touch("cnn")
    user.touch("mlp")
    for name in keeps:
        user.sees_state(name, "done", run=run)
