"""The arguments with which plain scripts resume from their own checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.model.jobs import Job
from headgate.scripts.facts import facts_of
from headgate.scripts.resume_arguments import ResumeSource, resumed, way

PATH = "/out/checkpoint-500"


def job(folder: Path, script: str, *args: str) -> Job:
    (folder / "train.py").write_text(script)
    return Job(name="train", script="train.py", workdir=str(folder), args=args)


def argparse(option: str) -> str:
    return f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument({option})\n"


DECLARED = {
    '"--resume"': ("--resume", PATH),
    '"-r", "--resume", type=str, metavar="PATH"': ("--resume", PATH),
    '"--resume", action="store_true"': ("--resume",),
    '"--resume-from-checkpoint", default=None': ("--resume-from-checkpoint", PATH),
    '"--ckpt_path"': ("--ckpt_path", PATH),
    '"--load", dest="resume"': ("--load", PATH),
}


@pytest.mark.parametrize("option", DECLARED)
def test_an_option_that_the_script_declares_is_known(option: str, tmp_path: Path) -> None:
    trains = job(tmp_path, argparse(option))
    found = way(trains, facts_of(trains))
    assert found is not None
    assert (found.arguments(PATH), found.known) == (DECLARED[option], ResumeSource.DECLARED)


def test_options_that_may_name_another_file_are_not_taken(tmp_path: Path) -> None:
    trains = job(tmp_path, argparse('"--checkpoint", help="where to save"'))
    assert way(trains, facts_of(trains)) is None


OF_TRAINERS = {
    "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model)": ("--ckpt_path", PATH),
    (
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "[args] = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)\n"
    ): ("--resume_from_checkpoint", PATH),
    (
        "import hydra\n@hydra.main(config_path='c')\ndef main(cfg):\n"
        "    trainer.fit(model, ckpt_path=cfg.get('ckpt_path'))\n"
    ): (f"ckpt_path={PATH}",),
}


@pytest.mark.parametrize("script", OF_TRAINERS, ids=["Lightning", "Trainer", "Hydra"])
def test_the_option_of_a_known_trainer_is_known(script: str, tmp_path: Path) -> None:
    trains = job(tmp_path, script)
    found = way(trains, facts_of(trains))
    assert found is not None
    assert (found.arguments(PATH), found.known) == (OF_TRAINERS[script], ResumeSource.TRAINER)


@pytest.mark.parametrize(
    "line",
    [
        "model.fit(x, callbacks=[keras.callbacks.BackupAndRestore('backup')])",
        "last = get_last_checkpoint(args.output_dir)",
        "trainer.train(resume_from_checkpoint=True)",
        "trainer.fit(model, ckpt_path='last')",
    ],
)
def test_a_script_that_looks_for_its_checkpoint_needs_nothing(line: str, tmp_path: Path) -> None:
    trains = job(tmp_path, line)
    found = way(trains, facts_of(trains))
    assert found is not None
    assert (found.words, found.known) == ((), ResumeSource.BY_ITSELF)


def test_what_the_user_says_goes_first(tmp_path: Path) -> None:
    trains = job(tmp_path, argparse('"--resume"'))
    stated = replace(trains, resume_with="--start-from {checkpoint} --strict")
    found = way(stated, facts_of(stated))
    assert found is not None
    assert found.arguments(PATH) == ("--start-from", PATH, "--strict")
    by_itself = way(replace(trains, resumes=True), facts_of(trains))
    assert by_itself is not None
    assert not by_itself.names_checkpoint


@pytest.mark.parametrize("args", [("--resume", "old.pt"), ("--resume=old.pt",), ()])
def test_an_argument_that_the_command_has_is_replaced(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    trains = job(tmp_path, argparse('"--resume"'), "--epochs", "3", *args, "--seed", "1")
    found = way(trains, facts_of(trains))
    assert found is not None
    wanted = ("--epochs", "3", "--seed", "1", "--resume", PATH)
    assert resumed(trains, found, PATH).args == wanted
    run = replace(trains, script=None, run=("python", "train.py", *args), args=())
    again = resumed(run, found, PATH)
    assert (again.run, again.args) == (("python", "train.py"), ("--resume", PATH))
