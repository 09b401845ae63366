"""What a policy's name stands for in a simulation: what moves shares, and who goes first where not
all jobs fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate import policies
from headgate.controller.queue_orders import (
    FifoOrder,
    LasOrder,
    Order,
    PatientOrder,
    RemainingSeconds,
    SrptOrder,
)
from headgate.model.errors import UsageError
from headgate.policies import EqualPolicy, NoPolicy, Policy


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy for shares, and an order for those that wait.

    Args:
        listens: Whether the policy makes anything of what jobs report.
        predicts: Whether it wants to be told what is left of them.
        note: What its user should know; empty: nothing.
    """

    policy: Policy
    order: Order
    listens: bool
    predicts: bool = False
    note: str = ""


def choose(name: str, remaining: RemainingSeconds, *, shared: bool) -> NamedPolicy:
    """The policy and the order of that name; what is no order goes by arrival.

    Args:
        name: As for `run --policy`; `fifo` leaves cores to the system's own sharing.
        remaining: What is known, or predicted, of what remains of a job.
        shared: Whether any job shares cores or GPUs; else nothing is there for a policy of shares
            to decide.

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
    if not shared:
        if plain != name:
            raise UsageError(
                f"found options in {name!r}; they say how jobs share, and those of this trace "
                "wait for whole GPUs, "
                f"where the name alone says who goes first; leave them out, or add --share-gpus"
            )
        note = (
            f"the jobs wait for whole GPUs and share nothing: as {order.name}"
            if order.name != plain
            else ""
        )
        return NamedPolicy(NoPolicy(), order, listens=False, note=note)
    listens = not isinstance(policy, NoPolicy | EqualPolicy)
    return NamedPolicy(policy, order, listens, predicts=listens and policy.predicts)
