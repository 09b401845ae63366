"""Addresses of Apprise: those that it knows, before there is anything to deliver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec

from headgate.model.errors import UsageError
from headgate.model.recipients import Recipient

VARIABLE = re.compile(r"\$\{(\w+)\}")
"""What stands for the value of a variable in an address."""
_CURE = "expected one that https://github.com/caronc/apprise lists"


def check(recipients: Iterable[Recipient]) -> None:
    """Check addresses of Apprise, where that is installed. Takes a second of CPU time.

    Raises:
        UsageError: It knows no such address.
    """
    named = {to.apprise: to.name for to in recipients if to.apprise is not None}
    if not named or find_spec("apprise") is None:
        return
    import apprise
    from apprise.manager_plugins import NotificationManager

    schemes = NotificationManager()
    for address, name in named.items():
        if address.partition("://")[0].lower() not in schemes:
            raise UsageError(f"found notify {name}..., which Apprise does not know; {_CURE}")
        # the values of variables may not be known yet
        if VARIABLE.search(address) is None and apprise.Apprise.instantiate(address) is None:
            raise UsageError(f"found notify {name}... with a part missing or wrong; {_CURE}")
