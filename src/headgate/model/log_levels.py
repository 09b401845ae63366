"""What Headgate's own modules log: nothing, unless `HEADGATE_LOG` or `--verbose` asks for it.

HEADGATE_LOG=debug                              all modules
HEADGATE_LOG=warning,headgate.hub.live=debug    one of them in detail
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
    """The level of each module that a value of the variable names; `headgate` stands for all.

    Raises:
        UsageError: A level is none.
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
    """The level for so many `--verbose`: none, `info` or `debug`."""
    return ("", "info", "debug")[min(count, 2)]


def configure(levels: str | None = None, handler: logging.Handler | None = None) -> None:
    """Have Headgate's modules log from now on, in place of how they did before.

    Args:
        levels: As in the variable, which it stands in for; empty: nothing is logged.
        handler: Where to; None: standard error.

    Raises:
        UsageError: A level is none.
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
    root.propagate = False  # a plug-in's root logger would say it again
    root.setLevel(logging.CRITICAL)
    for module, level in chosen.items():
        logging.getLogger(module).setLevel(level)
