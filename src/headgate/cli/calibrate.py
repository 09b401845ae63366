"""`headgate calibrate`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from headgate.cli import options
from headgate.cli.hub_link import reached
from headgate.cli.placement import PlacementOptions
from headgate.engines.base import LOCAL
from headgate.model.cluster import Cluster, Node
from headgate.model.units import say_bits, say_bytes, say_seconds
from headgate.profiling import calibration, links
from headgate.profiling.calibration import CalibratedMachine
from headgate.profiling.links import MeasuredLink
from headgate.recorded import runs
from headgate.sampling import machine


@click.command()
@click.option(
    "--cluster", metavar="LAB|FILE", help="Also measure the links between the nodes of this lab."
)
@click.option(
    "--engine",
    metavar="NAME",
    help="Measure the nodes of an engine's cluster, and the links between them.",
)
@options.of_engines("address")
@click.option("--again", is_flag=True, help="Measure again, even if the figures are known.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@options.example("headgate calibrate")
def command(
    cluster: str | None, engine: str | None, address: str | None, again: bool, as_json: bool
) -> None:
    """Measure how fast this machine is, on small standard kernels. It takes seconds.

    It measures a core, each kind of GPU, an all-reduce between several GPUs, and the disk. With
    --cluster it also measures rates and round trips between the nodes of a lab that is up. With
    --engine it measures those of a cluster, and one node of each kind.

    Do this while nothing else runs. The figures are kept until the hardware changes. `headgate
    plan` and `headgate run` use them.

    \b
    Example: headgate calibrate
             headgate calibrate --cluster lab.yaml --again
    """
    home = runs.home()
    where = PlacementOptions(cluster=cluster, engine=engine, address=address).place()
    calibrated = calibration.machine(machine.detect(home / "node.json"), home, again=again)
    machines: dict[tuple[str, ...], CalibratedMachine] = {}
    nodes: tuple[Node, ...] = ()
    if where.engine == LOCAL:
        network = calibration.network(
            where.cluster, Cluster(where.nodes), home, again=again, progress=_print_measured
        )
    else:
        with reached(where.engine) as opened:
            name, on = opened.called(), opened.cluster()
            machines = calibration.machines(opened, on, home, again=again, progress=_print_measured)
            network = calibration.network(
                name, on, home, again=again, progress=_print_measured, between=links.by(opened)
            )
            nodes = calibration.known(name, on, home).nodes
    if as_json:
        data = {"machine": asdict(calibrated), "nodes": [asdict(node) for node in nodes]}
        click.echo(json.dumps({**data, "links": [asdict(link) for link in network]}, indent=2))
        return
    lines = _machine(calibrated)
    for names, calibrated_machine in machines.items():
        lines += ["", f"nodes     {', '.join(names)}", *_machine(calibrated_machine)]
    lines += ["", *map(_link, network)] if machines else map(_link, network)
    for line in lines:
        click.echo(line)


def _print_measured(what: Node | MeasuredLink) -> None:
    if sys.stderr.isatty():
        text = what.name if isinstance(what, Node) else f"{what.sender} to {what.receiver}"
        click.echo(f"measured: {text}", err=True)


def _machine(calibrated: CalibratedMachine) -> list[str]:
    rates = calibrated.rates
    products, convolution = rates["core_gflops"], rates["core_convolution_gflops"]
    copies = f"copies {say_bytes(rates['core_copy_bytes_per_second'])}/s"
    lines = [
        (
            f"core      {products:.1f} GFLOP/s in matrix products, {convolution:.1f} in "
            f"convolutions; {copies}"
        ),
        f"disk      {say_bytes(rates['disk_bytes_per_second'])}/s",
    ]
    for name, gpu in calibrated.gpus.items():
        lines.append(
            f"GPU       {name}: {gpu['gflops']:,.0f} GFLOP/s in matrix products, "
            f"{gpu['convolution_gflops']:,.0f} in "
            f"convolutions; copies {say_bytes(gpu['copy_bytes_per_second'])}/s"
        )
    if (all_reduce := rates.get(machine.ALL_REDUCE)) is not None:
        lines.append(f"GPU link  {say_bytes(all_reduce)}/s sent by each in an all-reduce")
    return [*lines, *(f"note      {note}" for note in calibrated.notes)]


def _link(link: MeasuredLink) -> str:
    rate, trip = say_bits(link.bytes_per_second), say_seconds(link.round_trip_seconds)
    return f"link      {link.sender} to {link.receiver}: {rate}, there and back in {trip}"
