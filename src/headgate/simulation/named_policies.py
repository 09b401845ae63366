"""Policy names of simulations: a policy for shares, and an order for the queue."""

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
    """A policy for shares, and a queue order.

    Args:
        listens: Whether the policy uses reports of jobs.
        predicts: Whether it needs predictions of their remaining work.
        note: A note for the user; empty: none.
    """

    policy: Policy
    order: Order
    listens: bool
    predicts: bool = False
    note: str = ""


def choose(name: str, remaining: RemainingSeconds, *, shared: bool) -> NamedPolicy:
    """The policy and queue order of a name; a name without an order queues by arrival.

    Args:
        name: As for `run --policy`; `fifo` leaves cores to the kernel's own sharing.
        remaining: Known or predicted remaining work of a job.
        shared: Whether any job shares cores or GPUs; otherwise a policy of shares has nothing to
            decide.

    Raises:
        UsageError: The name is unknown, or its options would have no effect.
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
