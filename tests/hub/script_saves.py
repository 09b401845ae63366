"""Plain scripts that save their own checkpoints every ten steps."""

LOOP = """
import argparse, json, os, pathlib, time
import torch

parser = argparse.ArgumentParser()
parser.add_argument({option!r}, help="checkpoint")
[resume] = vars(parser.parse_args()).values()
{look}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
begin = 0

def dies():
    if step == 20 and not resume:  # in mid-save
        os.kill(os.getpid(), 9)

class Dies:
    def __reduce__(self):
        dies()
        return int, ()

def read(path):
    if not os.path.isdir(path):
        return torch.load(path, weights_only=False)
    folder = pathlib.Path(path)
    step = json.loads((folder / "trainer_state.json").read_text())["global_step"]
    return {{"model": torch.load(folder / "pytorch_model.bin"), "step": step}}

def save(state):
    {save}

if resume:
    state = read(resume)
    model.load_state_dict(state["model"])
    begin = state["step"]
    print("resumed at", begin, flush=True)
for step in range(begin + 1, 31):
    model(torch.ones(8, 4)).mean().backward()
    optimizer.step()
    print(f"step {{step}}/30", flush=True)
    if step % 10 == 0:
        save({{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}})
    if step == 25 and not resume and "DIES" in os.environ:
        os.kill(os.getpid(), 9)
    while step == 25 and not resume:
        time.sleep(0.05)
"""
ROTATED = 'torch.save(state, f"rotated-{step}.pt")'
IN_PLACE = 'torch.save({**state, "rest": Dies()}, "in-place.pt")'
FOLDERS = """
    folder = pathlib.Path(f"out/checkpoint-{step}")
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state["model"], folder / "pytorch_model.bin")
    torch.save(state["optimizer"], folder / "optimizer.pt")
    dies()
    (folder / "trainer_state.json").write_text('{"global_step": %d}' % step)
"""


LOOKS = 'resume = max(map(str, pathlib.Path().glob("looks-*.pt")), default=None)'


def loop(save: str, option: str = "--resume", look: str = "") -> str:
    """A loop that saves in this way, and goes on from what it is given as `option`, or from what
    `look` gives it. If `save` does not end it, it waits after 25 steps, or is killed there if
    `DIES` is set.
    """
    return LOOP.format(save=save.strip(), option=option, look=look)
