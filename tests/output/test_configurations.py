"""A configuration that a script prints before it trains is no progress, whatever its form."""

from __future__ import annotations

import argparse
import json
import pprint
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from headgate.model.progress_rule import ProgressRule
from headgate.output.patterns import ProgressReader

NESTED = {
    "data": {"batch_size": 64, "num_workers": 4},
    "model": {"name": "resnet18", "hidden": 256, "loss": {"kl_loss": 0.1, "weight": 0.5}},
    "training": {"epoch": 0, "epochs": 20, "loss": 1.0, "step": 10, "val_loss": 0.3},
}
FLAT = {
    "batch_size": 64,
    "cost": 0.1,
    "epoch": 3,
    "epochs": 20,
    "kl_loss": 0.1,
    "loss": 0.5,
    "lr": 0.1,
    "step": 30,
    "val_accuracy": 0.9,
}


@dataclass
class Experiment:
    batch_size: int = 64
    epoch: int = 3
    kl_loss: float = 0.1
    loss: float = 1.0
    step: int = 100


def table(values: dict[str, Any]) -> str:
    rows = [f"| {name:<16} | {value:<8} |" for name, value in values.items()]
    rule = f"+{'-' * 18}+{'-' * 10}+"
    return "\n".join([rule, f"| {'parameter':<16} | {'value':<8} |", rule, *rows, rule])


def columns(values: dict[str, Any]) -> str:
    return "\n".join(["parameter         value", *(f"{k:<17} {v}" for k, v in values.items())])


def listed(values: dict[str, Any]) -> str:
    return "\n".join(["Hyperparameters:", *(f"{name}: {value}" for name, value in values.items())])


def dotted(values: dict[str, Any]) -> str:
    lines = [f"  {name} {'.' * (40 - len(name))} {value}" for name, value in values.items()]
    return "\n".join(["------ arguments ------", *lines, "------ end of arguments ------"])


def options(values: dict[str, Any]) -> str:
    lines = [f"{name:>25}: {value:<30}" for name, value in values.items()]
    return "\n".join(["----------------- Options ---------------", *lines, "-------- End --------"])


CONFIGURATIONS: dict[str, Callable[[], str]] = {
    "YAML": lambda: yaml.safe_dump(NESTED),
    "flat YAML": lambda: yaml.safe_dump(FLAT),
    "YAML below its name": lambda: yaml.safe_dump({"cfg": {"epoch": 3, "loss": 0.5}}),
    "YAML with lists": lambda: yaml.safe_dump({"epochs": [1, 2], "loss": 0.5}),
    "JSON": lambda: json.dumps(NESTED),
    "JSON in lines": lambda: json.dumps(NESTED, indent=2),
    "dictionary": lambda: repr(FLAT),
    "dictionary in lines": lambda: pprint.pformat(NESTED, width=40),
    "namespace": lambda: repr(argparse.Namespace(**FLAT)),
    "namespace after its name": lambda: f"args: {argparse.Namespace(epoch=3, loss=0.5)}",
    "dataclass": lambda: repr(Experiment()),
    "dataclass in lines": lambda: pprint.pformat(Experiment(), width=40),
    "table": lambda: table(FLAT),
    "columns": lambda: columns(FLAT),
    "list below a heading": lambda: listed(FLAT),
    "dots": lambda: dotted(FLAT),
    "options": lambda: options(FLAT),
    "logged": lambda: "\n".join(f"12:00:01 INFO {k}: {v}" for k, v in FLAT.items()),
}
TRAINING = ["epoch 1/20 loss 2.3", "epoch 2/20 loss 2.1"]


@pytest.mark.parametrize("metric", ["loss", "val_accuracy"])
@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_a_configuration_is_no_progress(form: str, metric: str) -> None:
    reader = ProgressReader(ProgressRule(metric))
    lines = CONFIGURATIONS[form]().splitlines()
    assert reader.feed(lines) == []


@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_the_training_below_a_configuration_is_read(form: str) -> None:
    reader = ProgressReader(ProgressRule())
    readings = reader.feed([*CONFIGURATIONS[form]().splitlines(), *TRAINING])
    assert [(line.epoch, line.epochs, line.loss) for line in readings] == [
        (1, 20, 2.3),
        (2, 20, 2.1),
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["loss: 0.9", "loss: 0.8"],
        ["epoch: 1", "lr: 0.1", "loss: 0.9", "epoch: 2", "lr: 0.1", "loss: 0.8"],
        ["seed: 1", "epochs: 2", "", "loss: 0.9", "loss: 0.8"],
        ["{'epoch': 1, 'lr': 0.1, 'loss': 0.9}", "{'epoch': 2, 'lr': 0.1, 'loss': 0.8}"],
        ["{", '  "epoch": 1,', '  "loss": 0.9', "}", "{", '  "epoch": 2,', '  "loss": 0.8', "}"],
        ["batch_size: 64", "Starting training", "loss: 0.9", "loss: 0.8"],
        ["Config(seed=1)", "loss=0.9", "loss=0.8"],
    ],
)
def test_training_in_the_form_of_a_configuration_is_read(lines: list[str]) -> None:
    readings = ProgressReader(ProgressRule()).feed(lines)
    assert [line.loss for line in readings if line.loss is not None] == [0.9, 0.8]
