"""Every code block of the README and of docs/ does what it says."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import prose
from tests.hub.user import Done, furnish, headgate, speed

from headgate import lab
from headgate.config import arbiterfile, clusterfile, jobfile, planfile
from headgate.studies import studyfile

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FIRST = ("README.md", "start.md", "plans.md", "cli.md", "one_machine.md")
"""Pages whose command lines always run; those of a page on which all are of kinds that stand there
too run in `make test-long` and `make docs`.
"""
__all__ = ["speed"]  # a fixture
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# How many words a sentence of a page has on average, and how many the longest one has.
MEAN, LONGEST = 16, 25

STUMBLE = re.compile(r"\b(of which|of whom|the likes of)\b")
"""A reader has to go back to see what such a clause is about."""

# Scripts that the pages speak of. None imports a framework, so that a page takes seconds.
TRAINS = """
import time
for epoch in range(1, {epochs} + 1):
    print(f"epoch {{epoch}}/{epochs} loss {{1 / epoch:.4f}}", flush=True)
    time.sleep({pause})
"""
SCRIPTS = {
    "train.py": TRAINS.format(epochs=3, pause=0.05),
    "a.py": TRAINS.format(epochs=3, pause=0.05),
    "b.py": TRAINS.format(epochs=3, pause=0.05),
    "sweep.py": TRAINS.format(epochs=10_000, pause=0.05),
    "broken.py": "raise SystemExit(3)\n",
    "jobs.csv": "job_id,submission_time,cores,duration\na,0,2,60\nb,10,1,30\nc,20,2,600\n",
    "trace.csv": "job_id,user,submission_time,num_gpu,duration\n"
    "a,ada,0,1,60\nb,bob,10,4,30\nc,ada,20,2,600\n",
    "machine.yaml": "nodes: [{name: lab1, cores: 8, memory: 8GiB, gpus: ["
    + ", ".join(["{name: V100, memory: 16GB}"] * 4)
    + "]}]\n",
}
MODEL = """
import torch
import headgate.torch as hg
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
loader = torch.utils.data.DataLoader(data, 16)
model = torch.nn.Linear(8, 1)
model, optimizer, loader = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in hg.epochs(1000):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
"""


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def every(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def is_first(block: Block) -> bool:
    """Whether a block is the first one of its page that is in its language."""
    return block == next(each for each in blocks(block.page) if each.language == block.language)


def is_cluster(block: Block) -> bool:
    """Whether a block of YAML is a cluster file, not a job file."""
    return re.search(r"^nodes:", block.text, re.MULTILINE) is not None


def is_plan(block: Block) -> bool:
    """Whether a block of YAML is a plan file."""
    return re.search(r"^strategy:", block.text, re.MULTILINE) is not None


def is_study(block: Block) -> bool:
    """Whether a block of YAML is a study file."""
    return re.search(r"^workloads:", block.text, re.MULTILINE) is not None


def is_rules(block: Block) -> bool:
    """Whether a block of YAML has an administrator's rules of a shared machine."""
    return re.search(r"^administrators:", block.text, re.MULTILINE) is not None


def commands(page: Path) -> list[tuple[str, int]]:
    """Command lines of a page's console blocks, and the exit code that each is said to have."""
    found = []
    for block in blocks(page):
        if block.language == "console":
            for line in block.text.splitlines():
                assert line.startswith("$ "), (
                    f"{block}: {line!r} is no command; put output into a block of `text`"
                )
                code = re.search(r"# exit code (\d+)", line)
                found.append((line[2:], int(code[1]) if code else 0))
    return found


def kinds(page: Path) -> set[tuple[str, ...]]:
    """Verb, options and exit code of each of a page's command lines; `--json` of every verb has a
    test of its own.
    """
    found = set()
    for line, code in commands(page):
        words = shlex.split(line, comments=True)
        own = words[: words.index("--")] if "--" in words else words
        options = sorted(
            {word.partition("=")[0] for word in own if word.startswith("--")} - {"--json"}
        )
        found.add((*own[: 3 if own[1] == "lab" else 2], *options, str(code)))
    return found


def repeats(page: Path) -> bool:
    """Whether all that a page's command lines show stands on the first pages."""
    shown = set().union(
        *(kinds(ROOT / name if name == "README.md" else ROOT / "docs" / name) for name in FIRST)
    )
    return page.name not in FIRST and kinds(page) <= shown


