"""How long a job is to train, by its arguments and the defaults of its script."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.events import Progress
from headgate.telemetry.arguments import Length, length

GIVEN = {
    "--epochs 14": Length(epochs=14),
    "--lr 0.1 --epochs=14 --seed 3": Length(epochs=14),
    "--num-epochs 1_000": Length(epochs=1000),
    "--max_steps 1e5": Length(steps=100_000),
    "trainer.max_epochs=5 trainer.devices=2": Length(epochs=5),
    "--epochs 3 --max-steps -1": Length(epochs=3),
    "--epochs 3 --max-steps 500": Length(3, 500),
    "--epochs 3 --epochs 5": Length(epochs=5),
    "--epochs": Length(),
    "--epochs --fast": Length(),
    "--epochs 2.5": Length(),
    "--epochs 1e999": Length(),
    "--epochs many": Length(),
    "--epochs 0": Length(),
    "--start-epoch 7 --warmup-epochs 2 --steps-per-epoch 100": Length(),
    "epochs 5": Length(),
}


@pytest.mark.parametrize("words", GIVEN)
def test_what_the_words_of_a_command_say(words: str) -> None:
    assert length(words.split(), None) == GIVEN[words]


SCRIPTS = {
    "parser.add_argument('--epochs', type=int, default=14, metavar='N')": Length(epochs=14),
    "p.add_argument('-n', '--num-epochs', default=7)": Length(epochs=7),
    "@click.option('--max-steps', default=500)\ndef main(max_steps): pass": Length(steps=500),
    "class Config:\n    epochs: int = 3\n    max_iters: int = 600_000": Length(3, 600_000),
    "EPOCHS = 10\nfor epoch in range(EPOCHS): pass": Length(epochs=10),
    "epochs = 10\nepochs = 20": Length(),
    "epochs = int(sys.argv[1])": Length(),
    "epochs = 10\nepochs = args.epochs": Length(),
    "epochs = 3\np.add_argument('--epochs', default=5)": Length(epochs=5),
    "num_epochs = 3\np.add_argument('--epochs', default=5)": Length(),
    "a.add_argument('--epochs', default=5)\nb.add_argument('--epochs', default=9)": Length(),
    "num_epochs = True": Length(),
    "parser.add_argument('--epochs', type=int)": Length(),
    "print 'Python 2'": Length(),
    "(" * 5000 + ")" * 5000: Length(),
    "x\0": Length(),
}


@pytest.mark.parametrize("text", SCRIPTS, ids=range(len(SCRIPTS)))
def test_what_a_script_takes_where_the_words_say_nothing(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert length(["--lr", "0.1"], script) == SCRIPTS[text]
    assert length(["--epochs", "99"], script) == Length(epochs=99)
    assert length([], tmp_path / "missing.py") == Length()


def test_a_report_is_completed_by_what_it_does_not_say_itself() -> None:
    said = Length(epochs=5, steps=100)
    told = Progress("t", step=7, epoch=2)
    assert said.complete(told) == Progress("t", step=7, epoch=2, epochs=5, steps=100)
    assert said.complete(Progress("t", step=7, epoch=2, epochs=9, steps=8)) == Progress(
        "t", step=7, epoch=2, epochs=9, steps=8
    )
    assert said.complete(Progress("t", step=101, epoch=6)) == Progress("t", step=101, epoch=6)  # it goes on regardless
    assert said.complete(Progress("t", step=None)) == Progress("t", step=None)
