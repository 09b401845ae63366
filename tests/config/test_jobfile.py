"""A job file is checked as a whole: every problem at once, each with its line, the value and the
cure.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from headgate.config import jobfile
from headgate.model.errors import InvalidFileError, Problem, UsageError
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.progress_rule import ProgressRule

Loader = Callable[[str], list[Job]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text("print('hello')\n")
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Loader:
    def load(text: str) -> list[Job]:
        (folder / "jobs.yaml").write_text(textwrap.dedent(text))
        return jobfile.load(str(folder / "jobs.yaml"))

    return load


@pytest.fixture
def problems(load: Loader) -> Callable[[str], tuple[Problem, ...]]:
    def problems(text: str) -> tuple[Problem, ...]:
        with pytest.raises(InvalidFileError) as raised:
            load(text)
        return raised.value.problems

    return problems


Problems = Callable[[str], tuple[Problem, ...]]


def job(line: str) -> str:
    """A file of one job, good but for this line, which is line 3."""
    return f"jobs:\n  - script: train.py\n    {line}\n"


# --- what is read


def test_how_many_run_at_once_is_stated_once_for_a_file(load: Loader, problems: Problems) -> None:
    script, other = "script: train.py, name: a", "script: train.py, name: b"
    jobs = load(f"at_once: auto\njobs:\n  - {{{script}}}\n  - {{{other}}}\n")
    assert [job.at_once for job in jobs] == ["auto", "auto"]
    jobs_that_differ = f"jobs:\n  - {{{script}, at_once: 2}}\n  - {{{other}, at_once: 4}}\n"
    [problem] = problems(jobs_that_differ)
    assert (problem.line, problem.found) == (3, "found 4, but 2 of another job")
    sweep, other_sweep = "sweep: {grid: {lr: 0..1}}, at_once: 2", "sweep: {grid: {lr: 0..1}}"
    jobs = load(f"at_once: 4\njobs:\n  - {{{script}, {sweep}}}\n  - {{{other}, {other_sweep}}}\n")
    bounds = [(job.at_once, job.trial.at_once) for job in jobs if job.trial is not None]
    assert bounds == [(4, 2), (4, 2), (4, None), (4, None)], "each sweep may have its own"
    [problem] = problems(job("at_once: many"))
    assert problem.cure == "expected a number of jobs such as 4, or `auto`"


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("python -m spacy train x.cfg", "spacy"),
        ("python3 -u -m spacy train", "spacy"),
        ("env A=1 nice -n 5 python -W ignore -m spacy train", "spacy"),
        ("CUDA_VISIBLE_DEVICES=0 python -m spacy train", "spacy"),
        ("cd sub && python -m spacy train > log", "spacy"),
        ("uv run python3.11 -m spacy train", "spacy"),
        ("python pkg/fit.py --epochs 3", "fit"),
        ("python -c 'print(1)'", "job-1"),
        ("echo python -m", "job-1"),
    ],
)
def test_a_job_that_runs_a_python_program_is_named_after_it(
    folder: Path, run: str, name: str
) -> None:
    write = folder / "named.yaml"
    write.write_text(json.dumps({"jobs": [{"run": run}, {"run": run}, {"run": "true"}]}))
    names = [job.name for job in jobfile.load(str(write))]
    assert names == [name, f"{name}-2" if name != "job-1" else "job-2", "job-3"]


def test_every_field_is_read(load: Loader, folder: Path) -> None:
    (folder / "work").mkdir()
    (folder / "work" / "fit.py").touch()
    first, second = load(
        """
        jobs:
          - name: digits
            script: fit.py
            args: [--epochs, "5"]
            env: {SEED: "1"}
            python: python3
            workdir: work
            at: 5s
            priority: 2
            share: 1/3
            limits: {cores: 1.5, memory: 2GiB, gpus: 1, workers: 1..8, gpu_memory: 10GiB}
            allow: [async, weak]
            progress: {metric: accuracy, pattern: 'acc (?P<accuracy>[0-9.]+)', goal: 0.97,
                       patience: 5, min_delta: 0.01}
            retries: 3
            timeout: 2h
          - name: after
            run: [sh, -c, "wc -l train.py"]
            after: digits
        """
    )
    assert first == Job(
        name="digits",
        script=str(folder / "work" / "fit.py"),
        args=("--epochs", "5"),
        env={"SEED": "1"},
        python="python3",
        workdir=str(folder / "work"),
        at=5.0,
        priority=2.0,
        share="1/3",
        limits=Limits(1.5, 2 << 30, 1, (1, 8), 10 << 30),
        allow=frozenset(("async", "weak")),
        progress=ProgressRule("accuracy", "acc (?P<accuracy>[0-9.]+)", 0.97, 5, 0.01),
        retries=3,
        timeout=7200.0,
    )
    assert second == Job(
        name="after", run=("sh", "-c", "wc -l train.py"), workdir=str(folder), after="digits"
    )


def test_only_the_command_is_needed(load: Loader, folder: Path) -> None:
    jobs = load("jobs:\n  - script: train.py\n  - run: echo hello\n  - run: 'true'\n")
    assert jobs == [
        Job(name="train", script=str(folder / "train.py"), workdir=str(folder)),
        Job(name="job-2", run="echo hello", workdir=str(folder)),
        Job(name="job-3", run="true", workdir=str(folder)),
    ]


def test_empty_values_are_those_that_were_left_out(load: Loader) -> None:
    empty = (
        "name: null, limits: {cores: null, memory: null, gpus: null}, timeout: null, "
        "after: null, python: null"
    )
    (job,) = load(
        f"jobs:\n  - {{script: train.py, progress: {{pattern: null, goal: null}}, {empty}}}\n"
    )
    assert job == load("jobs:\n  - script: train.py\n")[0]


@pytest.mark.parametrize(
    "typed", ["5", "010", "0x10", "1.10", "1e-3", "yes", "true", "1:30", "2024-01-31", "="]
)
def test_arguments_and_variables_are_taken_as_they_are_typed(load: Loader, typed: str) -> None:
    (job,) = load(
        f"jobs:\n  - run: [echo, {typed}]\n    args: [{typed}]\n    env: {{V: {typed}}}\n   "
        " name: n\n"
    )
    assert (job.run, job.args, job.env) == (("echo", typed), (typed,), {"V": typed})


def test_variables_may_be_called_anything(load: Loader) -> None:
    (job,) = load("jobs:\n  - script: train.py\n    env: {1: a, true: b, on: c}\n")
    assert job.env == {"1": "a", "true": "b", "on": "c"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [("4", (4, 4)), ("1..8", (1, 8)), ("2..", (2, None)), ("'3'", (3, 3)), ("3..3", (3, 3))],
)
def test_workers_are_a_number_or_a_range(
    load: Loader, written: str, meant: tuple[int, int | None]
) -> None:
    assert load(job(f"limits: {{workers: {written}}}"))[0].limits.workers == meant


def test_what_jobs_have_in_common_can_be_written_once(load: Loader) -> None:
    first, second = load(
        """
        jobs:
          - &common
            name: first
            script: train.py
            args: [--epochs, 010]
            retries: 2
          - <<: *common
            name: second
        """
    )
    assert (second.name, second.script, second.args, second.retries) == (
        "second",
        first.script,
        ("--epochs", "010"),
        2,
    )


def test_an_interpreter_is_found_from_the_job_s_folder_and_its_link_kept(
    load: Loader, folder: Path
) -> None:
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.symlink_to("/bin/sh")
    assert load(job("python: .venv/bin/python"))[0].python == str(python)
    assert load(job(f"python: {python}"))[0].python == str(python)


def test_numbers_are_read_as_they_are_written(load: Loader) -> None:
    [read] = load(
        "jobs:\n  - script: train.py\n    retries: 010\n    priority: 08.5\n    at: 012\n    "
        "timeout: 0x10\n"
    )
    assert (read.retries, read.priority, read.at, read.timeout) == (10, 8.5, 12.0, 16.0)


def test_an_interpreter_is_found_on_the_path_that_the_job_is_given(
    load: Loader, folder: Path
) -> None:
    (folder / "my-python").symlink_to("/bin/sh")
    jobs = load(
        f"jobs:\n  - script: train.py\n    python: my-python\n    env: {{PATH: {folder}}}\n"
    )
    assert jobs[0].python == "my-python"


# --- what is wrong

BAD: Mapping[str, tuple[str, str, str, str]] = {
    # the line, and its problem: where, what was found, the cure
    "key unknown, near another": (
        "prioritty: 1",
        "jobs[0]",
        "unknown key 'prioritty'",
        "did you mean 'priority'?",
    ),
    "key unknown in limits": (
        "limits: {disk: 1}",
        "jobs[0].limits",
        "unknown key 'disk'",
        "expected one of cores, ",
    ),
    "another's name in limits": (
        "limits: {cpus: 1}",
        "jobs[0].limits",
        "unknown key 'cpus'",
        "did you mean 'cores'?",
    ),
    "another's name of a limit": (
        "ram: 1G",
        "jobs[0]",
        "unknown key 'ram'",
        "write `limits: {memory: 1G}`",
    ),
    "another's name of the GPUs": (
        "num_gpus: 2",
        "jobs[0]",
        "unknown key 'num_gpus'",
        "write `limits: {gpus: 2}`",
    ),
    "another's name of a key": (
        "command: ls",
        "jobs[0]",
        "unknown key 'command'",
        "did you mean 'run'?",
    ),
    "torchrun's name of the workers": (
        "nproc: 2",
        "jobs[0]",
        "unknown key 'nproc'",
        "write `limits: {workers: 2}`",
    ),
    "another's name of the start": (
        "start: 5s",
        "jobs[0]",
        "unknown key 'start'",
        "did you mean 'at'?",
    ),
    "another's name of the retries": (
        "max_retries: 2",
        "jobs[0]",
        "unknown key 'max_retries'",
        "did you mean 'retries'?",
    ),
    "cores of the job": (
        "cores: 1",
        "jobs[0]",
        "unknown key 'cores'",
        "write `limits: {cores: 1}`",
    ),
    "workers of the job": (
        "workers: 1..4",
        "jobs[0]",
        "unknown key 'workers'",
        "write `limits: {workers: 1..4}`",
    ),
    "goal of the job": (
        "goal: 0.9",
        "jobs[0]",
        "unknown key 'goal'",
        "write `progress: {goal: 0.9}`",
    ),
    "strategy of the job": (
        "strategy: ps",
        "jobs[0]",
        "unknown key 'strategy'",
        "write `plan: {strategy: ps}`",
    ),
    "servers of the job": (
        "servers: 2",
        "jobs[0]",
        "unknown key 'servers'",
        "it belongs below `plan:`",
    ),
    "count of the job": (
        "count: 2",
        "jobs[0]",
        "unknown key 'count'",
        "it belongs in an entry of the list `roles:`",
    ),
    "retries of limits": (
        "limits: {retries: 1}",
        "jobs[0].limits",
        "unknown key 'retries'",
        "it belongs beside `limits:`",
    ),
    "at a clock time": (
        "at: 14:30",
        "jobs[0].at",
        "found '14:30'",
        "expected how long, such as 30s, 5m or 2h, and no time",
    ),
    "at a clock time before ten": ("at: 08:00", "jobs[0].at", "found '08:00'", "expected how long"),
    "at a date and time": (
        "at: 2026-11-28T14:30:00",
        "jobs[0].at",
        "found '2026-11-28T14:30:00'",
        "expected how long, such as 30s, 5m or 2h, and no time",
    ),
    "at a date": ("at: 2026-11-28", "jobs[0].at", "found '2026-11-28'", "expected a time such as"),
    "timeout with colons": (
        "timeout: 1:30:00",
        "jobs[0].timeout",
        "found '1:30:00'",
        "expected how long",
    ),
    "a number to the base 60": (
        "priority: 1:30",
        "jobs[0].priority",
        "found '1:30'",
        "expected a number",
    ),
    "key with brackets": (
        "'a[0](b)': 1",
        "jobs[0]",
        "unknown key 'a[0](b)'",
        "expected one of after, ",
    ),
    "key called as a type": ("int: 1", "jobs[0]", "unknown key 'int'", ""),
    "key twice": ("script: other.py", "jobs[0]", "'script' is given twice", "keep one"),
    "cores negative": (
        "limits: {cores: -1}",
        "jobs[0].limits.cores",
        "found -1",
        "a value greater than 0",
    ),
    "cores infinite": (
        "limits: {cores: .inf}",
        "jobs[0].limits.cores",
        "found inf",
        "expected a finite number",
    ),
    "cores yes": (
        "limits: {cores: yes}",
        "jobs[0].limits.cores",
        "found True",
        "expected a number",
    ),
    "cores text": (
        "limits: {cores: many}",
        "jobs[0].limits.cores",
        "found 'many'",
        "expected a number",
    ),
    "memory negative": (
        "limits: {memory: -2GiB}",
        "jobs[0].limits.memory",
        "found '-2GiB'",
        "expected a size such as",
    ),
    "memory number negative": (
        "limits: {memory: -2}",
        "jobs[0].limits.memory",
        "found -2",
        "expected 1 MiB or more",
    ),
    "memory without its unit": (
        "limits: {memory: 8}",
        "jobs[0].limits.memory",
        "found 8",
        "expected 1 MiB or more",
    ),
    "memory infinite": (
        "limits: {memory: .inf}",
        "jobs[0].limits.memory",
        "found inf",
        "expected a size such as",
    ),
    "memory list": (
        "limits: {memory: [1]}",
        "jobs[0].limits.memory",
        "found [1]",
        "expected a size such as",
    ),
    "gpus negative": (
        "limits: {gpus: -1}",
        "jobs[0].limits.gpus",
        "found -1",
        "greater than or equal to 0",
    ),
    "gpus half": (
        "limits: {gpus: 0.5}",
        "jobs[0].limits.gpus",
        "found 0.5",
        "expected a whole number",
    ),
    "gpu memory text": (
        "limits: {gpu_memory: lots}",
        "jobs[0].limits.gpu_memory",
        "found 'lots'",
        "expected a size such",
    ),
    "gpu memory of none": (
        "limits: {gpus: 0, gpu_memory: 1GiB}",
        "jobs[0].limits.gpu_memory",
        "found '1GiB'",
        "`gpus: 0`",
    ),
    "exclusive of none": (
        "limits: {gpus: 0, exclusive: true}",
        "jobs[0].limits.exclusive",
        "found True",
        "`gpus: 0`",
    ),
    "exclusive text": (
        "limits: {exclusive: often}",
        "jobs[0].limits.exclusive",
        "found 'often'",
        "expected",
    ),
    "workers backwards": (
        "limits: {workers: 8..1}",
        "jobs[0].limits.workers",
        "found '8..1'",
        "expected 1..8",
    ),
    "workers none": (
        "limits: {workers: 0}",
        "jobs[0].limits.workers",
        "found 0",
        "expected a number of workers",
    ),
    "limits empty": ("limits:", "jobs[0].limits", "it is empty", "expected keys with values"),
    "limits text": ("limits: low", "jobs[0].limits", "found 'low'", "expected keys with values"),
    "at negative": (
        "at: -5s",
        "jobs[0].at",
        "found '-5s'",
        "expected a time such as 30, 30s, 5m or 2h",
    ),
    "at number negative": ("at: -5", "jobs[0].at", "found -5", "greater than or equal to 0"),
    "at unit unknown": (
        "at: 5 parsecs",
        "jobs[0].at",
        "found '5 parsecs'",
        "expected a time such as",
    ),
    "at beyond all": ("at: 1e999s", "jobs[0].at", "found '1e999s'", "expected a time such as"),
    "timeout zero": ("timeout: 0", "jobs[0].timeout", "found 0", "greater than 0"),
    "priority zero": ("priority: 0", "jobs[0].priority", "found 0", "greater than 0"),
    "priority too high": (
        "priority: 101",
        "jobs[0].priority",
        "found 101",
        "less than or equal to 100",
    ),
    "share as a number": (
        "share: 0.5",
        "jobs[0].share",
        "found 0.5",
        "expected a fraction of the machine, above 0",
    ),
    "share of more than all": (
        "share: 3/2",
        "jobs[0].share",
        "found '3/2'",
        "and at most 1, such as 1/3",
    ),
    "share of nothing": (
        "share: 0/2",
        "jobs[0].share",
        "found '0/2'",
        "expected a fraction of the machine",
    ),
    "retries negative": (
        "retries: -1",
        "jobs[0].retries",
        "found -1",
        "greater than or equal to 0",
    ),
    "allow unknown": (
        "allow: [speed]",
        "jobs[0].allow[0]",
        "found 'speed'",
        "expected 'async' or 'weak'",
    ),
    "args text": ("args: --epochs 5", "jobs[0].args", "found '--epochs 5'", "expected a list"),
    "args empty word": ("args: [a, null]", "jobs[0].args[1]", "it is empty", "expected text"),
    "env list": ("env: [A=1]", "jobs[0].env", "found ['A=1']", "expected keys with values"),
    "variable with =": (
        "env: {A=B: 1}",
        "jobs[0].env.A=B",
        "found 'A=B'",
        "is not empty and holds no '='",
    ),
    "variable without a name": (
        "env: {'': 1}",
        "jobs[0].env.",
        "found ''",
        "is not empty and holds no '='",
    ),
    "NUL in a variable": (
        'env: {A: "a\\0b"}',
        "jobs[0].env.A",
        r"found 'a\x00b'",
        "leave out the NUL",
    ),
    "NUL in a name": ('env: {"A\\0": b}', "jobs[0].env.A\0", r"found 'A\x00'", "leave out the NUL"),
    "NUL in an argument": (
        'args: [a, "\\0"]',
        "jobs[0].args[1]",
        r"found '\x00'",
        "leave out the NUL",
    ),
    "NUL in a folder": (
        'workdir: "a\\0b"',
        "jobs[0].workdir",
        r"found 'a\x00b'",
        "leave out the NUL",
    ),
    "NUL in an interpreter": (
        'python: "a\\0b"',
        "jobs[0].python",
        r"found 'a\x00b'",
        "leave out the NUL",
    ),
    "name with a slash": ("name: a/b", "jobs[0].name", "found 'a/b'", "expected letters, digits"),
    "name too long": (f"name: {'a' * 65}", "jobs[0].name", "found 'aaa", "at most 64"),
    "pattern broken": ("progress: {pattern: '('}", "jobs[0].progress.pattern", "found '('", ""),
    "no patience": (
        "progress: {patience: 0}",
        "jobs[0].progress.patience",
        "found 0",
        "a value greater than 0",
    ),
    "goal without a side": (
        "progress: {metric: elbo, goal: 1}",
        "jobs[0].progress.goal",
        "found 1",
        "add `better",
    ),
    "goal beyond 100 %": (
        "progress: {metric: mAP50, goal: 970}",
        "jobs[0].progress.goal",
        "found 970",
        "mAP50 is never more than 100 %",
    ),
    "no side": (
        "progress: {better: up}",
        "jobs[0].progress.better",
        "found 'up'",
        "expected 'lower' or 'higher'",
    ),
    "goal not a number": (
        "progress: {goal: .nan}",
        "jobs[0].progress.goal",
        "found nan",
        "expected a finite number",
    ),
    "folder missing": (
        "workdir: nowhere",
        "jobs[0].workdir",
        "found 'nowhere', which is not a folder",
        "correct",
    ),
    "python missing": (
        "python: no-python-here",
        "jobs[0].python",
        "found 'no-python-here', which is not",
        "path of",
    ),
    "python missing in folder": (
        "python: ./python",
        "jobs[0].python",
        "found './python', which is not",
        "path of",
    ),
    "python no program": (
        "python: ./train.py",
        "jobs[0].python",
        "found './train.py', which is not",
        "path of",
    ),
    "two commands": (
        "run: echo",
        "jobs[0].script",
        "found both `script` and `run`",
        "give exactly one",
    ),
    "after itself": (
        "after: train",
        "jobs[0].after",
        "found a cycle: train after train",
        "break it",
    ),
    "after none of several": (
        "after: [train, trian]",
        "jobs[0].after",
        "found 'trian', which is no job",
        "did you mean",
    ),
    "after a mapping": (
        "after: {a: b}",
        "jobs[0].after",
        "found {'a': 'b'}",
        "the name of a job, or a list of names",
    ),
    "after an empty list": (
        "after: []",
        "jobs[0].after",
        "found []",
        "the name of a job, or a list of names",
    ),
    "after nobody": (
        "after: trian",
        "jobs[0].after",
        "found 'trian', which is no job here",
        "did you mean 'train'?",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_problem_names_its_line_the_value_and_the_cure(problems: Problems, bad: str) -> None:
    line, where, found, cure = BAD[bad]
    (problem,) = problems(job(line))
    # What concerns two keys is told at the one that the cure begins with.
    assert problem.line == (2 if bad == "two commands" else 3)
    assert problem.where == where
    assert problem.found.startswith(found)
    assert cure in problem.cure
    assert problem.cure


@pytest.mark.parametrize("run", ["[]", "''", "['']", "{a: b}", "[[a]]", "[a, null]"])
def test_a_command_has_words(problems: Problems, run: str) -> None:
    (problem,) = problems(f"jobs:\n  - run: {run}\n")
    assert (problem.line, problem.where) == (2, "jobs[0].run")
    assert "command" in problem.cure


@pytest.mark.parametrize("line", [r'script: "a\0b"', r'run: "a\0b"', r'run: [a, "b\0"]'])
def test_a_command_has_no_nul(problems: Problems, line: str) -> None:
    (problem,) = problems(f"jobs:\n  - {line}\n")
    assert (problem.line, problem.where) == (2, f"jobs[0].{line.split(':')[0]}")
    assert problem.cure.startswith("leave out the NUL")


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("", None, "it is missing"),
        ("jobs:\n", 1, "it is empty"),
        ("jobs: []\n", 1, "found []"),
        ("jobs: 5\n", 1, "found 5"),
        ("- script: train.py\n", 1, "found [{'script': 'train.py'}]"),
        ("jobs:\n- train.py\n", 2, "found 'train.py'"),
        ("jobs:\n- script: train.py\njob: 1\n", 3, "unknown key 'job'"),
        ("jobs:\n- script: nowhere.py\n", 2, "found 'nowhere.py', which is not a file in "),
        ("jobs:\n- name: a\n", 2, "found neither `script`, `run`, `roles` nor `spark`"),
        ("jobs: [\n", 2, "expected the node content"),
        ("jobs:\n- script: 'train.py\n", 3, "found unexpected end of stream"),
        ("jobs: *nobody\n", 1, "found undefined alias"),
        ("jobs: &a [*a]\n", 1, "an alias of what it is in"),
        ("a: 1\n---\nb: 2\n", 2, "but found another document"),
        ("jobs: !!python/object:os.system {}\n", 1, "could not determine a constructor"),
        ("jobs:\n- {script: train.py, at: 2024-13-45}\n", 2, "found '2024-13-45'"),
        ("jobs:\n- {script: train.py, at: !!int soon}\n", None, "invalid literal for int"),
        ("jobs: \x00\n", None, "this is not YAML"),
    ],
)
def test_a_file_that_is_no_job_file_is_told_where(
    problems: Problems, text: str, line: int | None, found: str
) -> None:
    (problem,) = problems(text)
    assert problem.found.startswith(found)
    assert problem.line == line or (line is None and problem.line is not None)
    assert problem.cure


def test_all_problems_of_a_file_are_told_at_once(problems: Problems) -> None:
    found = problems(
        """\
        jobs:
          - name: a
            script: train.py
            colour: red
            after: c
          - name: b
            script: missing.py
            limits: {cores: -1, memory: lots}
            after: a
          - name: a
            run: echo
            retries: many
          - name: c
            script: other.py
            after: b
          - 17
        """
    )
    assert [(problem.line, problem.where) for problem in found] == [
        (4, "jobs[0]"),
        (5, "jobs[0].after"),
        (7, "jobs[1].script"),
        (8, "jobs[1].limits.cores"),
        (8, "jobs[1].limits.memory"),
        (10, "jobs[2].name"),
        (12, "jobs[2].retries"),
        (16, "jobs[4]"),
    ]


def test_a_broken_name_does_not_make_others_seem_broken(problems: Problems) -> None:
    (problem,) = problems(
        "jobs:\n  - {name: a/b, script: train.py}\n  - {script: other.py, after: a}\n"
    )
    assert problem.where == "jobs[0].name"


def test_two_jobs_of_one_name_name_the_first_one_s_line(problems: Problems) -> None:
    (problem,) = problems("jobs:\n  - script: train.py\n  - run: echo\n    name: train\n")
    assert (
        str(problem) == "line 4: jobs[1].name: found 'train', as on line 2; give each job its own"
    )


def test_a_cycle_is_told_once(problems: Problems) -> None:
    (problem,) = problems(
        "jobs:\n"
        "  - {name: a, script: train.py, after: c}\n"
        "  - {name: b, script: train.py, after: a}\n"
        "  - {name: c, script: train.py, after: b}\n"
        "  - {name: leads into it, script: train.py, after: b}\n".replace("leads into it", "d")
    )
    assert (problem.where, problem.found) == (
        "jobs[0].after",
        "found a cycle: a after c after b after a",
    )


def test_the_message_is_one_line_a_problem(load: Loader, folder: Path) -> None:
    with pytest.raises(InvalidFileError) as raised:
        load("jobs:\n  - {script: train.py, retries: -1}\n  - {run: echo, prioritty: 2}\n")
    assert str(raised.value).splitlines() == [
        f"{folder}/jobs.yaml: 2 problems",
        "  line 2: jobs[0].retries: found -1; expected a value greater than or equal to 0",
        "  line 3: jobs[1]: unknown key 'prioritty'; did you mean 'priority'?",
    ]
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "make", [lambda path: None, Path.mkdir, lambda path: path.write_bytes(b"\xff\xfe")]
)
def test_a_file_that_cannot_be_read_is_named(folder: Path, make: Callable[[Path], Any]) -> None:
    make(path := folder / "jobs.yml")
    with pytest.raises(UsageError, match=f"cannot read {path}: "):
        jobfile.load(str(path))


# --- its schema


def test_the_schema_knows_every_field() -> None:
    schema = jobfile.schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    definitions = schema["$defs"]
    keys = {*Job.__dataclass_fields__, "spark", "sweep"} - {"trial"}
    assert set(definitions["JobEntry"]["properties"]) == keys
    assert set(definitions["LimitsEntry"]["properties"]) == {
        *("cores", "memory", "gpus", "gpu_memory", "exclusive", "workers")
    }
    assert set(definitions["ProgressEntry"]["properties"]) == {
        *("metric", "pattern", "better", "goal", "patience", "min_delta")
    }
    assert schema["required"] == ["jobs"]
    for model in (schema, *definitions.values()):
        assert model["additionalProperties"] is False


def test_the_schema_takes_what_the_file_does() -> None:
    definitions = jobfile.schema()["$defs"]
    properties = definitions["JobEntry"]["properties"]
    assert properties["at"]["type"] == ["number", "string"]
    assert properties["args"]["items"]["type"] == ["string", "number", "boolean"]
    assert properties["allow"]["items"]["enum"] == ["async", "weak"]
    kinds = [
        kind
        for kind in properties["run"]["anyOf"]
        if "anyOf" in kind or kind.get("type") == "array"
    ]
    assert kinds, "a list of words is no command"
    assert definitions["LimitsEntry"]["properties"]["workers"]["type"] == ["integer", "string"]
