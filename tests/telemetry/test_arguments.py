"""How long a job is to train, by its arguments and the defaults of its script."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.events import Progress
from headgate.identifiers import TaskId
from headgate.telemetry.arguments import TrainingLength, length

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
    "@click.option('--max-steps', default=500)\ndef main(max_steps): pass": TrainingLength(steps=500),
    "class Config:\n    epochs: int = 3\n    max_iters: int = 600_000": TrainingLength(3, 600_000),
    "EPOCHS = 10\nfor epoch in range(EPOCHS): pass": TrainingLength(epochs=10),
    "epochs = 10\nepochs = 20": TrainingLength(),
    "epochs = int(sys.argv[1])": TrainingLength(),
    "epochs = 10\nepochs = args.epochs": TrainingLength(),
    "epochs = 3\np.add_argument('--epochs', default=5)": TrainingLength(epochs=5),
    "num_epochs = 3\np.add_argument('--epochs', default=5)": TrainingLength(),
    "a.add_argument('--epochs', default=5)\nb.add_argument('--epochs', default=9)": TrainingLength(),
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
    assert length(["--lr", "0.1"], script) == SCRIPTS[text]
    assert length(["--epochs", "99"], script) == TrainingLength(epochs=99)
    assert length([], tmp_path / "missing.py") == TrainingLength()


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
