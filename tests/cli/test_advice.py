"""Whatever a message tells to type can be typed."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.hub.user import User

import headgate
from headgate.cli import VERBS
from headgate.cli import headgate as command

PACKAGE = Path(headgate.__file__).parent
_ADVICE = re.compile(rf"headgate ((?:{'|'.join(VERBS)})\b[^`\n;,]*)")
_PLACEHOLDER = re.compile(r"\b[A-Z]{1,}\b")
"""What stands for a name or a number of the user's, such as N or RUN."""


def texts(module: Path) -> Iterator[str]:
    """The texts of a module that may be told, with 1 in the place of what is filled in; no
    docstrings.
    """
    tree = ast.parse(module.read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not {id(node)} & (docs | inside)
        ):
            yield node.value


def advices() -> list[tuple[str, str]]:
    """Module and command line of each advice."""
    found = []
    telling = (path for path in sorted(PACKAGE.rglob("*.py")) if "headgate " in path.read_text())
    for module in telling:
        for text in texts(module):
            name = str(module.relative_to(PACKAGE))
            found += [(name, line.strip(" .:)")) for line in _ADVICE.findall(text)]
    assert len(found) > 50
    return found


def parse(line: str) -> None:
    """Read a command line as the command does, without doing it.

    Raises:
        click.UsageError: It cannot be typed.
    """
    verb, *words = shlex.split(_PLACEHOLDER.sub("1", line))
    found = command.get_command(click.Context(command), verb)
    assert found is not None
    if isinstance(found, click.Group):
        if not words:  # it shows its help
            return
        if words[0] not in found.commands and verb == "study":  # FILE alone runs it
            words.insert(0, "run")
        _, found, words = found.resolve_command(click.Context(found), words)
        assert found is not None
    for option in found.params:
        if isinstance(option.type, click.Choice) and "1" in words[1:]:
            at = words.index("1", 1)
            if words[at - 1] in option.opts:  # a placeholder for one of its choices
                words[at] = option.type.choices[0]
    found.make_context(found.name, words)


def test_what_a_message_tells_to_type_is_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("1", "1.yaml"):  # a file of the user's
        (tmp_path / name).touch()
    wrong = []
    for module, line in advices():
        try:
            parse(line)
        except (click.UsageError, ValueError) as error:
            wrong.append((module, line, str(error)))
    assert not wrong


PRINTS = """
    import sys
    print("epoch 1/1 loss 0.5", sys.argv[1:])
    sys.exit("--fail" in sys.argv)
"""


@pytest.mark.slow
def test_what_is_told_at_a_mistake_works_when_it_is_typed(user: User) -> None:
    """Each line is what somebody types, with the exit code of what they are told to type then."""
    user.write("train_a.py", PRINTS)
    user.write("jobs.yaml", "jobs: [{script: train_a.py, cores: 1}]")
    (user.folder / "pack").mkdir()
    user.write("pack/go.py", PRINTS)
    for typed, told in (
        (["train_a.py"], "headgate run train_a.py"),
        (["run", "train_a.py --epochs 3"], "headgate run train_a.py -- --epochs 3"),
        (["run", "train_a.py", "--epochs", "3"], "headgate run train_a.py -- --epochs 3"),
        (
            ["run", "--cores", "1", "train_a.py", "--lr=0.1", "-v"],
            "headgate run --cores 1 train_a.py -- --lr=0.1 -v",
        ),
        (["run", "pack/go"], "headgate run -m pack.go"),
        (["run", "train_a.py", "5"], "headgate run train_a.py -- 5"),
    ):
        said = user.types(*typed, code=2).stderr
        assert told in said, said
        user.types("run", "--dry-run", *shlex.split(told)[2:])
    assert "write `limits: {cores: 1}`" in user.types("run", "jobs.yaml", code=2).stderr
    user.write("jobs.yaml", "jobs: [{script: train_a.py, limits: {cores: 1}}]")
    for option, field in (
        ("--grace", "grace: ..."),
        ("--goal", "progress: {goal: ...}"),
        ("--after", "after: ..."),
    ):
        said = user.types("run", "train_a.py", option, "5", code=2).stderr
        assert f"A job has it in a job file: `{field}`" in said
    assert "in a job file" not in user.types("run", "train_a.py", "--fail", code=2).stderr
    user.types("run", "--dry-run", "jobs.yaml")
    failed = user.types("run", "train_a.py", "--", "--fail", code=1).stdout
    for told in re.findall(r"`headgate ([^`]*)`", failed):
        user.types(*shlex.split(told))
    said = user.types("resume", code=2).stderr
    [told] = re.findall(r"headgate (resume .*)", said)
    user.types(*shlex.split(told), code=1)
