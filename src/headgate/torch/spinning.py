"""Changes at run time how long idle compute threads spin before they sleep.

PyTorch's wheels bring GCC's OpenMP. It reads from the environment once, when it is loaded, how its
threads wait. But while a process has more OpenMP threads than cores, they spin a thousand times
instead of three milliseconds (`gomp_throttled_spin_count_var` in its source). So a second, sleeping
team of threads shortens the spinning of the first, and the end of that team restores it. With
another OpenMP nothing changes.
"""

from __future__ import annotations

import os
import threading

import torch

_ENOUGH_FOR_ALL_THREADS = 1 << 17
"""Size of an operation that is divided among all threads."""
_OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


class Spinning:
    """Keeps the waiting mode of this process's threads as set. Settings in the user's environment
    take precedence.
    """

    def __init__(self) -> None:
        self._free = not any(name in os.environ for name in _OWN)
        self._over: threading.Event | None = None

    def allow(self, spin: bool) -> None:
        """From now on, let waiting threads spin for long, or not."""
        brief = self._free and not spin and torch.get_num_threads() > 1
        if not brief and self._over is not None:
            self._over.set()
            self._over = None
        elif brief and self._over is None:
            self._over = threading.Event()
            begun = threading.Event()
            threading.Thread(
                target=_team, args=(begun, self._over), name="headgate-team", daemon=True
            ).start()
            begun.wait()


def _team(begun: threading.Event, over: threading.Event) -> None:
    """Be a team of threads until `over` is set. The team ends with the thread that began it."""
    torch.zeros(_ENOUGH_FOR_ALL_THREADS).add_(1.0)
    begun.set()
    over.wait()
