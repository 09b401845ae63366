"""The unit of systemd that runs the arbiter."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from headgate.machine import systemd
from headgate.model.errors import HeadgateError, UsageError

BOOTED = Path("/run/systemd/system")
"""A folder that is there if systemd started the machine: sd_booted(3)."""
UNIT = Path("/etc/systemd/system/headgate-arbiter.service")


def unit() -> str:
    """The text of the unit. The arbiter's boxes stay when it is stopped, with the jobs in them."""
    command = " ".join(f'"{word}"' for word in (sys.executable, "-m", "headgate", "arbiter"))
    return f"""[Unit]
Description=Headgate divides this machine between its users
Documentation=man:systemd.service(5)
After=local-fs.target nss-user-lookup.target

[Service]
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=1
KillMode=process
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
"""


def install(text: str) -> None:
    """Write, enable and start the unit; one that runs is started anew.

    Raises:
        HeadgateError: This is not root, or systemd is missing or refuses.
    """
    _check()
    UNIT.write_text(text)
    try:
        systemd.order("systemctl", "daemon-reload")
        systemd.order("systemctl", "enable", UNIT.name)
        systemd.order("systemctl", "restart", UNIT.name)
    except HeadgateError:
        UNIT.unlink(missing_ok=True)
        raise


def remove() -> bool:
    """Stop, disable and remove the unit. Returns whether there was one.

    Raises:
        HeadgateError: This is not root, or systemd is missing or refuses.
    """
    if not UNIT.exists():
        return False
    _check()
    systemd.order("systemctl", "disable", "--now", UNIT.name)
    UNIT.unlink(missing_ok=True)
    systemd.order("systemctl", "daemon-reload")
    return True


def _check() -> None:
    if os.geteuid() != 0:
        raise UsageError("only root can: sudo headgate arbiter install")
    if not BOOTED.is_dir() or shutil.which("systemctl") is None:
        raise HeadgateError(
            "this machine does not run systemd. Have `headgate arbiter` run as root "
            "from the machine's start on in another way, such as `@reboot` of root's crontab"
        )
