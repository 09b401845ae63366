"""A graph network that sorts the nodes of a made-up citation graph. Plain PyTorch, one line an
epoch.
"""

import argparse
import time

import torch
from torch import nn

GROUPS = 7


def graph(nodes, words, degree):
    """A graph whose edges mostly stay within a group, its nodes' words, and their groups."""
    group = torch.randint(GROUPS, (nodes,))
    source = torch.arange(nodes).repeat_interleave(degree)
    inside = torch.rand(len(source)) < 0.7
    target = torch.randint(nodes, (len(source),))
    order = group.argsort()
    begins = torch.searchsorted(group[order], torch.arange(GROUPS))
    sizes = torch.bincount(group, minlength=GROUPS)
    own = group[source]
    friend = order[begins[own] + (torch.rand(len(source)) * sizes[own]).long()]
    target = torch.where(inside, friend, target)
    edges = torch.cat(
        [
            torch.stack([source, target]),
            torch.stack([target, source]),
            torch.arange(nodes).repeat(2, 1),
        ],
        1,
    )
    degrees = torch.bincount(edges[0], minlength=nodes).float()
    weights = (degrees[edges[0]] * degrees[edges[1]]).rsqrt()
    adjacency = torch.sparse_coo_tensor(edges, weights, (nodes, nodes)).coalesce().to_sparse_csr()
    topics = torch.rand(GROUPS, words) < 0.02
    features = (
        (torch.rand(nodes, words) < 0.01) | (topics[group] & (torch.rand(nodes, words) < 0.3))
    ).float()
    return adjacency, features, group


class GraphNetwork(nn.Module):
    def __init__(self, words, hidden):
        super().__init__()
        self.first, self.second = nn.Linear(words, hidden), nn.Linear(hidden, GROUPS)
        self.drop = nn.Dropout(0.5)

    def forward(self, adjacency, features):
        hidden = torch.relu(adjacency @ self.first(self.drop(features)))
        return adjacency @ self.second(self.drop(hidden))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    adjacency, features, group = graph(nodes=2700, words=1400, degree=2)
    learns = torch.rand(len(group)) < 0.1
    model = GraphNetwork(features.shape[1], 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(args.epochs):
        began = time.time()
        model.train()
        optimizer.zero_grad()
        scores = model(adjacency, features)
        loss = nn.functional.cross_entropy(scores[learns], group[learns])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = model(adjacency, features)
            other = nn.functional.cross_entropy(scores[~learns], group[~learns])
            right = (scores.argmax(1) == group).float()
        print(
            f"Epoch: {epoch + 1:04d} loss_train: {loss.item():.4f} acc_train: "
            f"{right[learns].mean():.4f} loss_val: {other.item():.4f} acc_val: "
            f"{right[~learns].mean():.4f} time: {time.time() - began:.4f}s",
            flush=True,
        )
    print("Optimization Finished!")


if __name__ == "__main__":
    main()
