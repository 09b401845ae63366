"""What users read of a finding, where a test is about the words."""

from __future__ import annotations

from headgate.diagnosis.accounts import Account
from headgate.diagnosis.verdicts import verdict
from headgate.reports import findings


def why(account: Account) -> str:
    """The sentences of an account's verdict."""
    return findings.why(verdict(account), account)


def next_step(account: Account) -> str:
    """What its verdict says to do."""
    return findings.next_step(verdict(account), account)
