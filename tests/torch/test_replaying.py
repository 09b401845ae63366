"""Batches that are gone through again without the loader: told of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

BODY = """
import itertools
model, loader = network(), DataLoader(data(), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
kind = sys.argv[1]
batches = itertools.cycle(loader) if kind == "a cycle" else None
for epoch in hg.epochs(3):
    for features, labels in loader if batches is None else itertools.islice(batches, 6):
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
"""


@pytest.mark.parametrize("kind", ["a cycle", pytest.param("a loader", marks=pytest.mark.long)])
def test_batches_that_are_replayed_are_told_of(kind: str, start: Callable[..., Any]) -> None:
    script = start(BODY, kind)
    script.finish()
    notes = [note["text"] for note in script.listener.of("note") if "itertools.cycle" in note["text"]]
    assert len(notes) == (kind == "a cycle")
