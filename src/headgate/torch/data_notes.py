"""Notes for the user about dividing training data between workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from headgate.torch import batches


def too_small(loader: Any, workers: int, by_index: bool) -> str:
    """A note that some workers get no samples of any batch; empty if all do.

    Args:
        loader: The training loader.
        workers: Number of workers that divide each batch.
        by_index: Whether they divide the indices as they are drawn.
    """
    batch = getattr(loader, "batch_size", None)
    if not (isinstance(batch, int) and batch < workers and by_index):
        return ""
    return (
        f"the training loader's batches have batch_size={batch}, and are divided between {workers} "
        f"workers: {workers - batch} of them get nothing. If its items are ready-made batches, say "
        "batch_size=None, and each is divided; otherwise make batches larger, or workers fewer"
    )


def divided(batch: Any, whole: int, dim: int, models: Iterable[nn.Module]) -> str:
    """A note on how a batch of `whole` samples, which every worker reads, is divided along a
    dimension.
    """
    shapes = [(tuple(t.shape), batches.is_cut(t, whole, dim)) for t in batches.tensors(batch)]
    cut = ", ".join(str(shape) for shape, is_cut in shapes if is_cut)
    kept = ", ".join(str(shape) for shape, is_cut in shapes if not is_cut)
    text = (
        "each batch is read whole by every worker, which takes its part along dimension "
        f"{dim} of {cut}"
    )
    text += f"; {kept} it takes whole" if kept else ""
    recurrent = [
        m for model in models for m in model.modules() if getattr(m, "batch_first", 1) is False
    ]
    if recurrent and not dim:
        kind = type(recurrent[0]).__name__
        text += f". The model has {kind}(batch_first=False), which takes samples along dimension 1"
    return f"{text}. Where samples lie along another, say prepare(..., batch_dim=N)"


def repeats(resume: Mapping[str, Any] | None, welcome: Mapping[str, Any]) -> str:
    """A note that workers which did not wait for each other were ahead of the saved position."""
    ahead = resume.get("ahead", 0) if resume is not None else 0
    if not ahead or welcome.get("index") or welcome.get("joins"):
        return ""
    return (
        f"batches past the position of the checkpoint that were done before it was saved: {ahead}; "
        "they are trained on again"
    )
