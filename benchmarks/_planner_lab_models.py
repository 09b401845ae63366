"""The four training scripts that planner_lab.py measures, and the nodes that it measures them on.

Batches can be divided by 1 to 6, for those baselines that know equal parts only.
"""

from __future__ import annotations

NAME = "planner-lab"
LAB = f"""
lab: true
name: {NAME}
oversubscribe: true
nodes:
  - {{kind: large, count: 2, address: 10.77.46.1, cores: 0.5, memory: 4GiB, nic: 1Gbit}}
  - {{kind: fast-nic, count: 2, address: 10.77.46.11, cores: 0.2, memory: 2GiB, nic: 1Gbit}}
  - {{kind: slow-nic, count: 2, address: 10.77.46.21, cores: 0.2, memory: 2GiB, nic: 200Mbit}}
"""
"""The nodes of examples/lab-mixed.yaml, at other addresses: 1.8 cores in all."""

_SCRIPT = """
import os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

torch.manual_seed(1)
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(features, labels), {batch}, shuffle=True)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
steps = open(f"steps-{{os.getpid()}}", "a", buffering=1)
done = 0
for epoch in hg.epochs(100000):
    for inputs, targets in loader:
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
        done += 1
        print(time.time(), done, len(targets), file=steps)
"""
_CLASSES = "nn.functional.cross_entropy(model(inputs), targets)"


def _script(model: str, batch: int, loss: str = _CLASSES) -> str:
    return _SCRIPT.format(model=model.strip(), batch=batch, loss=loss)


SCRIPTS = {
    "cnn": _script(
        """
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 10),
)
features, labels = torch.randn(4800, 3, 32, 32), torch.randint(0, 10, (4800,))
""",
        60,
    ),
    "mlp": _script(
        """
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10),
)
features, labels = torch.randn(24000, 512), torch.randint(0, 10, (24000,))
""",
        240,
    ),
    "recommender": _script(
        """
class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100_000, 16, mode="sum", sparse=True) for _ in range(4))
        self.top = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, indices):
        return self.top(torch.cat([table(part) for table, part in zip(self.tables, indices.chunk(4, 1))], 1))

model = Recommender()
features, labels = torch.randint(0, 100_000, (48000, 32)), torch.randint(0, 2, (48000,))
""",
        480,
    ),
    "transformer": _script(
        """
class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 256)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))

model = Transformer()
features = torch.randint(0, 256, (6000, 16))
labels = features.roll(-1, 1)
""",
        60,
        "nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())",
    ),
}
"""Compute-bound, network-bound, most of it sparse tables, and of many small operations."""
