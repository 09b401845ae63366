"""Studies of tiny scripts, measured by a hub: what is kept, gone on with, refused and told."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

from headgate.isolation.vm import machines, probe
from headgate.model.errors import InvalidFileError, IsolationError, UsageError
from headgate.studies import grid, studyfile
from headgate.testing import wait

PACED = """
    import sys, time
    pause, steps = float(sys.argv[1]), int(sys.argv[2])
    due = time.monotonic()
    for step in range(1, steps + 1):
        due += pause
        time.sleep(max(due - time.monotonic(), 0.0))
        print(f"step {step} loss {1 / step:.4f}", flush=True)
"""
"""Steps of a length that is kept, whatever else the machine does meanwhile."""


def write(user: User, text: str, name: str = "paced.yaml") -> str:
    user.write("paced.py", PACED)
    user.write(name, text)
    return name


def kept(user: User) -> list[dict[str, Any]]:
    """What all studies have measured, the oldest first."""
    files = sorted((user.home / "studies").glob("*/results.jsonl"))
    return [
        json.loads(line)
        for file in files
        for line in file.read_text().splitlines()
        if line.endswith("}")
    ]


def labs(user: User) -> list[str]:
    """Labs of their home, half made ones too."""
    return [entry.parent.name for entry in (user.home / "labs").glob("*/state.json")]


@pytest.mark.long
def test_a_step_that_is_a_quarter_longer_is_found_and_the_interval_holds_it(user: User) -> None:
    study = """
        workloads: [{name: paced, script: paced.py, args: ["{batch}", "30"]}]
        vary: {batch: ["0.02", "0.025"]}
        warm: 3
    """
    [step] = [
        each
        for each in user.json("study", write(user, study))["effects"]
        if each["metric"] == "step"
    ]
    assert step["change"] == "slower", step
    assert step["ratio"]["low"] * 0.99 <= 1.25 <= step["ratio"]["high"] * 1.01


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on_where_it_was(user: User) -> None:
    file = write(
        user,
        """
        workloads: [{name: paced, script: paced.py, args: ["0.02", "50"]}]
        vary: {args: ["1", "2"]}
        repetitions: 1
        """,
    )
    process = user.starts("study", file, "--quick")
    runs = user.home / "runs"
    _, second = wait.until(lambda: sorted(runs.glob("*"))[1:2] and sorted(runs.glob("*")), SECONDS)
    user.sees_job("paced", lambda job: bool(job["step"]), second.name, "runs in a second cell")
    assert len(kept(user)) >= 1
    process.kill()
    process.communicate()
    told = user.json("study", file, "--quick", "--resume")
    found = [(each["key"], each["block"], each["attempt"]) for each in kept(user)]
    assert len(found) == len(set(found)) == 3
    assert all(len(cell["figures"]) == 1 for cell in told["cells"])
    assert (
        len({each["figures"]["run"] for each in kept(user)})
        == len(list((user.home / "runs").iterdir()))
        == 3
    )
    assert user.json("study", "show")["cells"] == told["cells"]
    assert user.json("study", "compare", told["study"], told["study"])["only"] == []


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None,
    reason="a lab needs root, and the programs ip and tc",
)
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_a_study_that_is_ended_takes_its_lab_along(number: signal.Signals, user: User) -> None:
    user.write("lab.yaml", "lab: true\nnodes: [{name: a, cores: 1, memory: 1GiB}]\n")
    study = (
        'workloads: [{name: paced, script: paced.py, args: ["0.02", "100000"]}]\ncluster: '
        "lab.yaml\n"
    )
    process = user.starts("study", write(user, study))
    user.sees_job("paced", lambda job: bool(job["step"]), what="steps")
    [lab] = labs(user)
    process.send_signal(number)
    assert process.wait(60) == (130 if number == signal.SIGTERM else -number)
    wait.until(lambda: labs(user) == [], 60, "no lab is left")
    assert not any(lab in folder.name for folder in Path("/sys/fs/cgroup").glob("*/*"))


@pytest.mark.slow
def test_a_cell_that_always_fails_is_told_the_rest_goes_on_and_it_is_tried_again(
    user: User,
) -> None:
    user.write(
        "broken.py",
        (
            "import os, sys\nif not os.path.exists('mended'): "
            "sys.exit(3)\nexec(open('paced.py').read())"
        ),
    )
    file = write(
        user,
        """
        workloads:
          - {name: broken, script: broken.py, args: ["0.01", "30"]}
          - {name: paced, script: paced.py, args: ["0.01", "30"]}
        repetitions: 1
        """,
    )
    told = user.json("study", file, "--quick", code=1)
    assert {cell["state"] for cell in told["cells"] if cell["workloads"] == ["paced"]} == {
        "measured"
    }
    assert (
        "broken solo and 1 other cell: failed: broken ended as failed: exit code 3."
        in told["notes"]
    )
    user.touch("mended")
    again = user.json("study", file, "--quick", "--resume")
    assert all(cell["state"] == "measured" for cell in again["cells"])
    assert [each["state"] for each in kept(user)].count("measured") == 4


@pytest.mark.long  # that cells are measured again: a killed one
@pytest.mark.slow
def test_on_a_machine_that_changed_a_study_is_measured_anew_and_says_so(user: User) -> None:
    file = write(
        user, 'workloads: [{name: paced, script: paced.py, args: ["0.01", "30"]}]\nrepetitions: 1'
    )
    user.json("study", file, "--quick")
    [folder] = (user.home / "studies").glob("paced-*")
    for name in ("about.json", "results.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace('"CPUs": "', '"CPUs": "9'))
    told = user.json("study", file, "--quick", "--resume")
    assert told["apart"] == 2
    assert any(
        "This machine has changed since the study began: CPUs 9" in note for note in told["notes"]
    )
    assert len({each["figures"]["run"] for each in kept(user)}) == len(kept(user)) == 4


@pytest.mark.slow
def test_a_background_is_ended_with_what_it_slows_and_one_that_ends_too_early_is_told(
    user: User,
) -> None:
    study = """
        workloads: [{{name: paced, script: paced.py, args: ["0.02", "40"]}}]
        scenarios: [shared]
        background: [{{name: hog, run: "{command}"}}]
        repetitions: 1
    """
    told = user.json(
        "study",
        write(user, study.format(command="sleep 1; exec python paced.py 0.02 9999"), "long.yaml"),
        "--quick",
    )
    assert all(len(cell["figures"]) == 1 for cell in told["cells"])
    told = user.json(
        "study",
        write(user, study.format(command="exec python paced.py 0.02 5"), "short.yaml"),
        "--quick",
        code=1,
    )
    assert all("background-hog ended too early" in cell["reason"] for cell in told["cells"])


@pytest.mark.slow
def test_what_this_machine_cannot_do_is_a_cell_that_was_not_measured(user: User) -> None:
    file = write(
        user,
        """
        workloads: [{name: paced, script: paced.py, args: ["0.01", "30"]}]
        vary: {isolation: [process, container]}
        repetitions: 1
        """,
    )
    user.variables["DOCKER_HOST"] = "unix:///nonexistent.sock"
    told = user.json("study", file, "--quick")
    [refused] = [cell for cell in told["cells"] if ["isolation", "container"] in cell["values"]]
    assert refused["state"] == "not measured" and "Docker" in refused["reason"]


BAD = {
    "vary: {colour: [red]}": (
        "unknown key 'colour'; expected one of args, batch, cores, data, disk, framework"
    ),
    "vary: {isolaton: [process]}": "did you mean 'isolation'",
    "vary: {batch: ['8']}": "write {batch} into its `args`",
    "vary: {nic: [1Gbit]}": "found no `cluster`",
    "vary: {strategy: [gossip]}": "expected one of allreduce, ps, async",
    "vary: {cores: ['1', '1']}": "a value is given twice",
    "scenarios: [shared]": "found `shared` without a `background`",
    "scenarios: [simultaneous]": "found `simultaneous` with one workload",
    "background: [{workload: alexnot}]": (
        "unknown workload 'alexnot'; expected one of alexnet, resnet50"
    ),
    "background: [{name: b}]": "or one of these as `workload`: alexnet, resnet50",
    (
        "background: [{workload: alexnet, framework: spark}]"
    ): "not written in spark; expected torch, keras",
    "vary: {isolation: [procces]}": "did you mean 'process'",
    "vary: {isolation: [container+overlay]}": "found no `cluster`",
    "skip: [{nic: [1Gbit]}]": "nothing varies nic",
    "skip: [{workload: [other]}]": "expected one of paced",
    "mitigate: true": "found no scenario `simultaneous`",
    "repetitions: 0": "greater than or equal to 1",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_told_with_what_to_write(line: str, tmp_path: Path) -> None:
    (tmp_path / "paced.py").write_text("")
    (tmp_path / "bad.yaml").write_text(f"workloads: [{{name: paced, script: paced.py}}]\n{line}\n")
    with pytest.raises(InvalidFileError) as error:
        studyfile.load(str(tmp_path / "bad.yaml"))
    assert BAD[line] in str(error.value)
    assert "line 2" in str(error.value)


def study(tmp_path: Path, text: str) -> studyfile.Study:
    (tmp_path / "paced.py").write_text("")
    (tmp_path / "made.yaml").write_text(text)
    return studyfile.load(str(tmp_path / "made.yaml"))


def test_a_study_over_its_budget_is_refused_with_what_to_cut(tmp_path: Path) -> None:
    made = study(
        tmp_path,
        """
