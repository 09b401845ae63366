"""From a job to exactly what is started."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.engines.launch import command, inject, interpreter, launch, stated_threads, transport
from headgate.isolation.base import Launch
from headgate.model.cluster import Place
from headgate.model.endings import Checkpoint
from headgate.model.errors import StorageError, UsageError
from headgate.model.identifiers import TaskId, TaskName
from headgate.model.jobs import Job
from headgate.scripts.facts import ScriptFacts, facts_of

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_MAX_THREADS")


OTHERS = ("NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS")
NO_OPENMP = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PJRT_NPROC")


def launched(
    job: Job,
    environment: dict[str, str] | None = None,
    resume: Checkpoint | None = None,
    name: str = "worker-0",
    place: Place | None = None,
    gpus: tuple[int, ...] | None = None,
    gpu_names: dict[int, str] | None = None,
    turns: Path | None = None,
) -> Launch:
    return launch(
        TaskId(f"run/job/{name}"),
        job,
        facts_of(job),
        environment=environment if environment is not None else {"PATH": os.environ["PATH"]},
        threads=2,
        injected=Path("/injected"),
        checkpoints=Path("/checkpoints"),
        resume=resume,
        place=place,
        gpus=gpus,
        gpu_names=gpu_names,
        turns=turns,
    )


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


# --- the environment


def test_threads_follow_the_grant_and_do_not_spin() -> None:
    env = launched(Job(name="job", run="true")).env
    assert {env[variable] for variable in THREADS} == {"2"}
    assert {env[variable] for variable in (*OTHERS, *NO_OPENMP)} == {"2"}
    assert (env["OMP_WAIT_POLICY"], env["GOMP_SPINCOUNT"]) == ("PASSIVE", "2000")


def test_a_script_that_sees_to_it_itself_is_left_to_spin_but_its_servers_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nimport headgate.torch as hg\nhg.report(loss=1.0)\n"
    )
    (tmp_path / "other.py").write_text("import torch  # headgate.torch is not used\n")
    (tmp_path / "idle.py").write_text(
        "import torch\ntry:\n    import headgate.torch\nexcept ImportError:\n    pass\n"
    )
    job = Job(name="job", script="train.py", workdir=str(tmp_path), python=sys.executable)
    other = replace(job, script="other.py")
    assert launched(replace(job, script="idle.py")).env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "OMP_WAIT_POLICY" not in launched(job).env
    assert launched(job, name="server-0").env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert launched(other).env["OMP_WAIT_POLICY"] == "PASSIVE"


def test_what_the_user_set_stays_and_what_the_job_sets_wins() -> None:
    job = Job(name="job", run="true", env={"MKL_NUM_THREADS": "5", "SEED": "1"})
    env = launched(
        job, {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE", "SEED": "0", "HOME": "/here"}
    ).env
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"], env["OPENBLAS_NUM_THREADS"]) == (
        "3",
        "5",
        "3",
    )
    assert (env["OMP_WAIT_POLICY"], env["SEED"], env["HOME"]) == ("ACTIVE", "1", "/here")


def test_every_library_has_as_many_threads_as_openmp_unless_the_user_says(tmp_path: Path) -> None:
    stated = launched(Job(name="job", run="true", env={"OMP_NUM_THREADS": "5"})).env
    assert {stated[name] for name in (*THREADS, *OTHERS, *NO_OPENMP)} == {"5"}
    one = launched(Job(name="job", run="true"), {"OMP_NUM_THREADS": "1"}).env
    assert [one[name] for name in NO_OPENMP] == ["1", "2", "1"]  # one more for operations that wait
    own = {
        "TF_NUM_INTRAOP_THREADS": "7",
        "TF_NUM_INTEROP_THREADS": "8",
        "PJRT_NPROC": "9",
        "OMP_NUM_THREADS": "x",
    }
    assert {name: launched(Job(name="job", run="true", env=own)).env[name] for name in own} == own
    assert "PJRT_NPROC" not in launched(Job(name="job", run="true"), {"NPROC": "4"}).env
    (tmp_path / "train.py").write_text("import jax\nimport headgate.jax as hg\nhg.report()\n")
    job = Job(name="job", script="train.py", workdir=str(tmp_path), python=sys.executable)
    assert "PJRT_NPROC" not in launched(job).env  # it sets it itself, by what its task has then


@pytest.mark.parametrize("count", ["0", "x", "4,2", "-1", "9" * 20, "9" * 5000])
def test_what_is_no_number_of_threads_is_left_to_openmp_alone(count: str) -> None:
    job = Job(name="job", run="true", env={"OMP_NUM_THREADS": count})
    assert stated_threads(job, TaskName("worker-0")) is None
    env = launched(job).env
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == (count, "2")


def test_pytorch_has_the_threads_that_the_user_gave_openmp() -> None:
    argv = [sys.executable, "-c", "import torch\nprint(torch.get_num_threads())"]
    env = launched(Job(name="job", run=tuple(argv), env={"OMP_NUM_THREADS": "1"})).env
    kept = {**env, "PYTHONPATH": "", "PATH": os.environ["PATH"]}
    assert (
        subprocess.run(argv, env=kept, capture_output=True, text=True, check=True).stdout.split()[
            -1
        ]
        == "1"
    )


@pytest.mark.parametrize(
    ("module", "code"),
    [
        # its variables are those above
        pytest.param("tensorflow", "m.ones(3) + 1", marks=pytest.mark.long),
        ("jax", "m.numpy.ones(3).block_until_ready()"),
    ],
)
def test_plain_scripts_have_the_threads_of_their_grant(module: str, code: str) -> None:
    """The kernel counts them: each of the two starts some more, whatever it is given."""
    pytest.importorskip(module)
    count = "import os\nprint(len(os.listdir('/proc/self/task')))"
    found = []
    for threads in (1, 12):
        argv = [sys.executable, "-c", f"import {module} as m\n{code}\n{count}"]
        job = Job(name="job", run=tuple(argv))
        env = launched(job, {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": str(threads)}).env
        kept = {**env, "PYTHONPATH": "", "PATH": os.environ["PATH"]}
        done = subprocess.run(argv, env=kept, capture_output=True, text=True, check=True)
        found.append(int(done.stdout.split()[-1]))
    assert found[1] - found[0] >= 11


def test_tasks_that_take_turns_on_gpus_free_their_memory_unless_the_user_says_no() -> None:
    leaving = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def found(env: dict[str, str], **more: Any) -> dict[str, str]:
        told = launched(Job(name="job", run="true", env=env), **more).env
        return {name: value for name, value in told.items() if name in {**leaving, **env}}

    here: dict[str, Any] = {"gpu_names": {0: "0"}, "turns": Path("/turns")}
    assert found({}, **here) == leaving
    stated = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    assert found(stated, **here) == stated
    part = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".4"}
    assert found(part, **here) == part | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    assert found({}, gpus=(), **here) == {}
    assert found({}, gpu_names={}, turns=Path("/turns")) == {}, "there is no GPU"
    assert found({}, gpu_names={0: "0"}) == leaving, "on another machine too"


def test_output_is_not_held_back() -> None:
    assert launched(Job(name="job", run="true")).env["PYTHONUNBUFFERED"] == "1"


def test_the_library_comes_before_what_else_is_on_the_path_of_python() -> None:
    assert launched(Job(name="job", run="true")).env["PYTHONPATH"] == "/injected"
    assert launched(Job(name="job", run="true"), {"PYTHONPATH": "/mine:/too"}).env[
        "PYTHONPATH"
    ] == ("/injected:/mine:/too")
    job = Job(name="job", run="true", env={"PYTHONPATH": "/job"})
    assert launched(job, {"PYTHONPATH": "/mine"}).env["PYTHONPATH"] == "/injected:/job"


def test_a_task_is_told_who_it_is_and_nobody_else() -> None:
    outer = {
        "HEADGATE_TASK": "outer",
        "HEADGATE_RESUME": "/old.pt",
        "HEADGATE_MODE": "profile",
        "PATH": os.defpath,
    }
    env = launched(Job(name="job", run="true"), outer).env
    assert (env["HEADGATE_TASK"], env["HEADGATE_CHECKPOINTS"], env["HEADGATE_MODE"]) == (
        "run/job/worker-0",
        "/checkpoints",
        "run",
    )
    assert "HEADGATE_RESUME" not in env
    resumed = launched(Job(name="job", run="true"), outer, Checkpoint("/c/step-5.pt", 5, 1, None))
    assert resumed.env["HEADGATE_RESUME"] == "/c/step-5.pt"


# --- the command


def test_a_script_runs_under_the_first_python_on_the_path(tmp_path: Path) -> None:
    third, second = program(tmp_path / "late", "python"), program(tmp_path / "early", "python3")
    job = Job(name="job", script="/scripts/train.py", args=("--epochs", "5"))
    early, both = str(second.parent), f"{second.parent}:{third.parent}"
    assert command(job, both) == (str(third), "/scripts/train.py", "--epochs", "5")
    assert command(job, early) == (str(second), "/scripts/train.py", "--epochs", "5")
    assert launched(job, {"PATH": early}).argv[0] == str(second)
    changed = Job(name="job", script="/scripts/train.py", env={"PATH": str(third.parent)})
    assert launched(changed, {"PATH": early}).argv[0] == str(third), "the job's own PATH counts"


def test_or_under_the_one_that_it_names(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "python3.99")
    for named in ("python3.99", str(path), "bin/python3.99", "./bin/python3.99"):
        job = Job(name="job", script="train.py", python=named, workdir=str(tmp_path))
        assert os.path.normpath(interpreter(job, str(path.parent))) == str(path)


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="job 'job': found no 'python' on the PATH; name an interpreter"
    ):
        interpreter(Job(name="job", script="train.py"), str(tmp_path))
    with pytest.raises(UsageError, match=r"found no 'python3\.99'"):
        interpreter(Job(name="job", script="train.py", python="python3.99"), str(tmp_path))


def test_words_are_started_as_they_are() -> None:
    assert command(Job(name="job", run=("prog", "a b"), args=("$HOME",)), None) == (
        "prog",
        "a b",
        "$HOME",
    )


@pytest.mark.parametrize(
    ("run", "args", "output"),
    [
        ("echo $((1 + 1)) | tr 2 3", (), "3\n"),
        ("printf '%s|'", ("a b", "$HOME", "'\"", ""), "a b|$HOME|'\"||"),
        ("printf '%s|' first\n", ("second",), "first|second|"),
        ("echo $0", (), "sh\n"),
    ],
)
def test_text_goes_to_the_shell_and_arguments_past_it(
    run: str, args: tuple[str, ...], output: str
) -> None:
    argv = command(Job(name="job", run=run, args=args), None)
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == output


def test_a_server_runs_under_the_interpreter_of_the_job_in_its_folder_and_environment(
    tmp_path: Path,
) -> None:
    python = program(tmp_path / "bin", "python")
    path = {"PATH": str(python.parent)}
    for job in (
        Job(
            name="job",
            script="train.py",
            args=("--epochs", "5"),
            env={"SEED": "1"},
            workdir=str(tmp_path),
        ),
        Job(name="job", run="torchrun train.py", env={"SEED": "1"}, workdir=str(tmp_path)),
        Job(
            name="job",
            run=("own-program",),
            python="bin/python",
            env={"SEED": "1"},
            workdir=str(tmp_path),
        ),
    ):
        started = launched(job, path, name="server-0")
        assert tuple(map(os.path.normpath, started.argv)) == (
            str(python),
            "-m",
            "headgate.torch.ps",
        )
        assert (started.cwd, started.env["SEED"]) == (str(tmp_path), "1")


def test_a_server_of_a_command_without_any_python_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found no 'python' on the PATH"):
        launched(Job(name="job", run="true"), {"PATH": str(tmp_path)}, name="server-0")


def test_it_runs_in_its_place() -> None:
    place = Place("/run/netns/a", "a", "/hosts", {})
    assert launched(Job(name="job", run="true"), place=place).place == place
    assert launched(Job(name="job", run="true")).place is None


# --- the library in a task


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has nothing but its standard library."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin" / "python")


def test_the_injected_folder_holds_headgate_and_nothing_else(
    tmp_path: Path, bare_python: str
) -> None:
    injected = inject(tmp_path / "inject")
    assert [entry.name for entry in injected.iterdir()] == ["headgate"]
    script = tmp_path / "script.py"
    script.write_text(
        "import importlib.util, pkgutil, sys\n"
        "import headgate.task\n"
        "print(headgate.task.__file__)\n"
        "print([m.name for m in pkgutil.iter_modules([sys.argv[1]])])\n"
        "print([n for n in ('click', 'numpy', 'pydantic', 'zmq', 'pytest') if "
        "importlib.util.find_spec(n)])\n"
        "print(sorted({n.split('.')[0] for n in sys.modules} - sys.stdlib_module_names - "
        "{'__main__', 'headgate'}))\n"
    )
    job = Job(
        name="job",
        script=str(script),
        python=bare_python,
        args=(str(injected),),
        workdir=str(tmp_path),
    )
    started = launch(
        TaskId("run/job/worker-0"),
        job,
        facts_of(job),
        environment={"PATH": os.defpath},
        threads=1,
        injected=injected,
        checkpoints=tmp_path,
        resume=None,
    )
    done = subprocess.run(
        started.argv,
        env=dict(started.env),
        cwd=started.cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    where, modules, dependencies, foreign = done.stdout.splitlines()
    assert where == str(injected / "headgate" / "task" / "__init__.py")
    assert modules == "['headgate']"
    assert (dependencies, foreign) == ("[]", "[]"), (
        "it needs, or shows, what the script's own Python does not have"
    )


def test_it_is_made_once_and_follows_the_installed_package(tmp_path: Path) -> None:
    injected = inject(tmp_path)
    before = (injected / "headgate").lstat()
    assert inject(tmp_path) == injected
    assert (injected / "headgate").lstat().st_mtime_ns == before.st_mtime_ns
    (injected / "headgate").unlink()
    (injected / "headgate").symlink_to("/no/longer/there")
    inject(tmp_path)
    assert (injected / "headgate").resolve() == Path(headgate.__file__).parent
    assert [entry.name for entry in injected.iterdir()] == ["headgate"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "inject").touch()
    with pytest.raises(StorageError, match=f"cannot make {tmp_path}/inject/.*: Not a directory"):
        inject(tmp_path / "inject")


def test_a_task_without_pyzmq_is_told_where_there_is_one_and_does_not_see_it_before(
    tmp_path: Path, bare_python: str
) -> None:
    injected = inject(tmp_path / "inject")
    env = launch(
        TaskId("run/job/server-0"),
        Job(name="job", run="true"),
        ScriptFacts(),
        environment={"PATH": os.defpath},
        threads=1,
        injected=injected,
        checkpoints=tmp_path,
        resume=None,
    ).env
    assert env["HEADGATE_ZMQ"] == str(transport(injected))
    assert "zmq" in os.listdir(transport(injected))
    assert set(os.listdir(transport(injected))) <= {"zmq", "pyzmq.libs"}
    code = (
        "import importlib.util, os, sys\n"
        "assert importlib.util.find_spec('zmq') is None\n"
        "sys.path.append(os.environ['HEADGATE_ZMQ'])\n"
        "import zmq\n"
        "with zmq.Context() as context, context.socket(zmq.PAIR) as pair:\n"
        "    print(zmq.has('curve'))\n"
    )
    answer = subprocess.run(
        [bare_python, "-c", code], env=dict(env), capture_output=True, text=True, check=False
    )
    assert (answer.stdout, answer.stderr) == ("True\n", "")
