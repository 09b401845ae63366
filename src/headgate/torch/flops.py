"""Counts the floating-point operations of a step, by the formulas of torch's own counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def _formulas() -> dict[Any, Callable[..., int]]:
    """torch's formulas (a multiply-add counts as two), and one for attention on a CPU, which
    torch's table lacks.
    """
    aten = torch.ops.aten
    formulas: dict[Any, Callable[..., int]] = dict(flop_registry)
    for ours, aten_name in (
        ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
        (
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_flash_attention_backward",
        ),
    ):
        formula = formulas.get(getattr(aten, aten_name))
        if hasattr(aten, ours) and formula is not None:
            formulas.setdefault(getattr(aten, ours), formula)
    return formulas


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the FLOPs of every operator that runs while it is entered.

    It uses the table of `torch.utils.flop_counter.FlopCounterMode`. Unlike that class it does not
    track modules, and can be entered within a forward pass. A formula that fails does not raise
    into the script, but leaves `complete` false.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.complete = True
        self._formulas = _formulas()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = getattr(func, "_overloadpacket", None)
        if packet is None:
            self.complete = False  # an operator of higher order: what runs inside it is not seen
        formula = self._formulas.get(packet)
        if formula is not None:
            try:
                self.flops += formula(*args, **kwargs, out_val=out)
            except Exception:  # noqa: BLE001 - whatever is wrong with a formula is no reason to end the training
                self.complete = False
        return out
