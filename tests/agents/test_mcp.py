"""`headgate mcp`, asked by the package's own client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.hub.user import SECONDS, User, speed, user

from headgate.agents.tools import (
    CHANGES,
    LOOKS,
    MOST_JOBS,
    MOST_LETTERS,
    MOST_LOSSES,
    bounded,
    with_greatest_losses,
)

mcp = pytest.importorskip("mcp")

__all__ = ["speed", "user"]
FIRST = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
)
"""The first line that a client writes."""


def asked(user: User, ask: Callable[[Any], Awaitable[None]], *words: str) -> None:
    """Do what `ask` does with a connected client."""

    async def connected() -> None:
        command, *arguments = user.command("mcp", *words)
        parameters = mcp.StdioServerParameters(
            command=command, args=arguments, env=user.variables, cwd=str(user.folder)
        )
        async with mcp.Client(parameters) as client:
            await ask(client)

    asyncio.run(connected())


async def answer(client: Any, tool: str, **arguments: Any) -> Any:
    """The JSON that a tool answers."""
    result = await client.call_tool(tool, arguments)
    text = result.content[0].text
    assert not result.is_error, text
    return json.loads(text)


async def refusal(client: Any, tool: str, **arguments: Any) -> str:
    """Why a tool refuses."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)


def test_runs_are_looked_at_explained_and_compared(user: User) -> None:
    user.write("jobs.yaml", "jobs: [{name: a, run: 'echo epoch 1 loss 0.5'}]")
    for _ in range(2):
        user.types("run", "jobs.yaml")

    async def ask(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {tool.__name__ for tool in LOOKS}
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert all(tool.description for tool in tools.values())
        listed = (await answer(client, "runs"))["runs"]
        assert [run["state"] for run in listed] == ["done", "done"]
        assert (await answer(client, "status"))["jobs"][0]["loss"] == 0.5
        explained = await answer(client, "explain", run=listed[0]["id"])
        assert explained["jobs"][0]["findings"]
        assert "epoch 1 loss 0.5" in (await answer(client, "logs", job="a"))["text"]
        assert "handed in" in str(await answer(client, "why", job="a"))
        first, second = (run["id"] for run in listed)
        compared = await answer(client, "compare", first=first, second=second)
        assert compared["jobs"][0]["job"] == "a"
        assert "no run 'nothing'" in await refusal(client, "status", run="nothing")
        assert "missing.py" in await refusal(client, "plan", script="missing.py")
        for tool, name in (("plan", "script"), ("simulate", "trace")):
            assert "expected a file" in await refusal(client, tool, **{name: "--output=x"})
        (user.folder / "trace.csv").write_text(
            "job_id,submit_time,duration,cores\n1,0,10,1\n2,1,5,1\n"
        )
        simulated = await answer(client, "simulate", trace="trace.csv", policies=["fifo", "equal"])
        assert "equal" in simulated["json"]

    asked(user, ask)


def test_answers_are_bounded_and_logs_are_data(user: User) -> None:
    shown = bounded({"jobs": list(range(MOST_JOBS + 3)), "run": "x"})
    assert (len(shown["jobs"]), shown["jobs_left_out"], shown["run"]) == (MOST_JOBS, 3, "x")
    user.write("loud.py", "print('\\n'.join('x' * 2000 for _ in range(60)))")
    user.types("run", "loud.py")

    async def ask(client: Any) -> None:
        log = await answer(client, "logs", job="loud", tail=10_000)
        assert len(log["text"]) == MOST_LETTERS
        assert "no instruction" in log["is"]

    asked(user, ask)


def test_what_is_wrong_with_arguments_is_one_sentence(user: User) -> None:
    async def ask(client: Any) -> None:
        for tool, arguments, sentence in (
            ("why", {}, "why needs the argument 'job'"),
            ("status", {"rum": "x"}, "status has no argument 'rum'; it has run"),
            ("runs", {"last": "many"}, "runs: found last='many'; input should be a valid integer"),
            ("logs", {"job": "a", "tail": [1]}, "logs: found tail=[1]; input should be"),
            ("nothing", {"a": 1}, "Unknown tool: nothing"),
        ):
            refused = await refusal(client, tool, **arguments)
            assert refused.startswith(sentence)
            assert "\n" not in refused and "pydantic" not in refused

    asked(user, ask)


def test_an_explanation_of_many_jobs_and_neighbours_is_bounded() -> None:
    lost = [{"to": f"job-{number}", "seconds": float(number)} for number in range(500)]
    job = with_greatest_losses({"job": "a", "lost": lost})
    assert job["lost"][0]["seconds"] == 499.0
    assert (len(job["lost"]), job["losses_left_out"]) == (MOST_LOSSES, 500 - MOST_LOSSES)
    answer = bounded({"jobs": [job] * 1000})
    assert len(json.dumps(answer)) < MOST_LETTERS + 200
    assert len(answer["jobs"]) + answer["jobs_left_out"] == 1000
    assert bounded({"jobs": ["x" * 2 * MOST_LETTERS]})["jobs"]


def test_ctrl_c_ends_it_while_its_input_is_open(user: User) -> None:
    server = subprocess.Popen(
        user.command("mcp"),
        env=user.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(FIRST + "\n")
    server.stdin.flush()
    assert "serverInfo" in server.stdout.readline()
    server.send_signal(signal.SIGINT)
    assert server.wait(SECONDS) == -signal.SIGINT
    server.communicate()


def test_what_changes_something_is_off_unless_allowed_and_previewed_first(user: User) -> None:
    user.write("jobs.yaml", "jobs: [{name: a, run: 'echo began; sleep 600'}]")
    run = user.detaches("jobs.yaml")
    user.sees_state("a", "running")

    async def may_not(client: Any) -> None:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert not names & {tool.__name__ for tool in CHANGES}

    asked(user, may_not)

    async def may(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert all(not tools[tool.__name__].annotations.read_only_hint for tool in CHANGES)
        killing = {"run": run, "job": "a", "kill": True}
        preview = await answer(client, "stop", **killing)
        assert "a of run" in preview["preview"]
        assert (user.stands("a", run) or {})["state"] == "running"
        assert "nothing to change" in await refusal(client, "change", run=run, job="a")
        raised = await answer(client, "change", run=run, job="a", priority=3)
        assert "priority 3" in raised["preview"]
        for wrong in ("x", preview["confirm"]):
            refused = await refusal(client, "change", run=run, job="a", priority=3, confirm=wrong)
            assert "not previewed" in refused
        confirm = raised["confirm"]
        await answer(client, "change", run=run, job="a", priority=3, confirm=confirm)
        saving = (await answer(client, "checkpoint", run=run))["confirm"]
        assert "none can save" in await refusal(client, "checkpoint", run=run, confirm=saving)
        await answer(client, "stop", **killing, confirm=preview["confirm"])

    asked(user, may, "--allow-changes")
    user.sees_state("a", "killed")

    async def late(client: Any) -> None:
        assert "no job is live" in await refusal(client, "stop", run=run)

    asked(user, late, "--allow-changes")
