"""Calls of an executor whose tasks Ray starts."""

from __future__ import annotations

import subprocess
import sys

from tests.hub.user import SECONDS, User, speed, user

__all__ = ["speed", "user"]


def test_results_of_calls_come_back_without_shared_files(ray_address: str, user: User) -> None:
    script = user.write(
        "calls.py",
        f"""
        import headgate

        def away(value):
            import os
            return value * 2, "HEADGATE_CHECKPOINTS_AWAY" in os.environ

        def fails():
            raise KeyError("there")

        with headgate.Executor(2, engine="ray", address={ray_address!r}) as executor:
            doubled, failed = executor.submit(away, 21), executor.submit(fails)
            print(doubled.result(), repr(failed.exception()))
        """,
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=user.folder,
        env=user.variables,
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
    )
    assert (done.stdout, done.returncode) == ("(42, True) KeyError('there')\n", 0), done.stderr
