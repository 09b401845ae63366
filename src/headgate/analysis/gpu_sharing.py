"""What a shared GPU cost a job: its kernels wait while those of others run.

NVML tells for how much of the time kernels of each process ran. A job that used a part B of the GPU while nobody else
did, and R while others used U of it, lost 1 - R / min(B, R + U) of that time. A loss needs a full GPU. It also needs
some seconds of the run in which the job had the GPU for itself, because nothing else tells B.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headgate.analysis.usage import Array

_AWAY, _FULL = 0.05, 0.9
"""Parts of the GPU: neighbours that use at most the first count as away; from the second on, the GPU is full."""
_LEAST_BUCKETS = 3


def lost_on_gpu(busy: Array, neighbours: Mapping[str, Array], inside: Array) -> dict[str, Array]:
    """Parts of each bucket that a job lost to each neighbour on its GPU.

    Args:
        busy: Part of each bucket in which its kernels ran; NaN where nothing was read.
        neighbours: The same of each job on the same GPU.
        inside: Seconds of each bucket that belong to its steps.
    """
    ran = np.nan_to_num(busy)
    used = {name: np.nan_to_num(each) for name, each in neighbours.items()}
    taken = sum(used.values(), np.zeros_like(ran))
    alone = np.isfinite(busy) & (taken <= _AWAY) & (inside > 0.0)
    if np.count_nonzero(alone) < _LEAST_BUCKETS:
        return {}
    would = np.minimum(float(np.median(ran[alone])), ran + taken)
    full = (ran > 0.0) & (taken > _AWAY) & (ran + taken >= _FULL)
    lost = np.where(full, 1.0 - ran / np.maximum(would, np.maximum(ran, 1e-9)), 0.0)
    return {name: lost * each / np.maximum(taken, 1e-9) for name, each in used.items()}
