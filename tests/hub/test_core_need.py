"""A hub learns from the spans and the use of a plain script what cores do to its steps."""

from __future__ import annotations

import json

import pytest
from tests.hub.user import User

from headgate.recorded.reader import RunReader
from headgate.testing import wait

WAITS_FOR_ITS_GPU = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.ones(100, 2)), batch_size=1)
while True:
    for (features,) in loader:
        loss = model(features).mean()
        time.sleep(0.05)  # as a GPU takes no CPU time
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.long  # tests/forecast/test_core_need.py has its decisions
def test_a_plain_script_that_waits_for_its_gpu_has_few_cores_and_status_says_why(
    user: User,
) -> None:
    user.write("waits.py", WAITS_FOR_ITS_GPU)
    user.write("other.py", "import time; time.sleep(600)")
    run = str(user.json("run", "--detach", "waits.py", "other.py")["run"])

    def reasons() -> list[dict[str, dict[str, float]]]:
        with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
            rows = reader.rows("shares", where="task = 'waits/worker-0'", order="t")
            whys = [json.loads(row["why"]) for row in rows]
        return [why for why in whys if why["kind"] in ("few-cores-do", "cores-buy-steps")]

    wait.until(lambda: reasons() != [], 60, "its need is known")
    assert reasons()[-1]["facts"]["cores"] < 0.7
    job = user.jobs()["waits"]
    assert " cores" in str(job["decision"])
    user.types("stop", "--kill", "--run", run)
