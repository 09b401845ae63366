"""A convolutional network that reads handwritten digits, enlarged. Plain PyTorch, a line every ten
batches.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def images(copies):
    """Digits of 28 by 28, each moved about a little so many times, and what they show."""
    digits = load_digits()
    small = torch.tensor(digits.images / 16).float()[:, None]
    large = nn.functional.pad(
        nn.functional.interpolate(small, size=20, mode="bilinear"), (4, 4, 4, 4)
    )
    shifts = torch.randint(-3, 4, (copies, 2)).tolist()
    moved = torch.cat([torch.roll(large, (down, right), (2, 3)) for down, right in shifts])
    return TensorDataset(
        moved + 0.1 * torch.randn_like(moved), torch.tensor(digits.target).repeat(copies)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    learn, test = random_split(images(2), [0.8, 0.2])
    loader, test_loader = DataLoader(learn, 64, shuffle=True), DataLoader(test, 1000)
    model = nn.Sequential(
        *(
            nn.Conv2d(1, 16, 3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        ),
        *(nn.Flatten(), nn.Linear(32 * 12 * 12, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)),
    )
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.3)
    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch, (features, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            if batch % 10 == 0:
                seen, part = batch * len(features), 100.0 * batch / len(loader)
                print(
                    (
                        f"Train Epoch: {epoch} [{seen}/{len(learn)} ({part:.0f}%)]\tLoss: "
                        f"{loss.item():.6f}"
                    ),
                    flush=True,
                )
        model.eval()
        lost, right = 0.0, 0
        with torch.no_grad():
            for features, labels in test_loader:
                scores = model(features)
                lost += nn.functional.cross_entropy(scores, labels, reduction="sum").item()
                right += (scores.argmax(1) == labels).sum().item()
        said = (
            f"Average loss: {lost / len(test):.4f}, Accuracy: {right}/{len(test)} "
            f"({100.0 * right / len(test):.0f}%)"
        )
        print(f"\nTest set: {said}\n", flush=True)


if __name__ == "__main__":
    main()
