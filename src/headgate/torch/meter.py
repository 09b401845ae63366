"""Times measured steps by span, and counts the FLOPs of one of them.

Only a step that is selected (`headgate.task.step_timing.StepSampling`) hooks the model and waits
for the GPU. Other steps cost a comparison per mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headgate.task import StepSpans
from headgate.task.step_timing import StepSampling
from headgate.torch.backend import Movement, Passage, RoundResult
from headgate.torch.rng import cuda_in_use

_EXCHANGE = ("push", "wait", "pull")
_SPANS = ("input", "copy", "forward", "backward", *_EXCHANGE, "optimizer", "other")
_FLOPS_STEP = 2


@dataclass
class Step:
    """A measured step.

    Args:
        number: Number among the steps of this process, from 1.
        samples: Samples of the step; None if batches do not show them.
        spans: Seconds by span: `input`, `copy`, `forward`, `backward`, `push`, `wait`, `pull`,
            `optimizer`, `other`.
        begins: Seconds from the step's start to the first start of each span.
        transfers: Transfers between this task and others, as the channel sends them.
        flops_forward: FLOPs of the forward passes; None unless counted in this step.
        flops: FLOPs of the whole step.
        loader_workers: Number of worker processes of the loader; None: unknown.
    """

    number: int
    samples: int | None
    spans: dict[str, float] = field(default_factory=dict)
    begins: dict[str, float] = field(default_factory=dict)
    transfers: list[dict[str, Any]] = field(default_factory=list)
    flops_forward: int | None = None
    flops: int | None = None
    loader_workers: int | None = None

    @property
    def seconds(self) -> float:
        return sum(self.spans.values())

    @property
    def compute_seconds(self) -> float:
        """Seconds without waiting for input or for other tasks."""
        return self.seconds - sum(self.spans.get(name, 0.0) for name in ("input", *_EXCHANGE))

    def as_message(self) -> dict[str, Any]:
        """Spans with their bytes, and transfers, as the channel sends them."""
        sent = sum(transfer["push"][2] for transfer in self.transfers if transfer["push"])
        received = sum(transfer["pull"][2] for transfer in self.transfers if transfer["pull"])
        inwards = "pull" if "pull" in self.spans else "push"  # a ring sends and receives at once
        spans = [
            {
                "name": name,
                "seconds": self.spans[name],
                "begin": self.begins.get(name, 0.0),
                "bytes_in": received if name == inwards and self.transfers else None,
                "bytes_out": sent if name == "push" and self.transfers else None,
                "workers": self.loader_workers if name == "input" else None,
            }
            for name in _SPANS
            if name in self.spans
        ]
        return {"spans": spans, "transfers": self.transfers} if self.transfers else {"spans": spans}


class Meter:
    """Marks of the running step.

    Args:
        models: The prepared models; may grow.
        deliver: Takes each measured step.
        every_step: Measure all steps.

    Attributes:
        open: Whether a step is running.
        sampled: Whether it is measured.
        completed: Whether its optimizer step has been taken.
        steps: Number of ended steps.
        samples: Samples of the running step, if known.
        notes: What could not be measured.
    """

    def __init__(
        self, models: Sequence[nn.Module], deliver: Callable[[Step], None], every_step: bool = False
    ) -> None:
        self._models = models
        self._deliver = deliver
        self._sampling = StepSampling(every_step)
        self._spans = StepSpans(_clock)
        self.sampled = False
        self._transfers: list[dict[str, Any]] = []
        self._depth = 0
        self._handles: list[Any] = []
        self._flops: _FlopPhases | None = None
        self.completed = False
        self.steps = 0
        self.open = False
        self.samples: int | None = None
        self.notes: list[str] = []

    def begin(self) -> None:
        """Begin a step."""
        self.open = True
        self.completed = False
        self.samples = None
        number = self.steps + 1
        self.sampled = self._sampling.takes(number)
        if self.sampled:
            self._depth = 0
            self._transfers = []
            self._hook(number == _FLOPS_STEP)
            self._spans.begin("other")

    def mark(self, name: str) -> None:
        """Begin the span `name` of the running step."""
        if self.sampled:
            self._spans.enter(name)

    def exchanged(self, begin: float, end: float, result: RoundResult) -> None:
        """Move the time from `begin` to `end` of the running span to the exchange of gradients."""
        wait, pull = result.wait_seconds, result.pull_seconds
        push = max(0.0, end - begin - wait - (pull or 0.0))
        spans = [("push", begin, push), ("wait", begin + push, wait)]
        if pull is not None:
            spans.append(("pull", begin + push + wait, pull))
        self.moved(Movement(tuple(spans), result.transfers))

    def moved(self, movement: Movement) -> None:
        """Move the spans of an exchange with other tasks out of the running span."""
        if not self.sampled:
            return
        for name, begin, seconds in movement.spans:
            if seconds > 0 or name != "wait":  # what was sent and came is told with the others
                self._spans.carve(name, begin, max(0.0, seconds))
        self._transfers += [
            {
                "peer": transfer.peer,
                "push": self._passage(transfer.push),
                "pull": self._passage(transfer.pull),
            }
            for transfer in movement.transfers
        ]

    def _passage(self, passage: Passage | None) -> list[float] | None:
        if passage is None:
            return None
        return [
            self._spans.since_begin(passage.begin),
            self._spans.since_begin(passage.end),
            passage.bytes,
        ]

    def complete(self) -> None:
        """Note the step of the optimizer. Marks from now on still belong to this step, until
        `end`.
        """
        self.completed = True

    def end(self) -> None:
        """End the running step. A step without an optimizer step, as a validation pass, is
        dropped.
        """
        if not self.open:
            return
        self.open = False
        if self.completed:
            self.steps += 1
        if not self.sampled:
            return
        self.sampled = False
        self.unhook()
        spans = self._spans.end()
        if self.completed:
            step = Step(self.steps, self.samples, spans, self._spans.begins, self._transfers)
            if self._flops is not None and self._flops.counter.complete and self._flops.forward:
                step.flops_forward, step.flops = self._flops.forward, self._flops.counter.flops
            self._flops = None
            self._deliver(step)

    def unhook(self) -> None:
        """Remove the hooks: no more forward passes are expected in this step."""
        global _active
        if self._flops is not None:
            self._flops.leave()
        if self._handles:
            for handle in self._handles:
                handle.remove()
            self._handles = []
            _active = None

    def forward_begins(self) -> None:
        self._depth += 1
        if self._depth == 1 and self._spans.inside != "optimizer":
            if self._flops is not None:
                self._flops.enter()
            self._spans.enter("forward")

    def forward_ends(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self._spans.inside == "forward":
            if self._flops is not None:
                self._flops.forward_ends()
            self._spans.enter("backward")

    def _hook(self, count_flops: bool) -> None:
        global _active
        _active = self
        for model in self._models:
            self._handles.append(model.register_forward_pre_hook(_forward_begins))
            self._handles.append(model.register_forward_hook(_forward_ends))
        self._flops = None
        if count_flops:
            if any(_compiled(module) for model in self._models for module in model.modules()):
                self.notes.append(
                    "FLOPs were not counted: torch.compile hides the operators from torch's counter"
                )
            else:
                self._flops = _FlopPhases()


class _FlopPhases:
    """Counts from the first forward pass on, and separates forward passes."""

    def __init__(self) -> None:
        from headgate.torch.flops import (
            FlopCount,  # costs an import that only one step of a run needs
        )

        self.counter = FlopCount()
        self.forward = 0
        self._entered = False
        self._at_forward = 0

    def enter(self) -> None:
        if not self._entered:
            self._entered = True
            self.counter.__enter__()  # type: ignore[no-untyped-call]
        self._at_forward = self.counter.flops

    def forward_ends(self) -> None:
        self.forward += self.counter.flops - self._at_forward

    def leave(self) -> None:
        if self._entered:
            self._entered = False
            self.counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]


_active: Meter | None = None
"""The meter that the hooks mark. The hooks are plain functions, so that a hooked model can be
copied or pickled.
"""


def _forward_begins(module: nn.Module, args: Any) -> None:
    if not torch.compiler.is_compiling() and _active is not None:
        _active.forward_begins()


def _forward_ends(module: nn.Module, args: Any, output: Any) -> None:
    if not torch.compiler.is_compiling() and _active is not None:
        _active.forward_ends()


def _compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _clock() -> float:
    if cuda_in_use():
        torch.cuda.synchronize()
    return time.perf_counter()
