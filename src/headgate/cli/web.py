"""`headgate web`."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import socket
import webbrowser
from getpass import getuser
from pathlib import Path

import click

from headgate.model.errors import UsageError

NEEDED = {
    "starlette": "starlette>=0.40",
    "uvicorn": "uvicorn>=0.30",
    "prometheus_client": "prometheus-client>=0.20",
}
"""Modules, and their packages as in the extra `web` of pyproject.toml."""
FOR_OTLP = {
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http>=1.30"
}
"""The same of the extra `otel`."""


@click.command("web")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port. Default: 7411, or the next free one."
)
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", help="Listen at this address of the machine."
)
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="A name that browsers may use for this machine, such as gpu1.example.org.",
)
@click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with the certificate for TLS.",
)
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with its key, where the first has none.",
)
@click.option(
    "--metrics-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write figures here every 15 s, for node_exporter: /var/lib/node_exporter/headgate.prom.",
)
@click.option(
    "--otlp",
    metavar="[ENDPOINT]",
    is_flag=False,
    flag_value="",
    help="Send figures to a receiver of OpenTelemetry, by default the one that "
    "OTEL_EXPORTER_OTLP_ENDPOINT names, or http://localhost:4318.",
)
@click.option("--no-page", is_flag=True, help="Only hand figures on: --metrics-file or --otlp.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as JSON.")
def command(
    port: int | None,
    show: bool,
    host: str,
    names: tuple[str, ...],
    certificate: Path | None,
    key: Path | None,
    metrics_file: Path | None,
    otlp: str | None,
    no_page: bool,
    as_json: bool,
) -> None:
    """Serve a page that shows what runs, and why it is slow, and acts on it.

    The printed addresses have a token; whoever has the second one can look and not act. Ctrl-C ends
    the page; jobs go on.

    \b
    Example: headgate web
             headgate web --open
             headgate web --port 8000 --metrics-file /var/lib/node_exporter/headgate.prom
             headgate web --no-page --otlp http://collector.example.org:4318
             headgate web --host 0.0.0.0 --certificate cert.pem --key key.pem
    """
    needed = NEEDED | (FOR_OTLP if otlp is not None else {})
    missing = [f"'{package}'" for module, package in needed.items() if not _is_there(module)]
    if missing:
        raise UsageError(f"the page needs more packages: pip install {' '.join(missing)}")
    from headgate.web.serving import ServeSettings, Serving, send_only

    def tell(line: str) -> None:
        click.echo(line, err=True)

    settings = ServeSettings(
        host=host,
        port=port,
        names=names,
        certificate=certificate,
        key=key,
        metrics_file=metrics_file,
        otlp=otlp,
    )
    if no_page:
        if metrics_file is None and otlp is None:
            raise UsageError("found --no-page alone; expected --metrics-file or --otlp with it")
        click.echo("figures are handed on until Ctrl-C", err=True)
        send_only(settings, tell)
        return
    serving = Serving(settings, tell)
    addresses = serving.addresses
    if not _is_loopback(host) and certificate is None:
        click.echo(
            f"at {host} without TLS, everybody on the way can read the token: give --certificate, "
            "or leave out --host and forward the port over ssh",
            err=True,
        )
    if as_json:
        facts = {"act": addresses.act, "look": addresses.look, "port": addresses.port}
        click.echo(json.dumps(facts))
    else:
        click.echo(f"open {addresses.act}")
        click.echo(f"to look only: {addresses.look}")
        if _is_loopback(host) and "SSH_CONNECTION" in os.environ:
            this_machine = f"{getuser()}@{socket.gethostname()}"
            click.echo(
                "on your own machine type this, then open one of them there: "
                f"ssh -N -L {addresses.port}:127.0.0.1:{addresses.port} {this_machine}"
            )
    if show and not webbrowser.open(serving.entrance().as_uri()):
        click.echo("no browser could be opened", err=True)
    serving.run()


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it is in
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
