"""How long a job is to train, by its arguments and the defaults of its script."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress
from headgate.scripts.arguments import TrainingLength, length
from headgate.scripts.facts import source_facts

GIVEN = {
    "--epochs 14": TrainingLength(epochs=14),
    "--lr 0.1 --epochs=14 --seed 3": TrainingLength(epochs=14),
    "--num-epochs 1_000": TrainingLength(epochs=1000),
    "--max_steps 1e5": TrainingLength(steps=100_000),
    "trainer.max_epochs=5 trainer.devices=2": TrainingLength(epochs=5),
    "--epochs 3 --max-steps -1": TrainingLength(epochs=3),
    "--epochs 3 --max-steps 500": TrainingLength(3, 500),
    "--epochs 3 --epochs 5": TrainingLength(epochs=5),
    "--epochs": TrainingLength(),
    "--epochs --fast": TrainingLength(),
    "--epochs 2.5": TrainingLength(),
    "--epochs 1e999": TrainingLength(),
    "--epochs many": TrainingLength(),
    "--epochs 0": TrainingLength(),
    "--start-epoch 7 --warmup-epochs 2 --steps-per-epoch 100": TrainingLength(),
    "epochs 5": TrainingLength(),
}


@pytest.mark.parametrize("words", GIVEN)
def test_what_the_words_of_a_command_say(words: str) -> None:
    assert length(words.split(), None) == GIVEN[words]


SCRIPTS = {
    "parser.add_argument('--epochs', type=int, default=14, metavar='N')": TrainingLength(epochs=14),
    "p.add_argument('-n', '--num-epochs', default=7)": TrainingLength(epochs=7),
    "@click.option('--max-steps', default=500)\ndef main(max_steps): pass": TrainingLength(
        steps=500
    ),
    "class Config:\n    epochs: int = 3\n    max_iters: int = 600_000": TrainingLength(3, 600_000),
    "EPOCHS = 10\nfor epoch in range(EPOCHS): pass": TrainingLength(epochs=10),
    "epochs = 10\nepochs = 20": TrainingLength(),
    "epochs = int(sys.argv[1])": TrainingLength(),
    "epochs = 10\nepochs = args.epochs": TrainingLength(),
    "epochs = 3\np.add_argument('--epochs', default=5)": TrainingLength(epochs=5),
    "num_epochs = 3\np.add_argument('--epochs', default=5)": TrainingLength(),
    (
        "a.add_argument('--epochs', default=5)\nb.add_argument('--epochs', default=9)"
    ): TrainingLength(),
    "num_epochs = True": TrainingLength(),
    "parser.add_argument('--epochs', type=int)": TrainingLength(),
    "print 'Python 2'": TrainingLength(),
    "(" * 5000 + ")" * 5000: TrainingLength(),
    "x\0": TrainingLength(),
}


@pytest.mark.parametrize("text", SCRIPTS, ids=range(len(SCRIPTS)))
def test_what_a_script_takes_where_the_words_say_nothing(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert length(["--lr", "0.1"], source_facts(script).options) == SCRIPTS[text]
    assert length(["--epochs", "99"], source_facts(script).options) == TrainingLength(epochs=99)
    assert length([], source_facts(tmp_path / "missing.py").options) == TrainingLength()


ALIASES = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("-e", "--epochs", type=int, default=14)
parser.add_argument("--rounds", dest="max_steps", type=int, default=500)
parser.add_argument("--eval-every", type=int, default=5)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("-q", "--quick", type=int, help="train for so many Epochs less")
parser.add_argument("--config", default=None)
"""
DEFAULTS = TrainingLength(14, 500)
NOTHING = TrainingLength()


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("-e 2", TrainingLength(epochs=2)),
        ("-e2", TrainingLength(epochs=2)),
        ("-e=2", TrainingLength(epochs=2)),
        ("--epoch 1", TrainingLength(epochs=1)),
        ("--ep=1 --lr 1", TrainingLength(epochs=1)),
        ("--rounds 90", TrainingLength(steps=90)),
        ("--ro 90", TrainingLength(steps=90)),
        ("--e 3", NOTHING),  # argparse refuses it: of `--epochs` and `--eval-every`
        ("--lr 2", DEFAULTS),
        ("--eval-every 2", DEFAULTS),
        ("", DEFAULTS),
        ("-n 2", NOTHING),
        ("-v", DEFAULTS),
        ("--my-epochs 2", NOTHING),
        ("-q 2", NOTHING),
        ("--config x.yaml", NOTHING),
        ("--from run/settings.json", NOTHING),
        ("@arguments", NOTHING),
        ("SOLVER.MAX_EPOCHS 5", NOTHING),
    ],
)
def test_an_argument_is_understood_as_the_script_declares_it_or_nothing_is_known(
    words: str, known: TrainingLength, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ALIASES)
    assert length(words.split(), source_facts(script).options) == known


