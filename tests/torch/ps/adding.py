"""A worker that adds up numbers over parameter servers, round after round, and checks every sum:
run by a gang.

In round r worker w contributes w + r + 1 everywhere, weighed with 2 ** w. It goes as far as the
file `until` says, and prints what it saw.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from headgate.task import Channel, TaskEnvironment
from headgate.torch import ps
from headgate.torch.backend import Backend

SIZES = [int(size) for size in os.environ.get("SIZES", "200000 1000 400001").split()]
LOCKSTEP = "BACKUPS" not in os.environ


def until(index: int) -> int:
    """Rounds that a worker may do; negative: that is all there will be."""
    own = Path(f"until-{index}")
    return int((own if own.exists() else Path("until")).read_text())


def opened(number: int, backend: Backend, channel: Channel) -> bool:
    """Wait until a round may be done, or never will be, and give the state to who joins; which of
    both.
    """
    while True:
        if channel.take_hold():
            path = Path("state")
            path.write_text(json.dumps({**backend.before_save(), "number": number}))
            channel.send({"type": "checkpoint", "why": "join", "path": str(path.resolve())})
            channel.hold(60)
        allowed = until(backend.index)
        if number < abs(allowed) or allowed < 0:
            return number < abs(allowed)
        time.sleep(0.005)


def main() -> None:
    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "torch", torch.__version__, 0)
    assert channel.wait_for(lambda: bool(channel.welcome), 60)
    state = None
    if channel.welcome["joins"]:
        channel.send({"type": "joining"})
        assert channel.wait_for(lambda: bool(channel.state), 60)
        state = json.loads(Path(channel.state).read_text())
    backend = ps.backend(channel, state)
    number = 0
    if state is None:
        values, count = torch.full((3,), float(backend.index)), torch.tensor([backend.index + 5])
        backend.broadcast([values, count])
        print("began with", values.tolist(), count.tolist(), flush=True)
    else:
        number = state["number"]
        print("joins in round", number, flush=True)
    buffers = [torch.zeros(size, dtype=torch.float64) for size in SIZES] + [
        torch.zeros(1, dtype=torch.float64)
    ]
    backend.register(buffers)
    seen: list[list[object]] = []
    while opened(number, backend, channel):
        weight = 2.0**backend.index if backend.index in backend.members else 0.0
        backend.traced = True
        backend.begin(weight)
        for index in reversed(range(len(buffers))):
            buffers[index].fill_(weight * (backend.index + number + 1))
            if index == len(buffers) - 1:
                buffers[index][0] = weight
            backend.launch(index)
        channel.send({"type": "pushed", "step": number})
        result = backend.finish()
        total = result.sums[-1].item()
        taking_part = [member for member in range(16) if int(total) & 1 << member]
        mean = sum(2**member * (member + number + 1) for member in taking_part) / total
        # Where a sum need not be of all, each chunk's may be of others.
        low, high = (mean, mean) if LOCKSTEP else (number + 1, number + 1 + max(result.members))
        for sums in result.sums[:-1]:
            means = sums / total
            error = max(low - means.min().item(), means.max().item() - high)
            if error > 1e-10:
                print(f"round {number}: off by {error}, with {taking_part}", flush=True)
                sys.exit(1)
        if not seen or seen[-1][1:] != [list(result.members), taking_part]:
            seen.append([number, list(result.members), taking_part])
        number += 1
        channel.send({"type": "progress", "step": number, "count": 0})
    print(json.dumps({"rounds": number, "seen": seen}), flush=True)
    backend.close()
    channel.flush(5.0)


main()
