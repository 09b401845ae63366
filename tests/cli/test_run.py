"""`headgate run`: what is started, as the task itself sees it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.hub.user import User

from headgate.cli.options import is_program

TELLS = """
    import json, os, sys
    print(json.dumps({"argv": sys.orig_argv, "cwd": os.getcwd(), "env": dict(os.environ)}))
"""
"""Says exactly what was started."""

LEARNS = """
    import time
    for step in range(10**6):
        print(f"@{step} cost={100 - step}", flush=True)
        time.sleep(0.005)
"""
"""Learns a little each step, and never ends by itself."""


def told(user: User, job: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(user.log(job).splitlines()[-1])
    return found


def test_scripts_side_by_side_with_arguments(user: User) -> None:
    user.write("a.py", TELLS)
    user.write("b.py", TELLS)
    done = user.types("run", "a.py", "b.py", "--", "--epochs", "5", "two words")
    for job in ("a", "b"):
        argv = told(user, job)["argv"]
        assert isinstance(argv, list)
        assert argv[1:] == [str(user.folder / f"{job}.py"), "--epochs", "5", "two words"]
        assert told(user, job)["cwd"] == str(user.folder)
        assert re.search(rf"{job}: done, finished", done.stdout)
    assert {job["state"] for job in user.jobs().values()} == {"done"}
    assert Path(user.json("report")["report"]).exists()


@pytest.mark.slow
def test_a_dry_run_prints_what_is_then_started(user: User) -> None:
    (user.folder / "below").mkdir()
    user.write("below/a.py", TELLS)
    user.write(
        "jobs.yaml",
        """
        jobs:
          - {name: a, script: a.py, workdir: below, args: [1, "x y"], env: {SEED: 7},
             priority: 3, limits: {cores: 0.5}}
          - name: b
            run: exec "$(command -v python)" below/a.py
            args: [p q]
            after: [a]
            at: 100ms
            limits: {memory: 512MiB}
        """,
    )
    plain = user.types("run", "jobs.yaml", "--dry-run").stdout
    planned = {entry["job"]: entry for entry in user.json("run", "jobs.yaml", "--dry-run")}
    assert user.json("ps") == []
    assert "a/worker-0: 0 s in" in plain
    assert "b/worker-0: 0.1 s after a has finished, on " in plain
    own, _, alike = plain.partition("each of them, with its own names for JOB and TASK:\n")
    assert plain.count("HEADGATE_MODE=run") == 1 == alike.count("HEADGATE_TASK=run/JOB/TASK"), (
        "both have it alike"
    )
    assert "SEED=7" in own and own.count("\n  exec ") == 2
    assert [(planned[job]["at"], planned[job]["after"]) for job in "ab"] == [
        (0.0, None),
        (0.1, "a"),
    ]
    assert any("cpu" in line and "500" in line for line in planned["a"]["box"]), planned["a"]["box"]
    assert any("memory" in line and str(512 << 20) in line for line in planned["b"]["box"]), (
        planned["b"]["box"]
    )

    ended = user.json("run", "jobs.yaml")
    assert {job["name"]: job["state"] for job in ended["jobs"]} == {"a": "done", "b": "done"}
    found, entry = told(user, "a"), planned["a"]
    assert found["argv"] == entry["argv"]
    assert found["cwd"] == entry["cwd"] == str(user.folder / "below")
    assert_same_environment(user, found["env"], entry["env"], ended["id"])
    assert planned["b"]["argv"][:2] == ["/bin/sh", "-c"]
    found = told(user, "b")
    assert isinstance(found["argv"], list)
    assert found["argv"][1:] == ["below/a.py", "p q"]
    assert found["cwd"] == planned["b"]["cwd"] == str(user.folder)
    assert_same_environment(user, found["env"], planned["b"]["env"], ended["id"])
    jobs = user.jobs()
    assert jobs["b"]["started"] - jobs["a"]["ended"] >= 0.1


def assert_same_environment(user: User, found: object, planned: dict[str, str], run: str) -> None:
    """The environment of a task is its user's with what the dry run said; only the engine's key and
    the run's id cannot be known before.
    """
    assert isinstance(found, dict)
    expected = user.variables | planned
    expected["HEADGATE_TASK"] = expected["HEADGATE_TASK"].replace("run/", f"{run}/")
    expected["HEADGATE_CHECKPOINTS"] = str(
        user.home / "runs" / run / expected["HEADGATE_CHECKPOINTS"][len("RUN/") :]
    )
    by_shell = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    given = {name: value for name, value in found.items() if name not in by_shell}
    assert len(given.pop("HEADGATE_KEY")) == 32
    assert given.pop("HEADGATE_CHANNEL") == f"unix:{user.home / 'hub' / 'channel.sock'}"
    assert given == {name: value for name, value in expected.items() if name not in by_shell}


def test_every_field_of_a_job_file_acts(user: User) -> None:
    user.write(
        "flaky.py",
        (
            "import os\nfound = os.path.exists('x')\nopen('x', 'w').close()\nraise SystemExit(0 "
            "if found else 3)\n"
        ),
    )
    user.write("learns.py", LEARNS)
    user.write("hangs.py", "import signal; signal.pause()\n")
    user.write("late.py", "")
    user.write(
        "jobs.yaml",
        """
        jobs:
          - {name: flaky, script: flaky.py, retries: 2}
          - name: learns
            script: learns.py
            progress: {metric: accuracy, pattern: '@(?P<value>\\d+)', goal: 10}
          - name: loses
            script: learns.py
            progress: {pattern: '@(?P<step>\\d+) cost=(?P<loss>\\d+)', goal: 80}
          - {name: hangs, script: hangs.py, timeout: 500ms}
          - {name: follows, script: flaky.py, after: hangs}
          - {name: last, script: flaky.py, after: follows}
          - {name: late, script: late.py, at: 300ms, python: python3}
        """,
    )
    ended = user.json("run", "jobs.yaml", code=1)
    jobs = {job["name"]: job for job in ended["jobs"]}
    assert {name: job["state"] for name, job in jobs.items()} == {
        "flaky": "done",
        "learns": "done",
        "loses": "done",
        "hangs": "failed",
        "follows": "skipped",
        "last": "skipped",
        "late": "done",
    }
    assert jobs["flaky"]["attempt"] == 2
    assert jobs["flaky"]["exit_code"] == 0
    assert jobs["learns"]["reason"].startswith("reached its goal: accuracy 1")
    assert jobs["loses"]["reason"].startswith("reached its goal: loss 80, asked for 80")
    assert jobs["hangs"]["reason"].startswith("over its timeout of 0.5 s; ")
    assert jobs["follows"]["reason"] == "hangs, which it comes after, ended as failed"
    assert jobs["late"]["started"] >= 0.3


def test_a_program_and_limits_on_the_command_line(user: User) -> None:
    program = user.write(
        "train",
        """\
        #!/bin/sh
        echo "$@" in $PWD
        """,
    )
    program.chmod(0o755)
    planned = user.json(
        "run", "train", "--name", "first", "--cores", "0.5", "--memory", "256MiB", "--dry-run"
    )
    assert planned[0]["entitled_cores"] == 0.5
    assert any(str(256 << 20) in line for line in planned[0]["box"])
    user.types("run", "train", "--name", "first", "--cores", "0.5", "--", "a", "--json")
    assert user.log("first") == f"a --json in {user.folder}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("missing.py",),
            (
                "found no file 'missing.py'; expected a script, a job file (.yaml) or a command "
                "on the PATH"
            ),
        ),
        (
            ("a.py", "5"),
            "found no file '5'; arguments of a script follow `--`: headgate run a.py -- 5",
        ),
        (
            ("--", "nosuchprogram", "x"),
            "found no program 'nosuchprogram', neither here nor on the PATH",
        ),
        (
            ("-m", "pkg.train", "a.py"),
            "found -m pkg.train with 'a.py'; arguments of the module follow `--`",
        ),
        (
            ("--python", "python3", "sh", "-c", "true"),
            "found --python with the command 'sh'; name the interpreter in",
        ),
        (
            ("--python", "no/python", "a.py"),
            "job 'a': found no 'no/python' on the PATH; name an interpreter",
        ),
        (("a.py", "--sweep-as", "hydra"), "found --sweep-as without a sweep; give --sweep lr="),
        (("missing.yaml",), "cannot read missing.yaml: No such file or directory"),
        (
            ("notes.txt",),
            "notes.txt: expected a Python script (.py), a job file (.yaml) or a program",
        ),
        (("a.py", "a.yaml"), "found 2 files; expected one job file, or scripts only"),
        (
            ("a.yaml", "--", "x"),
            "arguments, name, interpreter and limits of the jobs of a.yaml go into that file",
        ),
        (("a.py", "a.py", "--name", "x"), "found --name with 2 scripts; expected one script"),
        (("a.py", "--name", "../x"), "job name '../x': expected letters, digits"),
        (
            ("a.py", "--memory", "much"),
            "found --memory 'much'; expected a size such as 512MB or 2GiB",
        ),
        (("a.py", "--memory", "0"), "found --memory '0'; expected 1 MiB or more"),
        (
            ("a.py", "--policy", "fair"),
            "no policy 'fair'; expected one of equal, flowcon, headgate, ",
        ),
        (
            ("jaxed.py", "--strategy", "ps", "--workers", "2", "--servers", "1"),
            (
                "job 'jaxed': its script uses headgate.jax, and JAX has no parameter servers; run "
                "with --strategy"
            ),
        ),
    ],
)
def test_what_cannot_be_started_is_one_message(
    words: tuple[str, ...], says: str, user: User
) -> None:
    for name in ("a.py", "a.yaml", "notes.txt"):
        user.write(name, "")
    user.write("jaxed.py", "import headgate.jax as hg\n")
    assert says in user.types("run", *words, "--dry-run", code=2).message


def test_cores_that_are_no_number_are_refused(user: User) -> None:
    user.write("a.py", "")
    for verb, number in (("run", "nan"), ("run", "inf"), ("plan", "nan")):
        said = user.types(verb, "a.py", "--cores", number, code=2).stderr
        assert f"Invalid value for '--cores': found '{number}'; expected a finite number" in said


def test_variables_that_name_another_cluster_are_one_message(user: User) -> None:
    """As a shell has them in which somebody worked for torchrun."""
    user.write("train.py", "import headgate.torch as hg\n")
    together = ("run", "train.py", "--strategy", "allreduce", "--workers", "2")
    said = user.types(*together, code=2, WORLD_SIZE="8", RANK="0").message
    assert said.startswith(
        "job 'train': found WORLD_SIZE=8, RANK=0 in the environment, but Headgate tells the 2 tasks"
    )
    assert said.endswith("unset it, or run with --strategy single")
    assert user.json("ps") == []


def test_more_gpus_than_the_machine_has_are_one_message(user: User) -> None:
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    user.write("a.py", "")
    user.write("jobs.yaml", f"jobs: [{{script: a.py, limits: {{gpus: {gpus + 1}}}}}]\n")
    for dry in (["--dry-run"], []):
        said = user.types("run", "jobs.yaml", *dry, code=2).message
        assert re.fullmatch(
            (
                rf"job 'a' fits on no node: .* has {gpus} GPUs, {gpus + 1} are asked for; lower "
                r"its limits"
            ),
            said,
        )
    assert user.json("ps") == []


def test_the_same_script_twice_is_two_jobs(user: User) -> None:
    user.write("a.py", "")
    planned = user.json("run", "a.py", "./a.py", "--dry-run")
    assert [entry["job"] for entry in planned] == ["a", "a-2"]


def test_a_profile_needs_a_script_that_reports(user: User) -> None:
    user.write("plain.py", "print('loss 0.5')")
    said = user.types("profile", "plain.py", "--json", code=1).message
    assert said.startswith(
        "the script ended without a profile; it has to train by an optimizer of PyTorch, to call"
    )
    assert user.log("plain") == "loss 0.5\n"
    assert "expected a script" in user.types("profile", "missing.py", code=2).message
    assert "found nothing to run" in user.types("profile", code=2).message
    assert "found nothing to run" in user.types("run", code=2).message


def test_settings_count_where_the_command_line_says_nothing(user: User) -> None:
    file = user.folder / "headgate" / "config.yaml"
    file.parent.mkdir()
    file.write_text("policy: srpt\nkeep_runs: 2\n")
    user.write("a.py", "import os; print(os.environ['HEADGATE_KEEP_RUNS'])")
    user.variables["XDG_CONFIG_HOME"] = str(user.folder)
    assert user.json("run", "a.py")["policy"] == "srpt"
    assert user.log("a") == "2\n"
    assert user.json("run", "a.py", "--policy", "none")["policy"] == "none"
    file.write_text("policy: srtp\n")
    assert "your settings name it" in user.types("run", "a.py", code=2).message


@pytest.mark.parametrize(
    ("word", "begins"),
    [
        ("bin/torchrun", True),
        ("bin/python3.12", True),
        ("{env}", True),
        ("none/torchrun", False),
        ("bin/prepare", False),
        ("torchrun", True),
        ("env", False),
        ("bin/readme", False),
    ],
)
def test_the_path_of_an_interpreter_or_a_launcher_begins_a_command_and_that_of_a_script_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, begins: bool
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bin/torchrun", "bin/python3.12", "bin/prepare", "bin/readme", "env"):
        (tmp_path / name).touch(mode=0o644 if name == "bin/readme" else 0o755)
    monkeypatch.chdir(tmp_path)
    assert is_program(word.format(env=shutil.which("env"))) is begins
