"""`headgate calibrate`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from headgate import runs
from headgate.cluster import Cluster
from headgate.hub import clusters
from headgate.profiling import calibration
from headgate.profiling.calibration import Machine
from headgate.profiling.links import Link
from headgate.telemetry import machine
from headgate.units import say_bits, say_bytes, say_seconds


@click.command()
@click.option("--cluster", metavar="LAB|FILE", help="Measure the links between the nodes of this lab, too.")
@click.option("--again", is_flag=True, help="Measure, though it is known.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(cluster: str | None, again: bool, as_json: bool) -> None:
    """Measure how fast this machine is, in seconds: a core and each kind of GPU on small standard kernels, the disk;
    with --cluster the rates and round trips between the nodes of a lab that is up.

    What was measured is kept until the hardware changes, and used by `headgate plan` and `headgate run`. It should be
    done while nothing else runs.

    \b
    Example: headgate calibrate
             headgate calibrate --cluster lab.yaml --again
    """
    home = runs.home()
    name, nodes = clusters.reach(cluster) if cluster is not None else ("", ())
    here = calibration.machine(machine.detect(home / "node.json"), home, again=again)
    links = calibration.network(name, Cluster(nodes), home, again=again, told=_told)
    if as_json:
        click.echo(json.dumps({"machine": asdict(here), "links": [asdict(link) for link in links]}, indent=2))
        return
    for line in (*_machine(here), *map(_link, links)):
        click.echo(line)


def _told(link: Link) -> None:
    if sys.stderr.isatty():
        click.echo(f"measured: {link.sender} to {link.receiver}", err=True)


def _machine(here: Machine) -> list[str]:
    rates = here.rates
    products, convolution = rates["core_gflops"], rates["core_convolution_gflops"]
    copies = f"copies {say_bytes(rates['core_copy_bytes_per_second'])}/s"
    lines = [
        f"core      {products:.1f} GFLOP/s in matrix products, {convolution:.1f} in convolutions; {copies}",
        f"disk      {say_bytes(rates['disk_bytes_per_second'])}/s",
    ]
    for name, each in here.gpus.items():
        lines.append(
            f"GPU       {name}: {each['gflops']:,.0f} GFLOP/s in matrix products, {each['convolution_gflops']:,.0f} in "
            f"convolutions; copies {say_bytes(each['copy_bytes_per_second'])}/s"
        )
    return [*lines, *(f"note      {note}" for note in here.notes)]


def _link(link: Link) -> str:
    rate, trip = say_bits(link.bytes_per_second), say_seconds(link.round_trip_seconds)
    return f"link      {link.sender} to {link.receiver}: {rate}, there and back in {trip}"