@pytest.fixture
def folder(tmp_path: Path, home: Path, speed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader of the pages stands: the scripts that they speak of, and `headgate` on the
    PATH.
    """
    furnish(home, speed)
    place = tmp_path / "project"
    place.mkdir()
    for name, text in SCRIPTS.items():
        (place / name).write_text(text)
    (place / "model.py").write_text(MODEL)
    (place / "package").mkdir()
    (place / "package" / "train.py").write_text(SCRIPTS["train.py"])
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "headgate").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m headgate "$@"\n'
    )
    (bin / "headgate").chmod(0o755)
    monkeypatch.setenv(
        "PATH", f"{bin}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def no_labs_left() -> Iterator[None]:
    yield
    for name in lab.names():
        lab.down(name)


def run(command: list[str], folder: Path, code: int = 0) -> None:
    if command[0] == "headgate":
        done = headgate(command[1:], folder, os.environ, 300)
    else:
        ended = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        done = Done(ended.returncode, ended.stdout, ended.stderr)
    assert done.code == code, f"{shlex.join(command)} gave {done.code}:\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_of_a_language_that_is_checked(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {
        "console",
        "python",
        "yaml",
        "toml",
        "json",
        "text",
    }


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.long) if repeats(page) else page
        for page in PAGES
        if commands(page)
    ],
    ids=lambda page: page.name,
)
@pytest.mark.usefixtures("no_labs_left")
def test_command_lines_of_a_page_work_one_after_the_other(page: Path, folder: Path) -> None:
    for block in reversed([block for block in blocks(page) if block.language == "yaml"]):
        name = "lab.yaml" if is_cluster(block) else "plan.yaml" if is_plan(block) else "jobs.yaml"
        name = "study.yaml" if is_study(block) else name
        name = "arbiter.yaml" if is_rules(block) else name
        (folder / name).write_text(block.text)
    for line, code in commands(page):
        words = shlex.split(line, comments=True)
        match words:
            case ["headgate" | "python" | "echo", *_]:
                run(["bash", "-c", line] if {"<", "|"}.intersection(words) else words, folder, code)
            case ["make", target, *_]:
                assert re.search(
                    rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE
                ), line
            case ["git", "clone", "URL", "headgate"]:
                pass  # the folder that the next lines install
            case ["pip" | "pipx", "install", what] | ["uv", "tool", "install", what]:
                name, _, extras = what.rstrip("]").partition("[")
                # nothing is published, and somebody else has the name there
                assert name == "./headgate"
                assert (
                    set(filter(None, extras.split(","))) <= PROJECT["optional-dependencies"].keys()
                ), line
            case _:
                pytest.fail(f"{page.name}: nobody checks {line!r}")


@pytest.mark.parametrize(
    "block",
    [
        # TensorFlow takes its time to be imported.
        pytest.param(
            block, marks=[pytest.mark.long] if "keras" in block.text and not is_first(block) else []
        )
        for block in every("python")
        if block.page.name != "README.md"  # tests/test_readme.py runs that one
    ],
    ids=str,
)
def test_python_blocks_run(block: Block, folder: Path) -> None:
    ast.parse(block.text)
    (folder / "block.py").write_text(block.text)
    run(["python", "block.py"], folder)


@pytest.mark.parametrize("block", every("yaml"), ids=str)
def test_yaml_blocks_are_files_that_headgate_reads(block: Block, folder: Path) -> None:
    (folder / "block.yaml").write_text(block.text)
    if is_cluster(block):
        assert clusterfile.read(str(folder / "block.yaml")).cluster.nodes
    elif is_plan(block):
        assert planfile.load(str(folder / "block.yaml")).workers
    elif is_rules(block):
        assert arbiterfile.read(folder / "block.yaml").parts
    elif is_study(block):
        assert studyfile.load(str(folder / "block.yaml")).workloads
    else:
        assert jobfile.load(str(folder / "block.yaml"))


@pytest.mark.parametrize("block", every("toml", "json"), ids=str)
def test_toml_and_json_blocks_parse(block: Block) -> None:
    assert (tomllib.loads if block.language == "toml" else json.loads)(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_sentences_of_a_page_are_short(page: Path) -> None:
    found = prose.figures(page.read_text())
    assert found.most <= LONGEST, (
        f"{page.name} has a sentence of {found.most} words, at most {LONGEST}: {found.longest}"
    )
    assert found.mean <= MEAN, (
        f"{page.name}: a sentence has {found.mean:.1f} words on average, at most {MEAN}"
    )


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_a_page_has_no_clause_that_a_reader_stumbles_over(page: Path) -> None:
    running, cells = prose.sentences(page.read_text())
    assert [each for each in [*running, *cells] if STUMBLE.search(each)] == []


def test_nor_has_a_module() -> None:
    modules = sorted((ROOT / "src").rglob("*.py"))
    assert [
        f"{path}: {line}"
        for path in modules
        for line in path.read_text().splitlines()
        if STUMBLE.search(line)
    ] == []


def test_sentences_are_told_apart() -> None:
    page = """# A heading. It is none.

One has *six words*, 1.5 of them. Two
goes over a line, with `code. Of a kind` and [a link](a.md)!

- an item: `x`
- (A second.) And a third

```python
# Code. Is none.
```

| a cell | Two in it. That is so. |
|---|---|
"""
    assert prose.sentences(page) == (
        [
            "One has *six words*, 1.5 of them.",
            "Two goes over a line, with CODE and a link!",
            "an item: CODE",
            "(A second.)",
            "And a third",
        ],
        ["a cell", "Two in it.", "That is so."],
    )
    found = prose.figures(page)
    assert (found.mean, found.most, found.longest) == (
        4.6,
        9,
        "Two goes over a line, with CODE and a link!",
    )
