"""Levels of Headgate's own log, by module."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from headgate.model import log_levels
from headgate.model.errors import UsageError


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where it logs to; at the end it is as before."""
    root = logging.getLogger(log_levels.ROOT)
    before = root.level, root.propagate
    yield io.StringIO()
    log_levels.configure("")
    for name in ("headgate.hub", "headgate.hub.live"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    root.setLevel(before[0])
    root.propagate = before[1]


def test_levels_hold_for_a_module_and_those_below_it(stream: io.StringIO) -> None:
    log_levels.configure("warning,hub=debug", logging.StreamHandler(stream))
    logging.getLogger("headgate.hub.live").debug("a detail")
    logging.getLogger("headgate.cli.run").info("a step")
    logging.getLogger("headgate.cli.run").warning("a doubt")
    messages = [line.partition(" ")[2] for line in stream.getvalue().splitlines()]
    assert messages == [
        "DEBUG headgate.hub.live: a detail",
        "WARNING headgate.cli.run: a doubt",
    ]


def test_asked_twice_it_logs_once(stream: io.StringIO) -> None:
    for _ in range(2):
        log_levels.configure("info", logging.StreamHandler(stream))
    logging.getLogger("headgate.hub.live").info("a step")
    assert stream.getvalue().count("a step") == 1


@pytest.mark.parametrize("text", ["loud", "hub=", "=info", "info,hub=all"])
def test_what_is_no_level_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="expected a level"):
        log_levels.parse(text)
