"""A unit of systemd for this user that goes on with runs after the machine was started again."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from headgate.machine import systemd
from headgate.model.errors import HeadgateError
from headgate.recorded import runs

UNIT = "headgate.service"


def unit_path() -> Path:
    """Path of the unit."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "systemd" / "user" / UNIT


def unit() -> str:
    """The text of the unit: at each start it runs a command that starts a hub if runs wait for one.

    The hub lives on when the unit is stopped, and a crash of the hub is its guard's affair. It may
    make cgroups below that of the unit, for the limits of its jobs.
    """
    command = " ".join(map(_quoted, (sys.executable, "-m", "headgate", "ps")))
    return f"""[Unit]
Description=Headgate goes on with runs after a restart

[Service]
Type=oneshot
RemainAfterExit=yes
KillMode=process
Delegate=yes
Environment={_quoted(f"HEADGATE_HOME={runs.home()}")}
ExecStart={command}

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """A word of a unit, in which `%` begins a specifier."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def install() -> Path:
    """Write and enable the unit, also without a login of its user. Returns its path.

    Raises:
        HeadgateError: systemd is missing or refuses.
    """
    path, text = unit_path(), unit()
    _check()
    _run("loginctl", "enable-linger")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    try:
        _run("systemctl", "--user", "daemon-reload")
        _run("systemctl", "--user", "enable", UNIT)
    except HeadgateError:
        path.unlink(missing_ok=True)
        raise
    return path


def remove() -> bool:
    """Disable and remove the unit. Whether its user's units start without a login stays as it is.
    Returns whether there was one.

    Raises:
        HeadgateError: systemd is missing or refuses.
    """
    if not unit_path().exists():
        return False
    _check()
    _run("systemctl", "--user", "disable", UNIT)
    unit_path().unlink(missing_ok=True)
    _run("systemctl", "--user", "daemon-reload")
    return True


def _check() -> None:
    for program in ("systemctl", "loginctl"):
        if shutil.which(program) is None:
            raise HeadgateError(
                f"found no {program}: this machine has no systemd. Have `headgate ps` run at its "
                "start in another way, such as `@reboot` of cron"
            )


def _run(*words: str) -> None:
    cure = "log in to this machine as yourself (not by su or sudo), and try again"
    systemd.order(*words, cure=cure)
