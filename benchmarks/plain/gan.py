"""Two networks against each other, one drawing small pictures, one judging them. Plain PyTorch."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def drawer(noise, width):
    return nn.Sequential(
        *(nn.ConvTranspose2d(noise, 2 * width, 4), nn.BatchNorm2d(2 * width), nn.ReLU()),
        *(nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.ConvTranspose2d(width, 1, 4, 2, 1), nn.Tanh()),
    )


def judge(width):
    return nn.Sequential(
        *(nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(2 * width, 1, 4), nn.Flatten(0)),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    pictures = torch.tensor(load_digits().images / 8 - 1).float()[:, None]
    pictures = nn.functional.interpolate(pictures, size=16, mode="bilinear")
    loader = DataLoader(TensorDataset(pictures), 64, shuffle=True)
    draws, judges = drawer(32, 32), judge(32)
    said = nn.BCEWithLogitsLoss()
    of_judge = torch.optim.Adam(judges.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_drawer = torch.optim.Adam(draws.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for epoch in range(args.epochs):
        for batch, (real,) in enumerate(loader):
            judges.zero_grad()
            right = judges(real)
            fake = draws(torch.randn(len(real), 32, 1, 1))
            wrong = judges(fake.detach())
            loss = said(right, torch.ones_like(right)) + said(wrong, torch.zeros_like(wrong))
            loss.backward()
            of_judge.step()
            draws.zero_grad()
            fooled = judges(fake)
            loss_of_drawer = said(fooled, torch.ones_like(fooled))
            loss_of_drawer.backward()
            of_drawer.step()
            shares = [score.sigmoid().mean().item() for score in (right, wrong, fooled)]
            print(
                f"[{epoch}/{args.epochs}][{batch}/{len(loader)}] Loss_D: {loss.item():.4f} "
                f"Loss_G: {loss_of_drawer.item():.4f} D(x): {shares[0]:.4f} D(G(z)): "
                f"{shares[1]:.4f} / {shares[2]:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
