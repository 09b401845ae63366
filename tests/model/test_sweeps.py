"""A sweep is a job for each combination, with a name and arguments that say its values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.model import records
from headgate.model.job_checks import NAME_PATTERN
from headgate.model.jobs import Job
from headgate.model.sweeps import Passing, Sweep, SweepTrial, swept_values, value_of

TRAIN = Job(name="train", script="train.py", args=("--epochs", "5"))


def test_a_grid_has_every_combination_as_typed_and_as_values() -> None:
    jobs = Sweep({"lr": ("1e-3", "0.1"), "seed": ("0", "1")}).jobs(TRAIN)
    names = ["train-lr-1e-3-seed-0", "train-lr-1e-3-seed-1", "train-lr-0.1-seed-0"]
    assert [job.name for job in jobs] == [*names, "train-lr-0.1-seed-1"]
    assert jobs[0].args == ("--epochs", "5", "--lr", "1e-3", "--seed", "0")
    assert jobs[0].trial == SweepTrial("train", {"lr": 0.001, "seed": 0})
    assert records.parse(Job, records.plain(jobs[0])) == jobs[0]


def test_zip_and_list_go_with_each_other_and_exclude_leaves_out() -> None:
    sweep = Sweep(
        zip={"width": ("64", "128"), "depth": ("4", "2")},
        combinations=({"opt": "sgd", "lr": "0.1"}, {"opt": "adam", "lr": "0.001"}),
        exclude=({"opt": "adam", "width": "64"},),
    )
    assert not list(sweep.problems())
    assert [tuple(chosen.values()) for chosen in sweep.chosen()] == [
        ("sgd", "0.1", "64", "4"),
        ("sgd", "0.1", "128", "2"),
        ("adam", "0.001", "128", "2"),
    ]


@pytest.mark.parametrize(
    ("passing", "args", "env"),
    [
        ("flags", ("--lr=-0.1", "--opt", "a b"), {}),
        ("hydra", ("lr=-0.1", "opt=a b"), {}),
        ("environment", (), {"lr": "-0.1", "opt": "a b"}),
    ],
)
def test_a_script_is_given_values_as_it_wants_them(
    passing: Passing, args: tuple[str, ...], env: dict[str, str]
) -> None:
    [job] = Sweep({"lr": ("-0.1",), "opt": ("a b",)}, passing=passing).jobs(replace(TRAIN, args=()))
    assert (job.args, job.env, job.name) == (args, env, "train-lr--0.1-opt-a_b")


@pytest.mark.parametrize(
    "values",
    [("a" * 80, "a" * 80 + "b"), ("a/b", "a b"), tuple(map(str, range(10**17, 10**17 + 120)))],
)
def test_names_that_are_long_or_alike_are_numbered(values: tuple[str, ...]) -> None:
    base = replace(TRAIN, name="n" * 60)
    names = [job.name for job in Sweep({"path": values}).jobs(base)]
    assert len(set(names)) == len(values)
    assert all(NAME_PATTERN.fullmatch(name) for name in names)


def test_ranges_are_written_out() -> None:
    assert swept_values(["-1..1", "5..15..5", "../data"]) == (
        "-1",
        "0",
        "1",
        "5",
        "10",
        "15",
        "../data",
    )


def test_texts_that_are_no_plain_numbers_stay_texts() -> None:
    texts = ["007", "nan", "1e999", "1_000", "true", "", "1.2.3"]
    assert list(map(value_of, texts)) == texts
    assert [value_of(text) for text in ("-3", "1e-3", ".5", "0")] == [-3, 0.001, 0.5, 0]
