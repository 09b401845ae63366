"""Names of users by the kernel's numbers. A user keeps the name after the deletion, and while a
directory of users does not answer.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from contextlib import suppress


def identify(uid: int, gid: int, known: Mapping[str, int]) -> tuple[str, frozenset[str]]:
    """The name of a user, and the names of the user's groups.

    Args:
        uid: The user.
        gid: The group that the user is in besides those of the directory.
        known: The numbers of users who were named before.
    """
    groups = set[str]()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        return name_of(uid, known), frozenset()
    for group in os.getgrouplist(user, gid):
        with suppress(KeyError):
            groups.add(grp.getgrgid(group).gr_name)
    return user, frozenset(groups)


def name_of(uid: int, known: Mapping[str, int]) -> str:
    """The name of a user, as `identify` has it. A user whose name was never known has a number,
    with a sign that no name has.
    """
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    former = (user for user, number in known.items() if number == uid and not _exists(user))
    return next(former, f"#{uid}")


def uid_of(user: str, known: Mapping[str, int]) -> int | None:
    """The number of a user; None: there is none any more, and none is known."""
    if user in known:
        return known[user]
    with suppress(KeyError):
        return pwd.getpwnam(user).pw_uid
    return None


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
