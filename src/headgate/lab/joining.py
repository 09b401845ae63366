"""Moves a process into a node."""

from __future__ import annotations

import os

from headgate.isolation import nsenter
from headgate.lab import limits, record
from headgate.model.errors import HeadgateError


def enter(node: str) -> None:
    """Move this process into a node (`NODE` or `LAB/NODE`): its cgroups, network, host name and
    `/etc/hosts`.

    Raises:
        NotFoundError: The node does not exist.
        UsageError: Several labs have a node of that name.
        HeadgateError: The node cannot be entered.
    """
    lab, name = record.choose_node(node)
    place = lab.place(name)
    try:
        limits.enter(lab, name)
        nsenter.enter(
            os.fsencode(place.namespace), os.fsencode(place.hostname), os.fsencode(place.hosts)
        )
    except OSError as error:
        cure = (
            "bring its lab up again: headgate lab up FILE" if os.geteuid() == 0 else "it needs root"
        )
        raise HeadgateError(
            f"node {name!r} cannot be entered: {error.filename}: {error.strerror}; {cure}"
        ) from error