@pytest.mark.parametrize(
    ("text", "words", "known"),
    [
        (
            "@click.option('-e', '--epochs', 'count', default=9)\ndef main(count): pass",
            "-e 2",
            TrainingLength(epochs=2),
        ),
        # click refuses it
        ("@click.option('--epochs', default=9)\ndef main(epochs): pass", "--epoch 2", NOTHING),
        ("p = A(allow_abbrev=False)\np.add_argument('--epochs', default=9)", "--epoch 2", NOTHING),
        ("o.add_option('-E', dest='epochs', default=9)", "-E 2", TrainingLength(epochs=2)),
        ("p.add_argument('-e', dest='epochs', default=9)", "", TrainingLength(epochs=9)),
        (
            "EPOCHS = 10\np.add_argument('-n', type=int, default=EPOCHS)",
            "-n 2",
            TrainingLength(epochs=2),
        ),
        (
            "EPOCHS = 10\np.add_argument('-n', type=int, default=EPOCHS)",
            "",
            TrainingLength(epochs=10),
        ),
        ("p.add_argument('--epochs', default=9)\np.set_defaults(epochs=4)", "", NOTHING),
        ("p.add_argument('--epochs', default=9)\np.set_defaults(**known)", "", NOTHING),
        ("p.add_argument('epochs', nargs='?', default=9)", "2", NOTHING),
        ("p.add_argument('epochs', nargs='?', default=9)", "", TrainingLength(epochs=9)),
        ("EPOCHS = 10\nif sys.argv[1:]: train(int(sys.argv[1]))", "2", NOTHING),
        ("EPOCHS = 10", "2", TrainingLength(epochs=10)),
        ("p.add_argument('--epochs', default=9)\nif args.debug: args.epochs = 1", "", NOTHING),
        (
            "p.add_argument('--epochs', dest='num_epochs', default=9)\nargs.num_epochs *= 2",
            "",
            NOTHING,
        ),
        (
            "p.add_argument('--epochs', default=9)\nif args.debug: args.epochs = 1",
            "--epochs 3",
            TrainingLength(3),
        ),
        (
            "p.add_argument('--epochs', default=9)\nself.num_epochs = args.epochs",
            "",
            TrainingLength(9),
        ),
        (
            "p.add_argument('--epochs', default=9)\nargs.max_steps = args.epochs * len(x)",
            "",
            TrainingLength(9),
        ),
        ("epochs = 10\nepochs += 5", "", NOTHING),
    ],
)
def test_what_a_script_declares_in_other_ways(
    text: str, words: str, known: TrainingLength, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert length(words.split(), source_facts(script).options) == known


def test_a_report_is_completed_by_what_it_does_not_say_itself() -> None:
    said = TrainingLength(epochs=5, steps=100)
    told = Progress(TaskId("t"), step=7, epoch=2)
    assert said.complete(told) == Progress(TaskId("t"), step=7, epoch=2, epochs=5, steps=100)
    assert said.complete(Progress(TaskId("t"), step=7, epoch=2, epochs=9, steps=8)) == Progress(
        TaskId("t"), step=7, epoch=2, epochs=9, steps=8
    )
    assert said.complete(Progress(TaskId("t"), step=101, epoch=6)) == Progress(
        TaskId("t"), step=101, epoch=6
    )  # it goes on regardless
    assert said.complete(Progress(TaskId("t"), step=None)) == Progress(TaskId("t"), step=None)
