"""What the page says of the network between nodes: how much of its NIC each used."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.analysis.nics import NicUse, nic_use
from headgate.reports.markup import Markup, element, figure_of
from headgate.reports.recording import Recording
from headgate.reports.words import MISSING
from headgate.units import say_bits


def nic_uses(run: Recording) -> list[NicUse]:
    """Of each node that a job was on which had its tasks on several, and whose NIC was read."""
    used = {node for job in run.jobs if len(job.nodes) > 1 for node in job.nodes}
    uses = [
        nic_use(node.name, node.nic_bytes_per_second, node.signal("net_in"), node.signal("net_out"))
        for node in run.nodes
        if node.name in used
    ]
    return [use for use in uses if use is not None]


def table(uses: Sequence[NicUse]) -> Markup:
    """A row a node: mean and maximum each way."""
    names = ("NIC", "In, mean", "In, max", "Out, mean", "Out, max")
    rows = []
    for use in uses:
        unit = "%" if use.rate else "B/s"
        values = (
            (use.received.mean, "in_mean"),
            (use.received.maximum, "in_max"),
            (use.sent.mean, "out_mean"),
            (use.sent.maximum, "out_max"),
        )
        rows.append(
            element(
                "tr",
                element("th", use.node, scope="row", class_="text"),
                element("td", figure_of(use.rate, text=say_bits(use.rate) if use.rate else MISSING, key="rate")),
                [element("td", figure_of(value, unit, key=key)) for value, key in values],
                data_node=use.node,
            )
        )
    head = [element("th", "Node", scope="col", class_="text"), [element("th", name, scope="col") for name in names]]
    body = element("table", element("thead", element("tr", head)), element("tbody", rows), id="nics")
    return element("div", body, class_="scroll", tabindex=0, role="region", aria_label="NICs by node")
