"""A small transformer that learns to spell made-up names. Plain PyTorch, steps without an end that
its lines tell.
"""

import argparse
import random
import time

import torch
from torch import nn

CONSONANTS, VOWELS, LONGEST = "bdfgklmnprstvz", "aeiou", 12


def names(count, luck):
    """Names of syllables, as rows of letters' numbers that begin and end with 0."""
    found = torch.zeros(count, LONGEST + 2, dtype=torch.long)
    for row in range(count):
        syllables = (
            luck.choice(CONSONANTS) + luck.choice(VOWELS) for _ in range(luck.randint(1, 4))
        )
        name = "".join(syllables) + luck.choice(("", "n", "s", "ra"))
        found[row, 1 : 1 + len(name[:LONGEST])] = torch.tensor(
            [ord(letter) - 96 for letter in name[:LONGEST]]
        )
    return found


class Speller(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.letters, self.places = nn.Embedding(27, width), nn.Embedding(LONGEST + 1, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 27)

    def forward(self, letters):
        length = letters.shape[1]
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.letters(letters) + self.places(torch.arange(length))
        return self.head(self.layers(hidden, mask=ahead))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    known = names(20000, random.Random(args.seed))
    model = Speller(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, betas=(0.9, 0.99))
    for step in range(args.max_steps):
        began = time.time()
        batch = known[torch.randint(len(known), (64,))]
        scores = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            took = 1000 * (time.time() - began)
            print(f"step {step} | loss {loss.item():.4f} | step time {took:.2f}ms", flush=True)


if __name__ == "__main__":
    main()
