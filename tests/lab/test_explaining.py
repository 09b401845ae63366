"""Who slowed whom through a NIC, on real nodes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.lab.laboratory import Laboratory

from headgate import lab

TRAINS = """
import time, torch
import headgate.torch as hg
model = torch.nn.Linear(1000, 1000)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
rows = torch.utils.data.TensorDataset(torch.ones(4096, 1000), torch.ones(4096, 1000))
loader = torch.utils.data.DataLoader(rows, batch_size=16)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
end = time.monotonic() + 10.0
for epoch in hg.epochs(1):
    for features, labels in loader:
        loss = (model(features) - labels).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        hg.report(loss=loss)
        if hg.agree(time.monotonic() > end): raise SystemExit
"""
RECEIVES = """
import socket
with socket.create_server(({address!r}, 9901)) as listening:
    print("listens", flush=True)
    there, _ = listening.accept()
    while there.recv(1 << 20): pass
"""
SENDS = """
import socket, sys, time
there = socket.create_connection((sys.argv[1], 9901))
end = time.monotonic() + 20.0
try:
    while time.monotonic() < end: there.sendall(bytes(1 << 20))
except OSError:
    pass
"""


@pytest.mark.long
def test_a_job_that_fills_a_nic_is_blamed_by_one_that_exchanges_through_it(
    laboratory: Laboratory,
) -> None:
    a, b, c, d = laboratory.up(
        *(f"name: {name}, nic: 100Mbit, cores: 0.6, memory: 2GiB" for name in "abcd"),
        options="oversubscribe: true",
    )
    (laboratory.folder / "trains.py").write_text(TRAINS)
    (laboratory.folder / "sends.py").write_text(SENDS)
    receiver = laboratory.starts(d.name, sys.executable, "-c", RECEIVES.format(address=d.address))
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "listens\n"
    served = {
        "strategy": "ps",
        "workers": 2,
        "servers": 1,
        "worker_nodes": [a.name, b.name],
        "server_nodes": [c.name],
    }
    hog = {"strategy": "single", "workers": 1, "worker_nodes": [a.name]}
    jobs = [
        {"name": "trains", "script": "trains.py", "plan": served, "encrypt": False, "moves": 0},
        {"name": "hog", "script": "sends.py", "args": [d.address], "plan": hog, "moves": 0},
    ]
    file = laboratory.folder / "jobs.yaml"
    file.write_text(json.dumps({"jobs": [{"python": sys.executable, **job} for job in jobs]}))
    command = [sys.executable, "-m", "headgate"]
    asked = [*command, "run", str(file), "--cluster", lab.names()[0], "--policy", "none"]
    subprocess.run(asked, check=True, capture_output=True, timeout=240)
    told = subprocess.run(
        [*command, "explain", "trains", "--json"], check=True, capture_output=True, text=True
    )
    [job] = json.loads(told.stdout)["jobs"]
    assert sum(part["seconds"] for part in job["account"].values()) == pytest.approx(job["elapsed"])
    through_nic = {loss["to"]: loss for loss in job["lost"] if loss["resource"] == "network"}
    assert through_nic["hog"]["seconds"] >= 1.0, job["lost"]
    assert through_nic["hog"]["evidence"] == "counted"
    assert through_nic.keys() <= {"hog", "node"}
