"""Jobs made of roles: they start in their order, find each other, and end together."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.user import User

from headgate.recorded.reader import RunReader
from headgate.testing.wait import until

SERVER = """
    import os, signal, socket, sys

    def asked(*_):
        print("asked to end", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, asked)
    print("starting", flush=True)
    listening = socket.create_server((sys.argv[1], int(sys.argv[2])))
    while True:
        connection, _ = listening.accept()
        connection.sendall(b"hello " + connection.recv(100))
        connection.close()
"""
CLIENT = """
    import os, socket, sys

    assert os.environ["HEADGATE_SERVER_ADDRESSES"] == f"{sys.argv[1]}:{sys.argv[2]}"
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    connection.sendall(sys.argv[3].encode())
    print(connection.recv(100).decode(), flush=True)
"""
SERVING = """
    jobs:
      - name: serving
        roles:
          - name: server
            script: server.py
            args: ["{host}", "{port}"]
            cores: 1
            memory: 500MB
            ready: {port: true}
          - name: client
            script: client.py
            args: ["{server.host}", "{server.port}", "client {index}"]
            count: 2
            after: [server]
"""
WAITS = "import signal, sys; print('here', flush=True); signal.pause()"


def rows(user: User, table: str) -> list[dict[str, object]]:
    with RunReader(max((user.home / "runs").iterdir()) / "run.sqlite") as reader:
        return list(reader.rows(table))


def roles(user: User, *entries: str, more: str = "") -> None:
    """Write a job file with these roles, each in YAML's short form."""
    listed = "".join(f"      - {{{entry}}}\n" for entry in entries)
    (user.folder / "jobs.yaml").write_text(f"jobs:\n  - name: job\n{more}    roles:\n{listed}")
    user.write("waits.py", WAITS)


def test_clients_start_once_their_server_is_ready_and_end_the_job_and_it(user: User) -> None:
    for name, text in (("server.py", SERVER), ("client.py", CLIENT), ("jobs.yaml", SERVING)):
        user.write(name, text)
    user.types("run", "jobs.yaml")
    assert user.sees_state("serving", "done")["reason"] == "finished"
    assert user.types("logs", "serving").stdout == "hello client 0\n"
    assert user.types("logs", "serving/client-1").stdout == "hello client 1\n"
    assert user.types("logs", "serving/server-0").stdout == "starting\nasked to end\n"
    assert {row["id"]: row["ended"] is not None for row in rows(user, "tasks")} == {
        "serving/server-0": True,
        "serving/client-0": True,
        "serving/client-1": True,
    }
    assert [row["text"] for row in rows(user, "events") if row["kind"] == "note"] == [
        "server-0 is ready"
    ]
    planned = {entry["task"]: entry for entry in user.json("run", "jobs.yaml", "--dry-run")}
    assert planned["serving/client-1"]["after_roles"] == ["server"]
    assert planned["serving/client-1"]["argv"][-1] == "client 1"


def test_a_role_that_is_not_ready_in_time_fails_the_job_with_its_last_lines(user: User) -> None:
    roles(
        user,
        "name: server, run: 'echo here; exec sleep 1000', ready: {port: true, timeout: 3s}",
        "name: client, run: 'true', after: [server]",
    )
    user.types("run", "jobs.yaml", code=1)
    reason = user.sees_state("job", "failed")["reason"]
    assert reason.startswith("server-0: not ready within 3 s: nothing listens at its port")
    assert reason.endswith("; it printed last: here")
    assert [row["id"] for row in rows(user, "tasks")] == ["job/server-0"]


@pytest.mark.slow
def test_a_role_that_fails_takes_the_others_along_and_what_a_driver_leaves_is_ended(
    user: User,
) -> None:
    user.write("deaf.py", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS)
    roles(
        user,
        "name: executor, script: deaf.py, count: 2, ready: {line: ^here$}",
        "name: driver, run: 'sleep 1000 & echo $! > left; exit 3', after: [executor]",
        more="    grace: 1s\n",
    )
    user.types("run", "jobs.yaml", code=1)
    assert user.sees_state("job", "failed")["reason"] == "driver-0: exit code 3"
    left = [user.sees("left").strip(), *(str(row["pid"]) for row in rows(user, "tasks"))]
    assert len(left) == 4
    # Whoever takes in what a dead parent leaves waits for it a moment later.
    until(
        lambda: not any(Path("/proc", pid).exists() for pid in left),
        what="the end of all processes",
    )


@pytest.mark.slow
def test_a_task_that_finds_its_port_taken_is_started_again_at_another(user: User) -> None:
    user.write(
        "server.py",
        """
        import pathlib, signal, socket, sys

        port, first = int(sys.argv[1]), pathlib.Path("first")
        if not first.exists():
            first.write_text(str(port))
            other = socket.create_server(("127.0.0.1", port))
        listening = socket.create_server(("127.0.0.1", port))
        signal.pause()
        """,
    )
    roles(
        user,
        "name: server, script: server.py, args: ['{port}'], ready: {port: true}",
        "name: client, run: [echo, '{server.port}'], after: [server]",
    )
    user.types("run", "jobs.yaml")
    assert user.log("job").strip() != user.sees("first")
    assert "server-0 found that another program listens at its port" in str(rows(user, "events"))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["ctrl-c", "hub"])
def test_nothing_is_left_of_any_role_after(end: str, user: User) -> None:
    user.write("helper.sh", "sleep 1000 & sleep 1000\n")
    roles(
        user,
        "name: helper, run: [sh, helper.sh], count: 2",
        "name: driver, script: waits.py, after: [helper]",
    )
    terminal = user.opens("run", "jobs.yaml")
    user.sees_job(
        "job", lambda job: {task["task"] for task in job["tasks"]} >= {"driver-0", "helper-1"}
    )
    if end == "ctrl-c":
        terminal.press(b"\x03")
        terminal.ends()
        assert user.sees_state("job", "stopped")
        assert not [
            row["pid"] for row in rows(user, "tasks") if Path("/proc", str(row["pid"])).exists()
        ]
    else:
        for hub in user.traces.hubs():
            user.kills(hub)
        terminal.ends()
        user.finds_nothing_left()
