"""`headgate doctor`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from typing import Any

import click

from headgate import isolation
from headgate.client.running_jobs import hubs
from headgate.client.starting import clean
from headgate.engines.base import LOCAL
from headgate.engines.engine_options import Declaration, declared
from headgate.machine.allocation import slurm_share
from headgate.machine.cgroup_layout import CGROUPS, find_layout
from headgate.machine.gpu_visibility import VARIABLE
from headgate.model import registry
from headgate.model.errors import HeadgateError, HubError
from headgate.model.extras import install
from headgate.model.identifiers import TaskId
from headgate.model.reason_text import in_words
from headgate.model.units import counted, say_bytes, say_percent
from headgate.recorded import runs
from headgate.sampling import machine, readings
from headgate.sampling.machine import Survey
from headgate.task import mpi

_UNTOLD = 1 << 30
"""Bytes of a GPU that a driver and a display may hold. Less is not reported."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(as_json: bool) -> None:
    """Show this machine as Headgate sees it, what others use of it, and what each missing
    permission costs.

    A reading that the machine lacks is shown with what is lost without it, and how to turn it on.

    \b
    Example: headgate doctor
    """
    clean()
    survey = machine.survey(runs.home() / "node.json")
    uncontrolled = [
        in_words(limit.warning())
        for limit in isolation.make(isolation.DEFAULT, "doctor").uncontrolled()
    ]
    plugins = [warning for group in registry.GROUPS for warning in registry.load(group).warnings]
    readable = readings.survey(find_layout(CGROUPS).bases.keys())
    hub, containers, guests, mpirun = _hub(), _containers(), _guests(), _mpi()
    if as_json:
        data: dict[str, object] = {
            "survey": asdict(survey),
            "uncontrolled": uncontrolled,
            "plugins": plugins,
            "hub": hub,
        }
        data |= {
            "home": str(runs.home()),
            "engines": _engines(),
            "containers": containers,
            "mpi": mpirun,
        }
        data["guests"] = guests
        data["readings"] = [asdict(sampler_reading) for sampler_reading in readable]
        click.echo(json.dumps(data, indent=2, default=str))
        return
    for name, text in _machine(survey):
        click.echo(f"{name:12}  {text}")
    click.echo(f"{'runs':12}  {len(runs.listing())} in {runs.home()}")
    click.echo(f"{'hub':12}  {hub}")
    click.echo(f"{'engines':12}  {', '.join(_engines())}")
    click.echo(f"{'containers':12}  {containers}")
    click.echo(f"{'guests':12}  {guests}")
    click.echo(f"{'MPI':12}  {mpirun}")
    for line in uncontrolled or (
        "nothing: weight, cap, memory, CPU set and disk rate of each task can be controlled",
    ):
        click.echo(f"{'uncontrolled':12}  {line}")
    names = [reading.name for reading in readable if reading.there]
    click.echo(f"{'readings':12}  {', '.join(names) or 'none'}")
    for sampler_reading in readable:
        if not sampler_reading.there:
            cure = (
                f"to turn it on: {sampler_reading.cure}"
                if sampler_reading.cure
                else "this machine, or its hypervisor, cannot have it"
            )
            click.echo(
                f"{'no reading':12}  {sampler_reading.name}: {sampler_reading.without}; {cure}"
            )
    for line in plugins:
        click.echo(f"{'plug-in':12}  {line}")


def _engines() -> list[str]:
    """The engines that can start tasks here. It does not import what engines need, which takes
    seconds.
    """
    return [
        LOCAL.name,
        *map(_installed, declared().values()),
        *registry.load("headgate.engines").found,
    ]


def _installed(engine: Declaration) -> str:
    """An engine's name, with the version of the package that it needs."""
    if not engine.distribution:
        return engine.name
    try:
        return f"{engine.name} {metadata.version(engine.distribution)}"
    except metadata.PackageNotFoundError:
        return (
            f"{engine.name} (not installed: {install(engine.requirement or engine.distribution)})"
        )


def _containers() -> str:
    """The Docker Engine for `isolation: container`, or why there is none."""
    from headgate.isolation.container.daemon import Daemon, default_url

    try:
        daemon = Daemon(default_url())
    except HeadgateError as error:
        return f"none: {error}"
    return f"Docker Engine {daemon.version} at {daemon.url}"


def _guests() -> str:
    """The hypervisor for `isolation: vm`, or why there is none, and the container runtime in its
    guests.
    """
    from headgate.isolation.vm import machines, probe

    patience = threading.Timer(
        2.0, click.echo, ["booting a guest, to see whether KVM works here"], {"err": True}
    )
    patience.start()
    try:
        machine = probe.machine()
    except HeadgateError as error:
        return f"none: {error}"
    finally:
        patience.cancel()
    how = (
        "KVM"
        if machine.name == "kvm"
        else f"emulated by {machine.name}, as {machines.EMULATION} allows"
    )
    try:
        containers = f"containers in them by {machines.find_runc()}"
    except HeadgateError as error:
        containers = f"no containers in them: {error}"
    return f"{how}, kernel {machine.kernel or 'of its own'}; {containers}"