workloads: [{name: paced, script: paced.py, takes: 10s}]
vary: {cores: ["1", "2", "3"], args: ["a", "b"]}
repetitions: 5
budget: 4m
""",
    )
    planned = grid.planned_time(made, 5, {})
    assert planned.total == (3 * 2 + 1) * 5 * 10
    with pytest.raises(
        UsageError,
        match=r"5 min 50 s.*budget is 4 min 0 s: cut `args` \(2 values\) to one: .* 3 min 20 s",
    ):
        grid.check_budget(made, planned)
    grid.check_budget(made, grid.planned_time(made, 5, {"paced": 5.0}))


def test_cells_are_known_by_all_that_they_run(tmp_path: Path) -> None:
    text = "workloads: [{name: paced, script: paced.py}]\nvary: {cores: ['1', '2']}\nseed: %d\n"
    made = study(tmp_path, text % 1)
    keys = [grid.cell_run(made, cell).key for cell in grid.cells(made)]
    assert len(set(keys)) == 3
    assert keys == [grid.cell_run(made, cell).key for cell in grid.cells(study(tmp_path, text % 2))]
    (tmp_path / "paced.py").write_text("print()")
    assert not set(keys) & {grid.cell_run(made, cell).key for cell in grid.cells(made)}


def test_jobs_at_once_are_measured_alone_and_on_their_part_of_the_cores_too(tmp_path: Path) -> None:
    text = (
        "workloads: [{name: a, script: paced.py}, {name: b, script: paced.py}]\nscenarios: "
        "[simultaneous]\n"
    )
    made = study(tmp_path, text)
    found = [cell.name for cell in grid.cells(made) if not cell.is_repeat]
    assert found == ["a solo", "b solo", "a slice", "b slice", "a + b simultaneous"]
    [sliced, *_] = [cell for cell in grid.cells(made) if cell.scenario == "slice"]
    [job] = grid.cell_run(made, sliced).measured
    assert job.limits.cores == grid._cores(made) / 2


def test_values_of_axes_reach_workloads_plans_and_the_lab(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(
        "lab: true\nnodes: [{name: a, cores: 1, memory: 1GiB, nic: 1Gbit}]\n"
    )
    text = """
