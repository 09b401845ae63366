"""Hosts the store by which the workers of a torchrun script meet, until it is killed.

python -m headgate.torch.rendezvous_store ADDRESS PORT WORKERS
"""

from __future__ import annotations

import signal
import sys

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is documented there

if __name__ == "__main__":
    store = TCPStore(
        sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), is_master=True, wait_for_workers=False
    )
    while True:
        signal.pause()
