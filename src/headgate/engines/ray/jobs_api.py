"""Ray's Jobs API: the HTTP interface of a cluster's dashboard. The caller needs no Ray and no
particular Python.

Source: https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.model.errors import HeadgateError, UsageError

REQUEST_SECONDS = 30.0
AGENT_SECONDS = 60.0
"""How long a job is submitted again: a new or busy head may have no agent to take it yet."""
RETRY_SECONDS = 1.0
"""Pause before each new try."""
_NO_AGENT = "No available agent"
ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_LOG_LINES = 3


class JobsApi:
    """Submits jobs and asks for their state.

    Args:
        url: The URL of the dashboard, `http://HOST:8265`.

    Raises:
        UsageError: The URL is malformed.
    """

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"found --address {url}; expected http://HOST:PORT of the cluster's dashboard"
            )
        self.url = url.rstrip("/")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)

    def submit(self, id: str, entrypoint: str, env: Mapping[str, str]) -> None:
        """Submit a job.

        Raises:
            HeadgateError: Nobody answers, or the job is refused.
        """
        job = {
            "entrypoint": entrypoint,
            "submission_id": id,
            "runtime_env": {"env_vars": dict(env)},
        }
        deadline = time.monotonic() + AGENT_SECONDS
        while True:
            try:
                self._ask("POST", "", job)
                return
            except HeadgateError as error:
                if _NO_AGENT not in str(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(RETRY_SECONDS)

    def ended(self, id: str) -> str | None:
        """How a job ended, in words; None while it runs."""
        job = self._ask("GET", id)
        if job["status"] not in ENDED:
            return None
        logs = str(self._ask("GET", f"{id}/logs").get("logs") or "").strip().splitlines()
        last_lines = "; ".join(line.strip() for line in logs[-_LOG_LINES:])
        return last_lines or str(job.get("message") or job["status"])

    def stop(self, id: str) -> None:
        """Ask Ray to end a job."""
        self._ask("POST", f"{id}/stop", {})

    def _ask(self, method: str, path: str, content: object = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if token := _token():
            headers["Authorization"] = f"Bearer {token}"
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            f"{self.url}/api/jobs/{path}", data, headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as response:
                answer: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            splitlines = error.read().decode(errors="replace").strip().splitlines()
            if error.code in (401, 403):
                raise HeadgateError(
                    f"the Ray cluster at {self.url} asks for a token, and you have none; copy that "
                    "of its head (ray get-auth-token prints it there) to ~/.ray/auth_token or "
                    "RAY_AUTH_TOKEN"
                ) from error
            raise HeadgateError(
                f"{self.url} refused: {splitlines[-1] if splitlines else error.reason} "
                f"({error.code}); --address has to name the dashboard of a Ray cluster that has "
                "the Jobs API (pip install 'ray[default]' there)"
            ) from error
        except (OSError, ValueError) as error:
            raise HeadgateError(
                f"no Jobs API of a Ray cluster answers at {self.url}: "
                f"{getattr(error, 'reason', error)}; give the address of its dashboard (ray start "
                "--head prints it; for other machines: --dashboard-host 0.0.0.0)"
            ) from error
        return answer


def _token() -> str:
    """This user's token for Ray; empty if there is none."""
    if given := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return given
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
