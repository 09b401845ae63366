"""An LSTM that reads handwritten digits row by row. Plain PyTorch."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset, random_split


class RowReader(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(8, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, images):
        states, _ = self.lstm(images)
        return self.head(states[:, -1])


def train(model, loader, optimizer, criterion):
    model.train()
    running_loss = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    return running_loss / len(loader)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images / 16).float(), torch.tensor(digits.target))
    train_set, test_set = random_split(data, [0.8, 0.2])
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, 360)

    model = RowReader(args.hidden)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(1, args.epochs + 1):
        loss = train(model, train_loader, optimizer, criterion)
        accuracy = evaluate(model, test_loader)
        print(
            f"Epoch {epoch}/{args.epochs}, Loss: {loss:.4f}, Test accuracy: {100 * accuracy:.2f}%",
            flush=True,
        )


if __name__ == "__main__":
    main()
