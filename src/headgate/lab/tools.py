"""Runs `ip`, `tc` and `bridge` of iproute2, many commands in one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Literal

from headgate.model.errors import HeadgateError

Tool = Literal["ip", "tc", "bridge"]

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
SECONDS = 60.0


def find(tool: Tool) -> str:
    """Path of a tool.

    Raises:
        HeadgateError: It is not installed.
    """
    tool_path = shutil.which(tool, path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
    if tool_path is None:
        raise HeadgateError(
            f"a lab needs `{tool}`, which is not installed; install it with: apt install iproute2"
        )
    return tool_path


def batch(
    tool: Tool, lines: Sequence[str], namespace: str | None = None, keep_going: bool = False
) -> None:
    """Run commands of a tool, in a network namespace or in this process's. The first failure stops
    it, unless `keep_going`.

    Raises:
        HeadgateError: A command was refused. The message contains it.
    """
    if not lines:
        return
    namespace_options = [] if namespace is None else ["-n", namespace]
    force = ["-force"] if keep_going else []
    done = _run([find(tool), *namespace_options, *force, "-batch", "-"], "\n".join(lines))
    if done.returncode != 0 and not keep_going:
        error = done.stderr.strip()
        failed = error.rpartition("-:")[2].strip()
        command = (
            lines[int(failed) - 1]
            if failed.isdigit() and 0 < int(failed) <= len(lines)
            else "; ".join(lines)
        )
        where = "" if namespace is None else f" in {namespace}"
        raise HeadgateError(
            f"`{tool} {command}`{where} was refused: "
            f"{error.splitlines()[0] if error else 'no reason given'}"
        )


def ask(tool: Tool, *words: str, namespace: str) -> Any:
    """The answer of a tool, parsed from JSON.

    Raises:
        HeadgateError: The command was refused.
    """
    done = _run([find(tool), "-n", namespace, "-json", *words], "")
    if done.returncode != 0:
        raise HeadgateError(
            f"`{tool} {' '.join(words)}` in {namespace} was refused: {done.stderr.strip()}"
        )
    return json.loads(done.stdout or "[]")


def _run(command: Sequence[str], given: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise HeadgateError(
            f"`{' '.join(command)}` did not end within {SECONDS:g} s; repeat the command"
        ) from error
