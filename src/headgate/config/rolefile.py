"""The roles of a job in its file."""

from __future__ import annotations

from headgate.config.records import entry_of
from headgate.model.roles import Ready, Role


class ReadyEntry(entry_of(Ready)):  # type: ignore[misc]  # its keys are the fields of Ready
    """When a task of a role is ready; give either `port` or `line`."""


class RoleEntry(entry_of(Role, {Ready: ReadyEntry})):  # type: ignore[misc]  # as above, of Role
    """The tasks of a job that run one command."""
