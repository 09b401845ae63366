"""Jobs whose user's environment allows some of the GPUs, on a made-up machine with four."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.hub.user import User
from tests.sampling import made_up

from headgate.recorded.reader import RunReader

SAYS = """
import os, time
names = "CUDA_VISIBLE_DEVICES", "HEADGATE_GPUS", "CUDA_DEVICE_ORDER"
print("sees", [os.environ.get(name) for name in names])
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@pytest.fixture
def on_gpus(user: User) -> User:
    folder = Path(next(iter(made_up.__path__)))
    user.variables["PYTHONPATH"] = os.pathsep.join([str(folder), user.variables["PYTHONPATH"]])
    user.write("says.py", SAYS)
    return user


def seen(user: User, stated: str | None, jobs: list[str]) -> dict[str, str]:
    """What jobs that run beside each other see where `CUDA_VISIBLE_DEVICES` is so, by name.

    Their memory is stated: else all wait until that of the first is seen. So is their number: else
    what is more than four a core waits for idle cores.
    """
    user.variables.pop("CUDA_VISIBLE_DEVICES", None)
    if stated is not None:
        user.variables["CUDA_VISIBLE_DEVICES"] = stated
    names = [f"{name}{len(list(user.folder.glob('*.yaml')))}" for name in "abc"[: len(jobs)]]
    listed = ", ".join(
        f"{{name: {name}, script: says.py, {job}}}" for name, job in zip(names, jobs)
    )
    user.write(f"jobs-{names[0]}.yaml", f"at_once: 50\njobs: [{listed}]")
    run = user.detaches(f"jobs-{names[0]}.yaml")
    for name in names:
        user.sees_state(name, "running", run=run)
    logs = user.home / "runs" / run / "jobs"
    return {name[0]: user.sees(str(logs / name / "worker-0.log")).strip() for name in names}


def test_a_job_is_given_of_those_that_its_user_s_environment_allows(on_gpus: User) -> None:
    one = "limits: {memory: 100MiB, gpus: 1, gpu_memory: 1GiB}"
    none = "limits: {memory: 100MiB, gpus: 0}"
    any_ = "limits: {memory: 100MiB}, priority: 1"
    assert seen(on_gpus, "2,1", [one, one]) == {
        "a": "sees ['2', None, None]",
        "b": "sees ['1', None, None]",
    }
    # Another terminal, which joins the hub of the first: what that allowed counts for nothing here.
    assert seen(on_gpus, "0", [one, one]) == dict.fromkeys("ab", "sees ['0', None, None]")
    two = one.replace("gpus: 1", "gpus: 2")
    told = seen(on_gpus, "GPU-2,GPU-0", [two, one, any_])
    both = "sees ['GPU-2,GPU-0', '2,0', None]"
    assert told["a"] == both
    assert told["c"] in (both, "sees ['GPU-0,GPU-2', '0,2', None]")
    assert told["b"] in ("sees ['GPU-2', '2', None]", "sees ['GPU-0', '0', None]")
    assert seen(on_gpus, "MIG-31bb", [one]) == {"a": "sees ['MIG-31bb', '401', None]"}
    assert seen(on_gpus, "", [none, any_]) == dict.fromkeys("ab", "sees ['', None, None]")
    own = f"{one}, env: {{CUDA_VISIBLE_DEVICES: '1'}}"
    assert seen(on_gpus, "2", [own]) == {"a": "sees ['1', None, None]"}
    # Nothing said: that which the fewest use, by the number that NVML counts with.
    free = seen(on_gpus, None, [none, one, any_])
    assert free["a"] == "sees ['', None, 'PCI_BUS_ID']"
    assert free["b"] == "sees ['MIG-30bb', '400', 'PCI_BUS_ID']"
    assert free["c"].count(",") == 6  # it sees all five, the one that it is to use first
    on_gpus.touch("go")
    on_gpus.write("jobs.yaml", "jobs: [{name: two, script: says.py, limits: {gpus: 2}}]")
    refused = on_gpus.types("run", "jobs.yaml", code=2, CUDA_VISIBLE_DEVICES="1,-1,0").message
    assert refused.startswith("job 'two' fits on no node: ")
    assert "has 1 GPU," in refused


def test_what_is_allowed_is_what_there_is(on_gpus: User) -> None:
    on_gpus.variables["CUDA_VISIBLE_DEVICES"] = "1,2"
    survey = on_gpus.json("doctor")["survey"]
    assert [gpu["name"] for gpu in survey["node"]["gpus"]] == ["H1", "H2"]
    assert [(gpu["busy"], gpu["used_bytes"]) for gpu in survey["gpus"]] == [
        (0.8, 1 << 30),
        (0.1, 2 << 30),
    ]
    told = on_gpus.types("doctor").stdout
    assert "1: H1, 80 GiB, 80 % busy, 1 GiB in use" in told
    assert "number 1, 2 of 5 on this machine may be used (CUDA_VISIBLE_DEVICES=1,2)" in told
    on_gpus.write("jobs.yaml", "jobs: [{script: says.py, limits: {gpus: 1}}]")
    [planned] = on_gpus.json("run", "jobs.yaml", "--dry-run")
    assert planned["env"]["CUDA_VISIBLE_DEVICES"] == "1"
    run = on_gpus.detaches("jobs.yaml")
    on_gpus.variables["CUDA_VISIBLE_DEVICES"] = "0"
    other = on_gpus.detaches("jobs.yaml")
    for each in (run, other):
        on_gpus.sees_job(
            "says", lambda job: job["cpu_cores"] is not None, run=each, what="is measured"
        )
    on_gpus.touch("go")
    for each, busy in ((run, 0.45), (other, 0.9)):
        on_gpus.sees_state("says", "done", run=each)
        with RunReader(on_gpus.home / "runs" / each / "run.sqlite") as reader:
            rows = reader.query(
                "SELECT gpu_busy FROM usage WHERE target LIKE 'node:%' AND gpu_busy IS NOT NULL"
            )
        assert rows
        assert all(row["gpu_busy"] == pytest.approx(busy) for row in rows)


def test_a_gpu_that_is_not_there_is_told_of_once(on_gpus: User) -> None:
    on_gpus.touch("go")
    on_gpus.write("jobs.yaml", "jobs: [{name: a, script: says.py}, {name: b, script: says.py}]")
    on_gpus.variables["CUDA_VISIBLE_DEVICES"] = "0,9"
    missing = "CUDA_VISIBLE_DEVICES=0,9: GPU 9 is no GPU of this machine"
    assert missing in on_gpus.types("doctor").stdout
    on_gpus.types("run", "jobs.yaml")
    [run] = (on_gpus.home / "runs").iterdir()
    with RunReader(run / "run.sqlite") as reader:
        told = [row["text"] for row in reader.rows("events") if row["kind"] == "warning"]
    assert sum(text.startswith(missing) for text in told) == 1
