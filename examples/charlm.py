"""A small transformer that learns to write Python, character by character, from the standard
library's own source.
"""

import argparse
import math
import random
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import headgate.torch as hg

INDENT = "    "  # one tab to the model: a third of the source would be blanks otherwise
CHARACTERS = "\n\t" + "".join(map(chr, range(32, 127)))
UNKNOWN = CHARACTERS.index("?")


def modules(folder, most, seed, longest=15_000):
    """The beginnings of the modules in `folder`, in a random order, up to `most` characters in
    all.
    """
    paths = sorted(folder.glob("*.py"))
    random.Random(seed).shuffle(paths)
    sources = []
    for path in paths:
        source = path.read_text(encoding="utf-8", errors="replace").replace(INDENT, "\t")
        sources.append(source[: min(longest, most)])
        most -= len(sources[-1])
        if most == 0:
            break
    return sources


def encoded(text):
    code = {character: index for index, character in enumerate(CHARACTERS)}
    return torch.tensor([code.get(character, UNKNOWN) for character in text])


class Windows(Dataset):
    """Pieces of `length` characters, end to end, each with the same piece one character on: what
    comes next.
    """

    def __init__(self, text, length):
        self.text = text
        self.length = length

    def __len__(self):
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        window = self.text[start : start + self.length + 1]
        return window[:-1], window[1:]


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.mix(self.norm_1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm_2(x))


class Writer(nn.Module):
    def __init__(self, length, width, layers, heads):
        super().__init__()
        self.length = length
        self.character = nn.Embedding(len(CHARACTERS), width)
        self.position = nn.Embedding(length, width)
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(CHARACTERS))

    def forward(self, text):
        where = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.layers(self.character(text) + self.position(where))))

    @torch.no_grad()
    def write(self, start, count):
        """`start` and `count` more characters."""
        text = encoded(start)[None]
        for _ in range(count):
            odds = F.softmax(self(text[:, -self.length :])[0, -1] / 0.8, dim=0)
            text = torch.cat([text, torch.multinomial(odds, 1)[None]], dim=1)
        return "".join(CHARACTERS[code] for code in text[0].tolist()).replace("\t", INDENT)


def loss_of(model, text, following):
    return F.cross_entropy(model(text).flatten(0, 1), following.flatten())


@torch.no_grad()
def evaluated(model, loader):
    """Mean loss over modules that training never saw."""
    model.eval()
    losses = [loss_of(model, text, following).item() for text, following in loader]
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--characters", type=int, default=500_000, help="of the standard library to learn from"
    )
    parser.add_argument(
        "--length", type=int, default=64, help="characters that the model sees at once"
    )
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    sources = modules(Path(sysconfig.get_path("stdlib")), args.characters, args.seed)
    test = encoded("".join(sources[1::10]))
    train = encoded("".join(source for index, source in enumerate(sources) if index % 10 != 1))
    loader = DataLoader(Windows(train, args.length), args.batch, shuffle=True, drop_last=True)
    test_loader = DataLoader(Windows(test, args.length), 64)
    model = Writer(args.length, args.width, args.layers, heads=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.epochs * len(loader)
    )
    parameters = sum(p.numel() for p in model.parameters())
    print(
        (
            f"{len(train):,} + {len(test):,} characters, {parameters:,} parameters, {len(loader)} "
            "steps an epoch"
        ),
        flush=True,
    )

    model, optimizer, loader = hg.prepare(model, optimizer, loader, scheduler=schedule)
    for epoch in hg.epochs(args.epochs):
        total = 0.0
        for window, following in loader:
            loss = loss_of(model, window, following)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            hg.report(loss=loss)
            total += loss.item()
        held_out = evaluated(model, test_loader)
        hg.report(test_loss=held_out)
        print(
            (
                f"epoch {epoch + 1}/{args.epochs}  loss {total / len(loader):.4f}  test loss "
                f"{held_out:.4f}"
            ),
            flush=True,
        )
    print(model.write("def ", 300))
    held_out = evaluated(model, test_loader)
    print(f"test loss {held_out:.4f} ({held_out / math.log(2):.3f} bits a character)")


if __name__ == "__main__":
    main()
