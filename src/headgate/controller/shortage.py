"""What a job that waits for room lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headgate.model.units import say_bytes

ShortageKind = Literal["gpus", "memory", "gpu-memory", "gpu-unseen", "gpu-alone"]


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a job lacks to start.

    Args:
        kind: Whole GPUs; memory of a node; memory of a GPU; a GPU on which it is seen what the job
            there holds; or a GPU without other jobs, because it, the job there or the compute mode
            asks for that.
        needs_bytes: Memory that each worker needs, of GPUs each worker on each GPU.
        count: How many times: workers, or workers and their GPUs.
        node: Where it is short; empty: that is not settled.
        gpu: Which GPU there has most of it left.
        free_bytes: What is left there.
        others_bytes: What programs hold there for which nothing is kept. None: they are not why it
            is short.
        is_known: Whether that is known to be its need; else it is what it is given until that is
            seen.
        gpus: Those that are not seen yet, or have other jobs.
    """

    kind: ShortageKind
    needs_bytes: int = 0
    count: int = 1
    node: str = ""
    gpu: int | None = None
    free_bytes: int | None = None
    others_bytes: int | None = None
    is_known: bool = True
    gpus: tuple[int, ...] = ()

    @property
    def on_gpu(self) -> bool:
        return self.kind.startswith("gpu-")

    @property
    def facts(self) -> Mapping[str, object]:
        """What is known of it, by name; the rest is left out."""
        named = (
            "needs_bytes",
            "count",
            "node",
            "gpu",
            "free_bytes",
            "others_bytes",
            "is_known",
            "gpus",
        )
        return {
            name: value for name in named if (value := getattr(self, name)) not in (None, "", ())
        }

    def in_words(self) -> str:
        """What it waits for."""
        if self.kind == "gpus":
            return "1 GPU" if self.count == 1 else f"{self.count} GPUs"
        if self.kind == "memory":
            return self._of_memory()
        gpus = f"GPU {', '.join(map(str, self.gpus))} of node {self.node}"
        if self.kind == "gpu-unseen":
            return f"a GPU: what the jobs on {gpus} hold of it is not seen yet"
        if self.kind == "gpu-alone":
            return f"a GPU that no other job uses: there are some on {gpus}"
        each = say_bytes(self.needs_bytes) + ("" if self.is_known else " or so (it is not known)")
        each += f" for each of {self.count} tasks and GPUs" if self.count > 1 else ""
        if self.free_bytes is None:
            return f"{each} of GPU memory"
        text = (
            f"GPU memory: needs {each}, {say_bytes(self.free_bytes)} free on GPU {self.gpu} "
            f"of node {self.node}"
        )
        if self.others_bytes is not None:
            text += f", where programs that nothing is kept for use {say_bytes(self.others_bytes)}"
        return text

    def _of_memory(self) -> str:
        text = f"{say_bytes(self.count * self.needs_bytes)} of memory"
        text += "" if self.is_known else " until its need is seen"
        if self.free_bytes is None or self.others_bytes is None:
            return text
        free, others = say_bytes(self.free_bytes), say_bytes(self.others_bytes)
        return (
            f"{text}: {free} free on node {self.node}, where other programs and Headgate "
            f"hold {others}"
        )
