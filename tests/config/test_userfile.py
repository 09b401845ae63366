"""Files of users that are odd as a whole: each is one clear message, at once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import ModuleType

import pytest

from headgate.config import clusterfile, jobfile, planfile
from headgate.model.errors import UsageError

BOMB = "\n".join(
    ["a0: &a0 x", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('jobs: [{run: "a \\ud800 b"}]', "leave out the half of a surrogate pair"),
        ('jobs: [{run: x, env: {"A\\udfff": "1"}}]', "leave out the half of a surrogate pair"),
        ('"\\udc80": 1', "leave out the half of a surrogate pair"),
        (BOMB, "its aliases make more than 50,000 values of it"),
        ("jobs: " + "[" * 3000, "nested too deep"),
        ("jobs: " + "{a: " * 3000, "nested too deep"),
        ("- " * 3000, "nested too deep"),
        ("\n".join(" " * i + "a:" for i in range(1000)), "nested too deep"),
        (
            "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 300))]),
            "nested too deep",
        ),
        ("jobs: !!timestamp x", "expected a list"),
        ("jobs: {script: x.py}", "expected a list; begin each entry with `- `"),
        ("script: x.py", "it belongs in an entry of the list `jobs:`"),
        ("jobs: [{run: x, at: !!float x}]", "put text into"),
        ("jobs: [{run: x, at: !!int x}]", "put text into"),
        ("jobs: [{run: x, at: !!bool x}]", "put text into"),
        ("jobs: !!binary x", "problem"),
        ("jobs: !!python/object/apply:os.getpid []", "could not determine a constructor"),
        ("jobs: [{run: x, at: 2020-99-99}]", "expected a time such as"),
        ("jobs: [{run: x, at: " + "9" * 5000 + "}]", "problem"),
        ("jobs: &a [*a]", "an alias of what it is in"),
        ("? {a: b}\n: c", "unhashable key"),
        ("\x00", "problem"),
        ("x" * 1_000_001, "more than 1,000,000 characters"),
        ("jobs: [{run: x, timeout: 1e400}]", "expected a time"),
    ],
)
def test_what_is_odd_as_a_whole_is_one_message_at_once(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    for load in (jobfile.load, clusterfile.read, planfile.load):
        began = time.thread_time()
        with pytest.raises(UsageError) as caught:
            load(str(path))
        assert time.thread_time() - began < 1.0
        assert len(str(caught.value)) < 5000
        if load is jobfile.load:
            assert said in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "nowhere.yaml",
        "a\0b.yaml",
        "x" * 300 + ".yaml",
        "loop/jobs.yaml",
        "\udcff.yaml",
        ".",
        "latin.yaml",
    ],
)
def test_a_file_that_cannot_be_read_is_one_message(tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin.yaml").write_bytes(b"jobs: [{run: caf\xe9}]")
    with pytest.raises(UsageError, match=r"^cannot read ") as caught:
        jobfile.load(str(tmp_path / path))
    assert str(caught.value).endswith("is no UTF-8; save the file in this encoding") == (
        path == "latin.yaml"
    )


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{script: a.py, workdir: loop}", "which is not a folder"),
        ("{script: loop}", "which is not a file"),
        (f"{{script: {'x' * 300}.py}}", "which is not a file"),
        (f"{{run: x, workdir: {'x' * 300}}}", "which is not a folder"),
        (f"{{run: x, workdir: {'x/' * 3000}}}", "which is not a folder"),
        (f"{{run: x, name: {'x' * 300}}}", "at most 64"),
        (f"{{script: a.py, python: ./{'x' * 300}}}", "which is not a program"),
        ("{script: a.py, python: ./loop}", "which is not a program"),
    ],
)
def test_paths_that_lead_nowhere_are_one_message(tmp_path: Path, entry: str, said: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a.py").touch()
    (tmp_path / "jobs.yaml").write_text(f"jobs: [{entry}]")
    with pytest.raises(UsageError) as caught:
        jobfile.load(str(tmp_path / "jobs.yaml"))
    assert said in str(caught.value)


def test_a_device_that_never_ends_is_not_read() -> None:
    if not os.path.exists("/dev/zero"):
        pytest.skip("this machine has no /dev/zero")
    with pytest.raises(UsageError, match="it is a device; expected a file"):
        jobfile.load("/dev/zero")


@pytest.mark.parametrize("file", [jobfile, planfile, clusterfile])
def test_the_schema_says_what_every_field_means(file: ModuleType) -> None:
    schema = file.schema()
    assert schema["title"].startswith("Headgate ")
    fields = {
        f"{name}.{key}": field.get("description", "")
        for name, entry in {"": schema, **schema.get("$defs", {})}.items()
        for key, field in entry.get("properties", {}).items()
    }
    assert fields
    assert not [key for key, text in fields.items() if not text.endswith(".") or "\n" in text]
