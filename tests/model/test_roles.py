"""Roles of a job: what a file may say of them, their placeholders, and where their tasks go."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config import jobfile
from headgate.model.cluster import Gpu, Node
from headgate.model.errors import InvalidFileError, UsageError
from headgate.model.identifiers import TaskName
from headgate.model.jobs import Job
from headgate.model.roles import Addresses, Role
from headgate.planning.placement import place_roles

SERVER, CLIENT = TaskName("server-0"), TaskName("client-1")


def problems(folder: Path, *entries: str, more: str = "") -> list[str]:
    """What is found wrong with a job file that has these roles."""
    file = folder / "jobs.yaml"
    listed = "".join(f"      - {{{entry}}}\n" for entry in entries)
    file.write_text(f"jobs:\n  - name: job\n{more}    roles:\n{listed}")
    with pytest.raises(InvalidFileError) as raised:
        jobfile.load(str(file))
    return [f"{each.where}: {each.found}" for each in raised.value.problems]


def test_what_is_wrong_with_roles_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    at = "jobs[0].roles"
    found = problems(
        tmp_path,
        (
            "name: server, run: 'echo {clinet.port} ${port}', after: [client], ready: {port: "
            "true, line: x}"
        ),
        "name: client, script: no.py, count: 0, after: [server], ends: true",
        "name: Third, run: 'echo {server.3.port}', script: no.py, ends: true",
        more="    args: [x]\n",
    )
    assert sorted(found) == [
        "jobs[0].args: found `args` beside `roles`",
        f"{at}: found `ends` of client and Third",
        f"{at}: found a cycle: server after client after server",
        f"{at}[0].ready: found both `port` and `line`",
        f"{at}[0].run: found {{clinet.port}}, and no role is called 'clinet'",
        f"{at}[1].count: found 0",
        f"{at}[1].script: found 'no.py', which is not a file in {tmp_path}",
        f"{at}[2].name: found 'Third'",
        f"{at}[2].run: found {{server.3.port}}, and role server has 1 tasks",
        f"{at}[2].script: found 'no.py', which is not a file in {tmp_path}",
        f"{at}[2].script: found both `script` and `run`",
    ]
    assert problems(tmp_path, "name: a, run: x, ready: {line: '('}") == [
        f"{at}[0].ready.line: found '('"
    ]


def test_many_roles_that_come_after_all_before_them_are_looked_at_once() -> None:
    """There are 2^39 ways from the last to the first."""
    names = [f"r{i}" for i in range(40)]
    many = tuple(Role(name=name, run="x", after=tuple(names[:i])) for i, name in enumerate(names))
    assert len(Job(name="job", roles=many).roles) == 40


def test_placeholders_and_variables_tell_a_task_of_the_others() -> None:
    names = [SERVER, TaskName("client-0"), CLIENT]
    addresses = Addresses(dict(zip(names, ("a", "b", "c"))), dict(zip(names, (1, 2, 3))))
    text = (
        "{server.host} {server.port} {client.1.address} {client.addresses} {client.hosts} "
        "{index} {port} ${port} {x}"
    )
    assert addresses.fill(text, CLIENT) == "a 1 c:3 b:2,c:3 b,c 1 3 ${port} {x}"
    told = addresses.variables(CLIENT)
    assert told["HEADGATE_ROLE"] == "client"
    assert told["HEADGATE_PORT"] == "3"
    assert told["HEADGATE_CLIENT_ADDRESSES"] == "b:2,c:3"


def node(name: str, cores: float, memory: int, **more: object) -> Node:
    return Node(name, cores=cores, memory_bytes=memory, **more)  # type: ignore[arg-type]


def test_tasks_of_roles_go_where_there_is_room() -> None:
    nodes = [
        node("a", 2.0, 1000, nic_bytes_per_second=100.0),
        node("b", 2.0, 3000, nic_bytes_per_second=10.0),
        node("g", 1.0, 1000, gpus=(Gpu(0, "H100", 10**9),)),
    ]
    roles = (
        Role(name="small", run="true", count=2),
        Role(name="wide", run="true", nic_bytes_per_second=60.0),
        Role(name="large", run="true", memory_bytes=1500, count=2),
        Role(name="trains", run="true", gpus=1),
        Role(name="named", run="true", nodes=("b",)),
    )
    plan = place_roles(Job(name="job", roles=roles), nodes)
    assert plan.worker_nodes[2:] == ("a", "b", "b", "g", "b")
    assert set(plan.worker_nodes[:2]) <= {"a", "g"}
    with pytest.raises(
        UsageError,
        match=r"no node has 1\.46 KiB of memory left for large-2, beside its other tasks",
    ):
        place_roles(
            Job(name="job", roles=(Role(name="large", run="true", memory_bytes=1500, count=3),)),
            nodes,
        )
    with pytest.raises(UsageError, match="names node 'c'; expected a, b, g"):
        place_roles(Job(name="job", roles=(Role(name="x", run="true", nodes=("c",)),)), nodes)
