"""Terminals that know few letters, readers that go, and colours where nobody looks."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from tests.hub.user import SECONDS, User

from headgate.cli import streams

TEXT = "loss 0.5 … 3 × 2 – «a» ▁▄█ ± é 語 \udcff"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", "koi8-r"])
def test_what_has_no_letter_in_an_encoding_is_spelt_in_others(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    streams.prepare()
    out.write(TEXT)
    out.flush()
    assert raw.getvalue().endswith(b" \xff")  # a path that is no UTF-8 is the bytes that it is
    shown = raw.getvalue()[:-1].decode(encoding)
    assert (
        shown
        == {
            "ascii": 'loss 0.5 ... 3 x 2 - "a" _-# +- e ? ',
            "latin-1": "loss 0.5 ... 3 × 2 - «a» _-# ± é ? ",
            "cp1252": "loss 0.5 … 3 × 2 – «a» _-# ± é ? ",
            "utf-8": TEXT[:-1],
            "koi8-r": 'loss 0.5 ... 3 x 2 - "a" _▄█ +- e ? ',
        }[encoding]
    )


@pytest.mark.slow
def test_a_good_run_is_done_in_any_locale_and_what_is_printed_of_it_too(user: User) -> None:
    user.write(
        "trains.py", "for n in range(3): print(f'epoch {n + 1}/3 loss {1 / (n + 1)}', flush=True)"
    )
    run = user.types("run", "trains.py", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert "1 job was run" in run.stdout
    for words in (["metrics"], ["status"], ["explain"], ["predict", "trains"]):
        assert user.types(*words, PYTHONIOENCODING="ascii").stdout.isascii()
    forced = user.types("run", "trains.py", FORCE_COLOR="1").stdout  # colours, and no live table
    assert "trains: running, started" in forced
    assert "\x1b[1A" not in forced and "\x1b[2K" not in forced


def unread(user: User, *words: str) -> tuple[int, str]:
    """Exit code of a command whose output nobody reads, and what it says of that."""
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        user.command(*words),
        cwd=user.folder,
        env=user.variables,
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    os.close(write)
    return ended.returncode, ended.stderr


@pytest.mark.slow
def test_a_reader_that_goes_ends_a_command_quietly_and_no_run(user: User) -> None:
    user.types("run", "true")
    for words in (["ps"], ["status"], ["metrics", "--json"], ["schema"]):
        assert unread(user, *words) == (0, "")
    code, said = unread(user, "run", "--name", "goes-on", "sleep", "0.2")
    assert code == 1  # nobody knows yet whether its jobs end well
    assert "nobody reads this output any more; run " in said
    user.sees_state("goes-on", "done")
