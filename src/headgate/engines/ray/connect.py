"""Connects this process to a Ray cluster, or to one that it starts. Errors of Ray become one line
that says what to do.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from importlib import import_module
from typing import Any

from headgate.engines.ray import REQUIREMENT
from headgate.engines.remote.wire import HERE, Open
from headgate.model.errors import HeadgateError, MissingExtraError, UsageError

PROBE_SECONDS = 5.0
"""How long an address may take to answer."""

CONNECT_SECONDS = 60.0
"""How long Ray may take to connect to an address that answers."""

NAMESPACE = "headgate"
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")
_PORT = 6379


def require(wanted: Open) -> None:
    """Check that Ray is installed; takes as long as its import.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    # Ray would refuse two patch releases of one Python, which understand each other.
    os.environ.setdefault("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "minor")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not wanted.address:
        # Our own cluster listens on every address of this machine, so it admits only holders of the
        # token. Ray reads the token when it is imported; before 2.52 it has none.
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
    try:
        import_module("ray")
    except ImportError as error:
        raise MissingExtraError(REQUIREMENT, "engine `ray`") from error


def connect(wanted: Open) -> str:
    """Connect this process; return the address of the cluster's head.

    Raises:
        UsageError: The address is malformed, or versions differ.
        HeadgateError: Nobody answers, or Ray does not let us in.
    """
    if not wanted.address:
        # In our own cluster, workers need no lower priority.
        os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    host, port = split(wanted.address) if wanted.address not in ("", HERE) else ("", 0)
    if host and not answers(host, port, PROBE_SECONDS):
        raise HeadgateError(
            f"no Ray cluster answers at {host}:{port}; give the address of its head (ray start "
            "--head prints it), and check that this machine can reach it"
        )
    own: dict[str, Any] = {} if wanted.address else {"include_dashboard": False}
    at = "auto" if wanted.address == HERE else "local"
    if host:
        at = f"{host}:{port}"
    try:
        if host:
            _take_token(at)
        ray.init(at, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:
        raise explained(error, host, port) from error
    address: str = ray.get_runtime_context().gcs_address
    return address


def split(address: str) -> tuple[str, int]:
    """Host and port of an address.

    Raises:
        UsageError: It is no address.
    """
    if "://" in address:
        scheme = address.split("://")[0]
        raise UsageError(
            f"found --address {address}; expected HOST:PORT of the cluster's head, without "
            f"{scheme}://"
        )
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(_PORT))
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"found --address {address}; expected HOST:PORT, such as 10.0.0.1:{_PORT}")
    return host.strip("[]"), int(port)


def answers(host: str, port: int, seconds: float) -> bool:
    """Whether a process listens at the address."""
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except OSError:
        return False
    return True


def _take_token(address: str) -> None:
    """Show the cluster this user's token if it asks for one: `ray start` does this, `ray.init` does
    not.

    A cluster that wants no token loses each actor of a driver that shows one. So this function asks
    first.
    """
    try:
        gcs_client = import_module("ray._raylet").GcsClient
        refused = import_module("ray.exceptions").AuthenticationError
        setup = import_module("ray._private.authentication.authentication_token_setup")
    except (ImportError, AttributeError):  # an older Ray, which has none
        return
    try:
        gcs_client(address=address)
    except refused:
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        gcs_client(address=address)  # at once, where `ray.init` would try for 20 s


def explained(error: Exception, host: str, port: int) -> HeadgateError:
    """Ray's error in one line, with what to do."""
    text = str(error)
    versions = _VERSIONS.findall(text)
    if "ersion mismatch" in text and len(versions) == 2:
        (ray_there, python_there), (ray_here, python_here) = versions
        return UsageError(
            f"the Ray cluster at {host}:{port} has Ray {ray_there} and Python {python_there}, this "
            f"headgate has Ray {ray_here} and Python {python_here}; run headgate with the "
            f"cluster's Python and Ray, or through its Jobs API: --address http://{host}:8265"
        )
    if "nauthenticated" in text or "AuthToken" in text or "uthentication" in text:
        return HeadgateError(
            f"the Ray cluster at {host}:{port} asks for a token, and you have none; copy that of "
            "its head (ray get-auth-token prints it there) to ~/.ray/auth_token or RAY_AUTH_TOKEN"
        )
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if not host:
        why = first.rstrip(".")
        return HeadgateError(
            f"Ray did not start on this machine, or refused the connection: {why}; try it with: "
            "ray start --head"
        )
    if (
        "node_ip_address" in text
        or "No node info" in text
        or "matching" in text
        or "raylet" in text.lower()
    ):
        return HeadgateError(
            f"this machine is not a node of the Ray cluster at {host}:{port}; run headgate on one "
            f"of its nodes, or make it one that takes no tasks: ray start --address {host}:{port} "
            f"--num-cpus 0; or go through its Jobs API: --address http://{host}:8265"
        )
    return HeadgateError(
        f"the Ray cluster at {host}:{port} refused the connection: {first.rstrip('.')}; try "
        "it there with: ray status"
    )