def _mpi() -> str:
    """The `mpirun` for `launch: mpi`, or how to get one."""
    program, says = mpi.find_mpirun()
    version = " ".join(line.strip() for line in says.splitlines()[:2] if line.strip())
    return f"{version} at {program}" if program else f"none: for launch mpi, {says}"


def _hub() -> str:
    try:
        states = hubs()
    except HubError as error:
        return str(error)
    if (own := states.pop(runs.hub(), None)) is None:
        return "not running; it starts with the first job"
    more = f"; {len(states)} more for other allocations" if states else ""
    return f"running, policy {own.policy}, {counted(len(own.runs), 'run')} going on{more}"


def _machine(survey: Survey) -> Iterator[tuple[str, str]]:
    node, topology = survey.node, survey.topology
    yield "machine", f"{node.name}, {node.address}, Linux {survey.kernel}"
    cores = (
        f"{node.cores:g} of {topology.online} cores may be used "
        f"({topology.model or 'model not known'})"
    )
    if survey.quota_cores is not None:
        cores += f", CPU time limited to {counted(survey.quota_cores, 'core', 'g')}"
    yield "cores", cores
    smt = "SMT siblings share them" if topology.smt else "no SMT"
    yield "", f"{topology.physical} physical, {smt}, {topology.numa_nodes} NUMA nodes"
    if node.core_gflops is not None:
        yield "core speed", f"{node.core_gflops:.1f} GFLOP/s (float32 matrix product, one thread)"
    memory = (
        f"{say_bytes(node.memory_bytes)} of {say_bytes(survey.machine_memory_bytes)} may be used"
    )
    yield "memory", memory
    if (share := slurm_share()) is not None:
        yield "allocation", in_words(share.reason())
    for at, line in enumerate(_gpus(survey)):
        yield "" if at else "GPUs", line
    if (stated := os.environ.get(VARIABLE)) is not None and survey.machine_gpus:
        which = f"number {', '.join(str(gpu.index) for gpu in node.gpus)}" if node.gpus else "none"
        yield (
            "",
            f"{which} of {survey.machine_gpus} on this machine may be used ({VARIABLE}={stated})",
        )
    if survey.missing_gpus:
        yield "", survey.missing_gpus
    if (link := node.gpu_link) is not None and link.bytes_per_second is not None:
        yield "", f"joined by {link.how}, {link.bytes_per_second / 1e9:,.3g} GB/s each direction"
    rates = [(nic.name, nic.bytes_per_second) for nic in node.nics]
    yield "NICs", _listed([f"{name} {_rate(rate)}" for name, rate in rates])
    yield "disks", _listed([f"{disk.name} {say_bytes(disk.bytes)}" for disk in node.disks])
    tree = survey.cgroups
    pressure = "with" if survey.pressure else "without"
    yield "cgroups", f"{tree.version}, {pressure} pressure stall information"
    yield "in use", ", ".join(_used(survey)) or "cannot be read"


def _gpus(survey: Survey) -> Iterator[str]:
    """A line for each GPU, and for each process that holds memory of it."""
    if not survey.gpus:
        yield survey.missing_nvml.in_words() if survey.missing_nvml is not None else "none"
    for gpu in survey.gpus:
        use = [f"{say_percent(gpu.busy)} busy"] if gpu.busy is not None else []
        use += [f"{say_bytes(gpu.used_bytes)} in use"] if gpu.used_bytes is not None else []
        yield ", ".join([f"{gpu.index}: {gpu.name}, {say_bytes(gpu.memory_bytes)}", *use])
        for holder in gpu.holders:
            task = TaskId(holder.task) if holder.task else None
            job = f", job {task.job.name} of run {task.run}" if task is not None else ""
            held = (
                say_bytes(holder.memory_bytes)
                if holder.memory_bytes is not None
                else "not told how much"
            )
            who = f"{holder.name or 'a program elsewhere'} (process {holder.pid}"
            yield f"   {who}{f' of {holder.user}' if holder.user else ''}{job}): {held}"
        if gpu.untold_bytes > _UNTOLD and gpu.used_bytes is not None:
            yield (
                f"   {say_bytes(gpu.untold_bytes)} by the driver, or by programs that it does "
                "not tell of here"
            )


def _used(survey: Survey) -> Iterator[str]:
    if survey.used_cores is not None:
        yield f"{survey.used_cores:.2f} cores"
    if survey.used_memory_bytes is not None:
        yield f"{say_bytes(survey.used_memory_bytes)} of memory"


def _listed(items: list[Any]) -> str:
    return "; ".join(items) or "none"


def _rate(bytes_per_second: float | None) -> str:
    return (
        f"{bytes_per_second * 8 / 1e6:,.0f} Mbit/s"
        if bytes_per_second is not None
        else "(rate not known)"
    )
