"""Says on a terminal that a long computation goes on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from headgate.model.units import say_seconds

_PATIENCE_SECONDS = 2.0
_SAYS_SECONDS = 1.0


@contextmanager
def telling(text: Callable[[], str]) -> Iterator[None]:
    """On a terminal, say what is done and for how long: on standard error, after two seconds, and
    each second from then on. The line is gone afterwards.

    Args:
        text: Gives it in words, such as `explaining 10,000 jobs`. Another thread calls it.
    """
    if not sys.stderr.isatty():
        yield
        return
    began, has_ended = time.monotonic(), threading.Event()

    def tell() -> None:
        line, patience = "", _PATIENCE_SECONDS
        while not has_ended.wait(patience):
            before, patience = len(line), _SAYS_SECONDS
            line = f"{text()}: {say_seconds(round(time.monotonic() - began))}"
            click.echo(f"\r{line:<{before}}", err=True, nl=False)
        if line:
            click.echo(f"\r{'':<{len(line)}}\r", err=True, nl=False)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
