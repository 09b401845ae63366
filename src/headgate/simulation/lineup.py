"""What a policy's name stands for in a simulation: what moves shares, and who goes first where not all jobs fit."""

from __future__ import annotations

from dataclasses import dataclass

from headgate import policies
from headgate.controller.orders import FifoOrder, LasOrder, Order, PatientOrder, Remaining, SrptOrder
from headgate.errors import UsageError
from headgate.policies import EqualPolicy, NoPolicy, Policy


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy for shares, and an order for those that wait.

    Args:
        listens: Whether the policy makes anything of what jobs report.
        predicts: Whether it wants to be told what is left of them.
    """

    policy: Policy
    order: Order
    listens: bool
    predicts: bool = False


def choose(name: str, remaining: Remaining, *, on_cores: bool) -> Chosen:
    """The policy and the order of that name; what is no order goes by arrival.

    Args:
        name: As for `run --policy`; `fifo` leaves cores to the system's own sharing.
        remaining: What is known, or predicted, of what remains of a job.
        on_cores: Whether any job shares cores; else nothing is there for a policy of shares to decide.

    Raises:
        UsageError: Nothing is so called, or it has options that would change nothing.
    """
    plain = name.partition(":")[0]
    order: Order
    match plain:
        case SrptOrder.name:
            order = SrptOrder(remaining)
        case LasOrder.name:
            order = LasOrder()
        case PatientOrder.name:
            order = PatientOrder(remaining)
        case _:
            order = FifoOrder()
    policy: Policy = NoPolicy() if name == FifoOrder.name else policies.make(name)
    if not on_cores:
        if plain != name:
            raise UsageError(
                f"found options in {name!r}; they are for jobs on cores, and all of this trace are on GPUs"
            )
        policy = NoPolicy()
    listens = on_cores and not isinstance(policy, NoPolicy | EqualPolicy)
    return Chosen(policy, order, listens, predicts=listens and policy.predicts)
