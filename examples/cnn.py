"""A convolutional network that reads handwritten digits: 1,797 images of 8 x 8 pixels, bundled with
scikit-learn.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg


def digits(seed):
    """Training and test set, stratified 80 : 20, pixels from 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 1, 8, 8)
    parts = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)
    train_x, test_x, train_y, test_y = map(torch.from_numpy, parts)
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


class Block(nn.Module):
    """Two convolutions with a short cut around them."""

    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


def network(channels):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        Block(channels),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        Block(2 * channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(2 * channels, 10),
    )


def shifted(images):
    """The batch moved by up to one pixel each way, so that the network cannot learn positions by
    heart.
    """
    row, column = torch.randint(0, 3, (2,)).tolist()
    return F.pad(images, (1, 1, 1, 1))[:, :, row : row + 8, column : column + 8]


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--channels", type=int, default=48)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test = digits(args.seed)
    loader = DataLoader(train, args.batch, shuffle=True)
    test_loader = DataLoader(test, 360)
    model = network(args.channels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.epochs * len(loader)
    )

    model, optimizer, loader = hg.prepare(model, optimizer, loader, scheduler=schedule)
    for epoch in hg.epochs(args.epochs):
        total = 0.0
        for images, labels in loader:
            loss = F.cross_entropy(model(shifted(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            hg.report(loss=loss)
            total += loss.item()
        right = accuracy(model, test_loader)
        hg.report(accuracy=right)
        print(
            (
                f"epoch {epoch + 1}/{args.epochs}  loss {total / len(loader):.4f}  test accuracy "
                f"{right:.2%}"
            ),
            flush=True,
        )
    print(f"test accuracy {accuracy(model, test_loader):.2%}")


if __name__ == "__main__":
    main()