workloads: [{workload: alexnet, steps: 5}, {name: own, script: paced.py, args: ["{batch}"]}]
scenarios: [distributed]
cluster: lab.yaml
vary: {batch: ["8", "16"], strategy: [allreduce, async], nic: [none, 200Mbit]}
"""
    made = study(tmp_path, text)
    last = [
        cell
        for cell in grid.cells(made)
        if cell.values == (("batch", "16"), ("strategy", "async"), ("nic", "200Mbit"))
    ]
    theirs, own = (grid.cell_run(made, cell) for cell in last)
    [job] = theirs.measured
    assert isinstance(job.run, tuple) and job.run[-2:] == ("--batch", "16")
    assert job.plan is not None and job.plan.servers == 1 and not job.plan.synchronous
    assert own.measured[0].args == ("16",)
    assert own.lab is not None and "nic: 200Mbit" in own.lab
    first = grid.cell_run(made, grid.cells(made)[0])
    assert first.lab is not None and "nic" not in first.lab


@pytest.mark.parametrize("name", studyfile.bundled())
def test_a_study_that_comes_with_headgate_is_planned_to_take_at_most_ten_minutes(name: str) -> None:
    made = studyfile.load(studyfile.path_of(name))
    planned = grid.planned_time(made, made.repetitions, {})
    assert planned.repetitions == 5 and not planned.guessed
    assert planned.total <= 600


def test_a_study_that_comes_with_headgate_can_be_printed_and_changed(user: User) -> None:
    user.write("mine.yaml", user.types("study", "isolation", "--print").stdout)
    theirs, mine = (
        studyfile.load(path)
        for path in (studyfile.path_of("isolation"), str(user.folder / "mine.yaml"))
    )
    assert grid.cells(theirs) == grid.cells(mine)


def test_a_study_that_there_is_not_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'isolation'"):
        studyfile.path_of("isolaton")
    assert studyfile.path_of("there/isolation.yaml") == "there/isolation.yaml"


def test_what_is_to_be_skipped_is_no_cell(tmp_path: Path) -> None:
    text = """
