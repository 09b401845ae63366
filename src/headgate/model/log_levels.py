"""Logging of Headgate's own modules: off unless `HEADGATE_LOG` or `--verbose` turns it on.

HEADGATE_LOG=debug                              all modules
HEADGATE_LOG=warning,headgate.hub.live=debug    one module in detail
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from headgate.model.errors import UsageError

VARIABLE = "HEADGATE_LOG"
ROOT = "headgate"
LEVELS = ("error", "warning", "info", "debug")
_FORM = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
_TIME = "%H:%M:%S"


def parse(text: str) -> dict[str, str]:
    """Parse the variable: the level of each named module; `headgate` stands for all.

    Raises:
        UsageError: A level is unknown.
    """
    levels = {}
    for part in filter(None, map(str.strip, text.split(","))):
        module, equals, level = part.rpartition("=")
        if level.lower() not in LEVELS or bool(module) != bool(equals):
            raise UsageError(
                f"found {VARIABLE}={text!r}; expected a level ({', '.join(LEVELS)}), or "
                "MODULE=LEVEL, with commas between several"
            )
        name = module if module.partition(".")[0] in ("", ROOT) else f"{ROOT}.{module}"
        levels[name or ROOT] = level.upper()
    return levels


def of_verbosity(count: int) -> str:
    """The level for this many `--verbose`: none, `info` or `debug`."""
    return ("", "info", "debug")[min(count, 2)]


def configure(levels: str | None = None, handler: logging.Handler | None = None) -> None:
    """Set the log levels of Headgate's modules, replacing earlier ones.

    Args:
        levels: Levels as in the variable, overriding it; empty: log nothing.
        handler: Where to log; None: standard error.

    Raises:
        UsageError: A level is unknown.
    """
    chosen: Mapping[str, str] = parse(os.environ.get(VARIABLE, "") if levels is None else levels)
    root = logging.getLogger(ROOT)
    for former in list(root.handlers):
        root.removeHandler(former)
        former.close()
    if not chosen:
        return
    handler = handler or logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORM, _TIME))
    root.addHandler(handler)
    root.propagate = False  # a plug-in's root logger would repeat it
    root.setLevel(logging.CRITICAL)
    for module, level in chosen.items():
        logging.getLogger(module).setLevel(level)
