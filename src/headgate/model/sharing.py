"""How the users of a machine share it, as its administrator says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from headgate.model.declarations import Kind, against_bounds, declared, documented

RULES = Path("/etc/headgate/arbiter.yaml")
"""The administrator's rules of a machine."""
DAY_SECONDS = 86_400.0


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Amounts of a machine; None: nothing is said of that resource."""

    cores: float | None = field(
        default=None, metadata=declared("CPU cores; fractions are allowed.", above=0)
    )
    memory_bytes: int | None = field(
        default=None,
        metadata=declared(
            "Memory, in bytes or with a unit such as `64GiB`.", key="memory", kind=Kind.MEMORY
        ),
    )
    gpus: int | None = field(default=None, metadata=declared("GPUs.", least=0))
    jobs: int | None = field(default=None, metadata=declared("Jobs that run at once.", least=0))

    def within(self, most: Amounts) -> Amounts:
        """The lesser of both for each resource; what only one states counts."""
        lesser = {}
        for entry in fields(self):
            stated = [getattr(self, entry.name), getattr(most, entry.name)]
            lesser[entry.name] = min((value for value in stated if value is not None), default=None)
        return Amounts(**lesser)


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class UserShare:
    """What a user may have, or each member of a group; without both, everybody else."""

    user: str | None = field(default=None, metadata=declared("A user.", kind=Kind.NAME))
    group: str | None = field(
        default=None, metadata=declared("A group; each of its members.", kind=Kind.NAME)
    )
    shares: float = field(
        default=1.0,
        metadata=declared("With 2, twice as much as with 1 when both want all.", above=0),
    )
    guaranteed: Amounts = field(
        default=Amounts(),
        metadata=declared(
            "What the user gets before others do: cores always, memory and GPUs as they become "
            "free, or as `take_back` says."
        ),
    )
    largest: Amounts = field(
        default=Amounts(), metadata=declared("The most that the user has at once.")
    )
    processes: int | None = field(
        default=None,
        metadata=declared(
            "Processes and threads that the user's hubs and jobs may have at once; without it, a "
            "third of what the machine can have.",
            least=100,
        ),
    )

    def __post_init__(self) -> None:
        if self.user is not None and self.group is not None:
            raise ValueError("expected `user` or `group`, not both")
        for name, value, expected in against_bounds(self):
            raise ValueError(f"found {name} {value!r}; expected {expected}")
        for name in ("cores", "memory_bytes", "gpus", "jobs"):
            least, most = getattr(self.guaranteed, name), getattr(self.largest, name)
            if least is not None and most is not None and least > most:
                raise ValueError(
                    f"`guaranteed` has more {name.removesuffix('_bytes')} than `largest`"
                )

    def within(self, most: Amounts) -> UserShare:
        """The same with at most this."""
        largest, guaranteed = self.largest.within(most), {}
        for entry in fields(Amounts):
            least, bound = getattr(self.guaranteed, entry.name), getattr(largest, entry.name)
            is_more = least is not None and bound is not None and least > bound
            guaranteed[entry.name] = bound if is_more else least
        return replace(self, largest=largest, guaranteed=Amounts(**guaranteed))

    def concerns(self, user: str, groups: Collection[str]) -> bool:
        """Whether it holds for a user who is in these groups."""
        if self.group is not None:
            return self.group in groups
        return self.user in (None, user)


_EVERYBODY = UserShare()


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRules:
    """The rules of a shared machine."""

    users: Literal["apart", "together"] = field(
        default="apart",
        metadata=declared(
            "`apart`: each user has a part, and divides it by a policy. `together`: one policy "
            "divides the machine between all jobs.",
        ),
    )
    half_life: float = field(
        default=7 * DAY_SECONDS,
        metadata=declared(
            "After how long past use counts half in the order of users.", kind=Kind.SECONDS, above=0
        ),
    )
    patience: float = field(
        default=DAY_SECONDS,
        metadata=declared(
            "A user who waits and got nothing for so long goes before others, whatever was used "
            "before.",
            kind=Kind.SECONDS,
            above=0,
        ),
    )
    administrators: tuple[str, ...] = field(
        default=(), metadata=declared("Groups whose members may stop and hold what others run.")
    )
    may_reserve: tuple[str, ...] = field(
        default=(), metadata=declared("Groups whose members may reserve.")
    )
    outside_gpus: Literal["leave", "last"] = field(
        default="leave",
        metadata=declared(
            "GPUs that programs without Headgate use: `leave` them alone, or let jobs that state "
            "their GPU memory use them `last`."
        ),
    )
    idle_after: float | None = field(
        default=None,
        metadata=declared(
            "A job is warned whose GPUs nobody computes on for so long, or which has memory and no "
            "GPU while no job of its user computes; without it, none is.",
            kind=Kind.SECONDS,
            above=0,
        ),
    )
    idle_ends: bool = field(
        default=False, metadata=declared("Such a job is ended after as long again.")
    )
    take_back: Literal["never", "guaranteed", "shares"] = field(
        default="guaranteed",
        metadata=declared(
            "Jobs of users who have more than their part end with a checkpoint, and wait again, "
            "for a job that waits within its user's part: the `guaranteed` one, or with `shares` "
            "also that by the users' shares. `never`: it waits until something ends.",
        ),
    )
    take_back_after: float = field(
        default=600.0,
        metadata=declared("After how long a wait that is done.", kind=Kind.SECONDS, above=0),
    )
    take_back_spares: float = field(
        default=1_800.0,
        metadata=declared(
            "A job is not taken back before it has run for so long.", kind=Kind.SECONDS, above=0
        ),
    )
    take_back_ends: bool = field(
        default=False,
        metadata=declared(
            "Jobs that cannot be resumed are ended too, and so are jobs that their hub does not "
            "give back."
        ),
    )
    parts: tuple[UserShare, ...] = field(
        default=(), metadata=declared("What users may have; the first entry that fits counts.")
    )

    def of(self, user: str, groups: Collection[str]) -> UserShare:
        """What a user in these groups may have."""
        return next((part for part in self.parts if part.concerns(user, groups)), _EVERYBODY)
