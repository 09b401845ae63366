"""Trainings of three kinds whose steps keep a large GPU busy, on made-up data that can be learnt.
Small on a CPU.
"""

import argparse

import torch
from torch import nn

import headgate.torch as hg

LETTERS, LENGTH, CLASSES = 512, 256, 16
STEPS = 25


class Language(nn.Module):
    """A transformer; the next token of a chain depends on the one before."""

    def __init__(self, width, layers):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, LETTERS)
        self.register_buffer(
            "ahead", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False
        )

    def forward(self, letters):
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.head(self.layers(self.letters(letters) + self.places(places), mask=self.ahead))


def language(large, luck):
    chain = torch.randint(LETTERS, (LETTERS, 4), generator=luck)
    letters = torch.randint(LETTERS, (2048 if large else 64, 1), generator=luck)
    for _ in range(LENGTH):
        chosen = torch.randint(4, (len(letters), 1), generator=luck)
        letters = torch.cat([letters, chain[letters[:, -1:], chosen]], 1)
    return (
        Language(*((768, 6) if large else (32, 1))),
        letters[:, :-1],
        letters[:, 1:],
        64 if large else 4,
    )


def images(large, luck):
    width, layers = (128, 8) if large else (8, 2)
    first = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    rest = [
        part
        for _ in range(layers)
        for part in (nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    ]
    model = nn.Sequential(
        *first, *rest, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)
    )
    labels = torch.randint(CLASSES, (4096 if large else 64,), generator=luck)
    kinds = torch.randn(CLASSES, 3, 64, 64, generator=luck)
    return (
        model,
        kinds[labels] + 2 * torch.randn(len(labels), 3, 64, 64, generator=luck),
        labels,
        128 if large else 8,
    )


def vectors(large, luck):
    width, layers = (8192, 4) if large else (64, 2)
    rest = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), *rest, nn.Linear(width, CLASSES))
    inputs = torch.randn(65536 if large else 256, 256, generator=luck)
    return (
        model,
        inputs,
        (inputs @ torch.randn(256, CLASSES, generator=luck)).argmax(1),
        4096 if large else 64,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("language", "images", "vectors"), required=True)
    parser.add_argument("--epochs", type=int, default=10, help=f"of {STEPS} steps")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    large = device.type == "cuda"
    luck = torch.Generator().manual_seed(0)
    model, inputs, answers, batch = {"language": language, "images": images, "vectors": vectors}[
        args.kind
    ](large, luck)
    model.to(device)
    inputs, answers = inputs.to(device), answers.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model, optimizer = hg.prepare(model, optimizer)
    for epoch in hg.epochs(args.epochs):
        for _ in range(STEPS):
            chosen = torch.randint(len(inputs), (batch,), device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=large):
                scores = model(inputs[chosen])
                loss = nn.functional.cross_entropy(scores.flatten(0, -2), answers[chosen].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hg.report(loss=loss)
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
