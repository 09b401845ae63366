"""Ray's own accounts, as any driver of the cluster reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headgate.testing.wait import until

SECONDS = 60.0
"""Longest that they take to be as they should."""

READS = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Ray tells drivers of raylets that were killed on their output
import ray
from ray.util import placement_group_table

ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
for _ in sys.stdin:
    names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    free = ray._private.state.available_resources_per_node()
    groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    print(json.dumps({
        "all": {names[node["NodeID"]]: node["Resources"] for node in ray.nodes()
                if node["NodeID"] in names},
        "free": {names[id]: left for id, left in free.items() if id in names},
        "groups": [
            [group["state"], [
                [names.get(group["bundles_to_node_id"].get(number), ""), bundle]
                for number, bundle in group["bundles"].items()
            ]]
            for group in groups
        ],
    }), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Table:
    """What a cluster's nodes have, by name, and what is free of it, in Ray's terms.

    Args:
        all: CPU, memory, GPU and so on of each node.
        free: What is left of them.
        groups: The placement groups that were not removed: the state of each, and node and content
            of its bundles.
    """

    all: Mapping[str, Mapping[str, float]]
    free: Mapping[str, Mapping[str, float]]
    groups: Sequence[tuple[str, Sequence[tuple[str, Mapping[str, float]]]]]

    @property
    def taken(self) -> dict[str, dict[str, float]]:
        """What is taken of each node, of CPU, memory and GPUs."""
        return {
            node: {
                what: round(has[what] - self.free.get(node, {}).get(what, 0.0), 4)
                for what in ("CPU", "memory", "GPU")
                if what in has and has[what] - self.free.get(node, {}).get(what, 0.0) > 1e-6
            }
            for node, has in self.all.items()
        }

    @property
    def whole(self) -> bool:
        """Whether nothing is taken of any node, and no group is left."""
        return not self.groups and not any(self.taken.values())

    def set_aside(self, state: str = "CREATED") -> list[tuple[str, dict[str, float]]]:
        """Node and content of all bundles of the groups in a state, without what pins them to their
        node.
        """
        return sorted(
            (
                (
                    node,
                    {what: bundle[what] for what in sorted(bundle) if not what.startswith("node:")},
                )
                for told, bundles in self.groups
                if told == state
                for node, bundle in bundles
            ),
            key=str,
        )


class Accounts:
    """Somebody who reads them."""

    def __init__(self, driver: subprocess.Popen[str]) -> None:
        self._driver = driver

    def read(self) -> Table:
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        print(file=self._driver.stdin, flush=True)
        line = self._driver.stdout.readline()
        assert line, "the driver has ended"
        return Table(**json.loads(line))

    def show(self, fits: Callable[[Table], object], what: str) -> Table:
        """The accounts, once they are so; Ray's table lags behind by moments."""
        last: list[Table] = []

        def look() -> bool:
            last[:] = [self.read()]
            return bool(fits(last[0]))

        try:
            until(look, SECONDS, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{last[0]}") from None
        return last[0]


@contextmanager
def reader(
    address: str,
    within: Callable[..., list[str]] = lambda *words: [*words],
    env: Mapping[str, str] | None = None,
) -> Iterator[Accounts]:
    """Somebody who reads the accounts of the cluster whose head is there.

    Args:
        within: A command that runs another where the driver has to be.
        env: Its environment; None: as this process's.
    """
    with subprocess.Popen(
        within(sys.executable, "-c", READS, address),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=None if env is None else dict(env),
    ) as driver:
        try:
            yield Accounts(driver)
        finally:
            assert driver.stdin is not None
            driver.stdin.close()
