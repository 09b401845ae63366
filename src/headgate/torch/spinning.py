"""How long compute threads that wait for work spin before they sleep, changed while they live.

GCC's OpenMP, which PyTorch's wheels bring, reads how its threads wait from the environment once,
when it is loaded. But it lets them spin a thousand times only, in place of three milliseconds,
while the process has more OpenMP threads than cores (`gomp_throttled_spin_count_var` in its
source). So a second team of threads, which sleeps, makes the first one wait politely, and when it
ends they spin again. With another OpenMP nothing changes.
"""

from __future__ import annotations

import os
import threading

import torch

_ENOUGH_FOR_ALL_THREADS = 1 << 17
"""Numbers that an operation is divided among all threads for."""
_OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


class Spinning:
    """Keeps the threads of this process as they were told to wait; what the user's environment says
    stays.
    """

    def __init__(self) -> None:
        self._free = not any(name in os.environ for name in _OWN)
        self._over: threading.Event | None = None

    def allow(self, spin: bool) -> None:
        """From now on let threads that wait spin for long, or not."""
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
    """Be a team of threads until that is over; they end with the thread that began them."""
    torch.zeros(_ENOUGH_FOR_ALL_THREADS).add_(1.0)
    begun.set()
    over.wait()
