"""Policies, which move shares between running jobs."""

from __future__ import annotations

from headgate.policies.base import (
    Arrived,
    Change,
    Changed,
    Decision,
    Left,
    Placed,
    Policy,
    Predicted,
    Reported,
    Stalled,
    Trial,
    Used,
)
from headgate.policies.built_in import BUILT_IN, DEFAULT, make
from headgate.policies.equal import EqualPolicy
from headgate.policies.flowcon import FlowConPolicy
from headgate.policies.headgate import HeadgatePolicy
from headgate.policies.las import LasPolicy
from headgate.policies.none import NoPolicy
from headgate.policies.slaq import SlaqPolicy
from headgate.policies.srpt import SrptPolicy
from headgate.policies.themis import ThemisPolicy

__all__ = [
    "BUILT_IN",
    "DEFAULT",
    "Arrived",
    "Change",
    "Changed",
    "Decision",
    "EqualPolicy",
    "FlowConPolicy",
    "HeadgatePolicy",
    "LasPolicy",
    "Left",
    "NoPolicy",
    "Placed",
    "Policy",
    "Predicted",
    "Reported",
    "SlaqPolicy",
    "SrptPolicy",
    "Stalled",
    "ThemisPolicy",
    "Trial",
    "Used",
    "make",
]