workloads: [{name: a, script: paced.py}, {name: b, script: paced.py}]
scenarios: [solo, distributed]
vary: {cores: ["1", "2"], args: ["x", "y"]}
skip: [{cores: ["2"], args: ["y"]}, {scenario: [distributed], workload: [b]}]
"""
    made = study(tmp_path, text)
    found = {cell.name for cell in grid.cells(made) if not cell.is_repeat}
    assert len(found) == 2 * 3 + 3
    assert "a solo, cores 2, args y" not in found
    assert not any(name.startswith("b distributed") for name in found)


def test_a_mitigation_is_tried_with_jobs_at_once_alone(tmp_path: Path) -> None:
    text = """
workloads: [{name: a, script: paced.py}, {name: b, script: paced.py, limits: {cores: 0.5}}]
scenarios: [simultaneous]
policy: none
mitigate: true
"""
    made = study(tmp_path, text)
    part = grid._cores(made) / 2
    at_once = [
        cell for cell in grid.cells(made) if cell.scenario == "simultaneous" and not cell.is_repeat
    ]
    none, cores, threads, policy = (grid.cell_run(made, cell) for cell in at_once)
    assert [job.limits.cores for job in none.measured] == [None, 0.5]
    assert [job.limits.cores for job in cores.measured] == [part, 0.5]
    assert threads.measured[0].env["OMP_NUM_THREADS"] == str(int(part))
    assert [each.policy for each in (none, cores, threads, policy)] == [
        "none",
        "none",
        "none",
        "equal",
    ]
    assert not any(cell.values for cell in grid.cells(made) if cell.scenario != "simultaneous")


def test_an_overlay_is_part_of_an_isolation_and_a_virtual_machine_without_kvm_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab.yaml").write_text("lab: true\nnodes: [{name: a, cores: 1, memory: 1GiB}]\n")
    text = """
workloads: [{name: paced, script: paced.py, takes: 10s}]
cluster: lab.yaml
vary: {isolation: [process, container+overlay, vm, vm+container]}
repetitions: 1
"""
    made = study(tmp_path, text)
    plain, overlaid, *virtual, _ = grid.cells(made)
    run = grid.cell_run(made, overlaid)
    assert run.measured[0].isolation == "container"
    assert run.lab is not None and "overlay: vxlan" in run.lab
    assert "overlay" not in (grid.cell_run(made, plain).lab or "")

    def no_kvm() -> None:
        raise IsolationError("no KVM on this machine: there is no /dev/kvm")

    monkeypatch.setattr(probe, "accelerated", no_kvm)
    monkeypatch.setenv(machines.EMULATION, "uml")
    assert [dict(cell.values)["isolation"] for cell in virtual] == ["vm", "vm+container"]
    for cell in virtual:
        with pytest.raises(
            UsageError, match="guests: no KVM on this machine: there is no /dev/kvm"
        ):
            grid.cell_run(made, cell)
    assert grid.planned_time(made, 1, {}).total == 3 * 10


def test_the_schema_says_what_every_key_means() -> None:
    schema = studyfile.schema()
    for model in (schema, *schema["$defs"].values()):
        assert model["additionalProperties"] is False
        assert all(each.get("description") for each in model["properties"].values()), model["title"]
    assert {"script", "workload", "framework"} <= schema["$defs"]["WorkloadEntry"][
        "properties"
    ].keys()
