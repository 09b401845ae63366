"""Sparse regression in PyTorch adds gradients to rows faster than PyTorch's own optimizer, and
comes to the same.
"""

from __future__ import annotations

import torch

from headgate.workloads.torch import Clicks, RowSGD


def test_rows_that_a_batch_names_several_times_come_to_what_they_do_in_pytorch() -> None:
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(7, (32, 5), generator=made)
    values, clicked = torch.randn(32, 5, generator=made), torch.rand(32, generator=made)
    found = []
    for kind in (RowSGD, torch.optim.SGD):
        model = Clicks(9, sparse=True)
        optimizer = kind(model.parameters(), 0.1)
        for _ in range(20):
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(
                model(ids, values), clicked
            ).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert model.rows.weight.grad is not None and model.rows.weight.grad.is_sparse
        found.append(model)
    here, pytorch = found
    torch.testing.assert_close(here.rows.weight, pytorch.rows.weight)
    torch.testing.assert_close(here.bias, pytorch.bias)
    assert (here.rows.weight[7:] == 0).all()
