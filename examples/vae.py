"""A variational auto-encoder (Kingma and Welling, 2014) that learns to draw the handwritten digits
of scikit-learn.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import headgate.torch as hg


class Autoencoder(nn.Module):
    def __init__(self, pixels=64, hidden=512, latent=8):
        super().__init__()
        self.latent = latent
        self.encoder = nn.Sequential(
            nn.Linear(pixels, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, 2 * latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, pixels),
        )

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(code), mean, log_variance


def negative_elbo(model, pixels):
    """The bound on -log p(x) in nats an image: cross-entropy of the pixels plus divergence of the
    code from N(0, 1).
    """
    logits, mean, log_variance = model(pixels)
    drawn = F.binary_cross_entropy_with_logits(logits, pixels, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return (drawn + divergence) / len(pixels)


@torch.no_grad()
def evaluated(model, loader):
    """Mean bound over the images that training never saw."""
    model.eval()
    total = sum(negative_elbo(model, pixels).item() * len(pixels) for (pixels,) in loader)
    model.train()
    return total / len(loader.dataset)


def drawn(model, columns=6):
    """A few new digits, as text."""
    with torch.no_grad():
        images = torch.sigmoid(model.decoder(torch.randn(columns, model.latent))).reshape(
            columns, 8, 8
        )
    shades = " .:-=+*#%@"
    rows = [
        "   ".join("".join(2 * shades[int(9.99 * p)] for p in image[row]) for image in images)
        for row in range(8)
    ]
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--latent", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    pixels = torch.from_numpy((load_digits().data / 16).astype("float32"))
    train, test = random_split(TensorDataset(pixels), [0.8, 0.2])
    loader = DataLoader(train, args.batch, shuffle=True)
    test_loader = DataLoader(test, 360)
    model = Autoencoder(hidden=args.hidden, latent=args.latent)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    model, optimizer, loader = hg.prepare(model, optimizer, loader)
    for epoch in hg.epochs(args.epochs):
        total = 0.0
        for (batch,) in loader:
            loss = negative_elbo(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hg.report(loss=loss)
            total += loss.item()
        held_out = evaluated(model, test_loader)
        hg.report(test_loss=held_out)
        print(
            (
                f"epoch {epoch + 1}/{args.epochs}  loss {total / len(loader):.3f}  test loss "
                f"{held_out:.3f}"
            ),
            flush=True,
        )
    print(drawn(model))
    print(f"test loss {evaluated(model, test_loader):.3f} nats an image")


if __name__ == "__main__":
    main()
