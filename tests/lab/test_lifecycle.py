"""Bringing labs up, changing them, taking them down: once, again, and after a kill -9 in
between.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.laboratory import Laboratory

from headgate import lab
from headgate.lab import record, tools
from headgate.model.cluster import Node
from headgate.model.errors import HeadgateError, NotFoundError, UsageError
from headgate.sampling import machine
from headgate.testing import wait

ROOT = Path(__file__).parents[2]


def namespaces(nodes: tuple[Node, ...]) -> dict[str, int]:
    """What tells the namespace of a node from one that takes its name later."""
    return {
        node.name: os.stat(node.place.namespace).st_ino for node in nodes if node.place is not None
    }


def sleeper(laboratory: Laboratory, node: str) -> subprocess.Popen[str]:
    """A process in a node, once it is there."""
    process = laboratory.starts(
        node, sys.executable, "-c", "import time; print('here', flush=True); time.sleep(1000)"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def reap(process: subprocess.Popen[str]) -> int:
    """How a process ended, which it has to soon."""
    process.communicate(timeout=120)
    return process.returncode


# --- up, down, and what is left


def test_nodes_are_as_the_file_says_and_nothing_is_left_of_them(laboratory: Laboratory) -> None:
    a, b, c = laboratory.up(
        "name: a, nic: 50Mbit, disk: 20MB/s", "kind: small, count: 2, cores: 0.2, memory: 64MiB"
    )
    assert (a.name, a.cores, a.memory_bytes, a.address) == ("a", 0.3, 512 << 20, "10.77.0.1")
    assert (a.nic_bytes_per_second, a.disk_bytes_per_second, a.kind) == (50e6 / 8, 20e6, "")
    assert [(node.name, node.address, node.kind) for node in (b, c)] == [
        ("small-1", "10.77.0.2", "small"),
        ("small-2", "10.77.0.3", "small"),
    ]
    assert a.place is not None
    assert a.place.hostname == "a"
    hosts = [
        line for line in Path(a.place.hosts).read_text().splitlines() if not line.startswith(":")
    ]
    assert hosts[1:] == ["10.77.0.1 a", "10.77.0.2 small-1", "10.77.0.3 small-2"]
    assert {"cpu", "memory", "unified"} <= a.place.cgroups.keys()
    assert all(Path(folder).is_dir() for folder in a.place.cgroups.values())
    assert lab.down() == "bench"
    assert laboratory.left() == []
    with pytest.raises(NotFoundError, match="no lab is up; make one with: headgate lab up"):
        lab.nodes()


def test_up_again_does_nothing(laboratory: Laboratory) -> None:
    before = laboratory.up("name: a, nic: 50Mbit", "name: b", options="overlay: vxlan")
    path = laboratory.write("name: a, nic: 50Mbit", "name: b", options="overlay: vxlan")
    assert lab.up(path).changes == ()
    assert lab.nodes().nodes == before
    assert namespaces(lab.nodes().nodes) == namespaces(before)


def test_up_of_a_changed_file_changes_what_differs(laboratory: Laboratory) -> None:
    before = namespaces(laboratory.up("name: a, nic: 50Mbit", "name: b", "name: c"))
    stays, goes = sleeper(laboratory, "a"), sleeper(laboratory, "b")
    done = lab.up(laboratory.write("name: a, nic: 80Mbit, cores: 0.4", "name: c", "name: d"))
    assert set(done.changes) == {
        "a: cores 0.3 -> 0.4, nic 50 Mbit/s -> 80 Mbit/s",
        "b: removed",
        "c: made",  # at the address that was b's
        "d: made",
    }
    assert reap(goes) == -signal.SIGTERM
    assert stays.poll() is None
    after = lab.nodes().nodes
    assert [(node.name, node.address) for node in after] == [
        ("a", "10.77.0.1"),
        ("c", "10.77.0.2"),
        ("d", "10.77.0.3"),
    ]
    assert namespaces(after)["a"] == before["a"]
    lab.down()
    assert reap(stays) == -signal.SIGTERM


def test_up_with_another_overlay_makes_all_anew(laboratory: Laboratory) -> None:
    laboratory.up("name: a", "name: b")
    done = lab.up(laboratory.write("name: a", "name: b", options="overlay: vxlan"))
    assert done.changes == ("what was there before was removed", "a: made", "b: made")
    assert (
        laboratory.python("a", "import os; print(sorted(os.listdir('/sys/class/net')))")
        == "['eth0', 'lo', 'under0']"
    )


def test_up_puts_back_what_was_set_since(laboratory: Laboratory) -> None:
    [a] = laboratory.up("name: a, nic: 50Mbit")
    lab.change("a", {"nic_bytes_per_second": None}, plugged=False)
    assert lab.nodes().nodes[0].nic_bytes_per_second is None
    done = lab.up(laboratory.write("name: a, nic: 50Mbit"))
    assert done.changes == ("a: nic unlimited -> 50 Mbit/s, NIC connected again",)
    assert lab.nodes().nodes == (a,)


def test_down_ends_what_is_in_the_nodes_however_it_came_there(laboratory: Laboratory) -> None:
    [a] = laboratory.up("name: a")
    assert a.place is not None
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', "
        "flush=True); time.sleep(1000)"
    )
    inside = laboratory.starts("a", sys.executable, "-c", stubborn)
    name = Path(a.place.namespace).name
    beside = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "1000"])
    assert inside.stdout is not None
    assert inside.stdout.readline() == "here\n"
    wait.until(lambda: lab.status()[0].processes == 2, what="both are seen")
    lab.down()
    assert reap(inside) == -signal.SIGKILL
    assert beside.wait(60) < 0
    assert laboratory.left() == []


# --- what is refused


def test_more_cores_than_there_are_less_a_little_are_refused(laboratory: Laboratory) -> None:
    have = machine.describe().cores
    fits, over = f"name: a, cores: {have - 0.2:.2f}", f"name: a, cores: {have - 0.1:.2f}"
    with pytest.raises(
        UsageError,
        match=(
            rf"have {have - 0.1:g} cores; this machine has {have:g}, and Headgate keeps 0.2 "
            r"for itself"
        ),
    ):
        laboratory.up(over)
    assert laboratory.left() == []
    laboratory.up(fits)
    with pytest.raises(UsageError, match="this machine has"):
        lab.change("a", {"cores": have})
    with pytest.raises(UsageError, match=r"and bench .* already; this machine has"):
        laboratory.up("name: a", name="second")
    laboratory.up(over, options="oversubscribe: true")
    assert lab.change("a", {"cores": have + 1}).cores == have + 1


def test_what_is_no_lab_is_refused(laboratory: Laboratory) -> None:
    path = laboratory.folder / "paper.yaml"
    path.write_text("nodes: [{name: a, cores: 1, memory: 1GiB}]\n")
    with pytest.raises(UsageError, match="describes a cluster, not a lab; add `lab: true`"):
        lab.up(str(path))


def test_without_root_there_is_one_clear_message(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HeadgateError, match="a lab needs root, for network namespaces and cgroups"):
        lab.up(laboratory.write("name: a"))
    monkeypatch.undo()


def test_without_the_tools_it_says_what_to_install(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_SBIN", "")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        HeadgateError,
        match="needs `ip`, which is not installed; install it with: apt install iproute2",
    ):
        lab.up(laboratory.write("name: a"))
    monkeypatch.undo()


def test_which_lab_or_node_is_meant_has_to_be_clear(laboratory: Laboratory) -> None:
    laboratory.up("name: a")
    laboratory.up("name: a", name="second")
    with pytest.raises(UsageError, match="expected the name of a lab; these are up: bench, second"):
        lab.nodes()
    with pytest.raises(UsageError, match="'a' could be any of bench/a, second/a"):
        lab.change("a", {})
    with pytest.raises(NotFoundError, match="no node 'z' in any lab; there are a, a"):
        lab.change("z", {})
    with pytest.raises(NotFoundError, match="no lab 'third' is up; these are up: bench, second"):
        lab.down("third")
    assert lab.change("second/a", {"cores": 0.1}).cores == 0.1
    assert [node.cores for node in lab.nodes("bench").nodes] == [0.3]


def test_labs_of_one_name_of_two_homes_do_not_meet(
    laboratory: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [mine] = laboratory.up("name: a")
    with monkeypatch.context() as other:
        other.setenv("HEADGATE_HOME", str(tmp_path / "other"))
        [theirs] = laboratory.up("name: a")
        assert mine.place is not None
        assert theirs.place is not None
        assert mine.place.namespace != theirs.place.namespace
        lab.down()
    assert laboratory.python("a", "print(1)") == "1"


# --- what is mended


@pytest.fixture
def killer(tmp_path: Path) -> Path:
    """A folder of tools, of which the one whose turn it is, counted by `KILL_AT`, kills who called
    it with -9, after or before its work.
    """
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("ip", "tc", "bridge"):
        shim = folder / name
        shim.write_text(f"""#!/bin/sh
echo x >> {folder}/calls
turn=$(wc -l < {folder}/calls)
if [ "$turn" -eq "$KILL_AT" ] && [ "$KILL_WHEN" = before ]; then kill -9 $PPID; exit 1; fi
{shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")} "$@"
code=$?
if [ "$turn" -eq "$KILL_AT" ]; then kill -9 $PPID; fi
exit $code
""")
        shim.chmod(0o755)
    return folder


def killed(laboratory: Laboratory, killer: Path, turn: int, when: str, *words: str) -> bool:
    """Whether a command was killed on the way, or had ended before its turn."""
    (killer / "calls").unlink(missing_ok=True)
    path = f"{killer}{os.pathsep}{os.environ['PATH']}"
    done = laboratory.types(*words, env={"PATH": path, "KILL_AT": str(turn), "KILL_WHEN": when})
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@pytest.mark.parametrize(
    "overlay", [pytest.param("", marks=pytest.mark.long), "overlay: vxlan"], ids=["", "vxlan"]
)
def test_a_killed_up_is_mended_by_the_next(
    overlay: str, laboratory: Laboratory, killer: Path
) -> None:
    path = laboratory.write("name: a, nic: 50Mbit", "name: b, nic: 50Mbit", options=overlay)
    turn, step = 1, 3
    while killed(laboratory, killer, turn, "before" if turn % 2 else "after", "up", path):
        if turn == 1:
            with pytest.raises(
                HeadgateError, match=r"making lab .* was interrupted; bring it up again"
            ):
                lab.nodes()
        turn += step
    assert turn > 2 * step  # it was killed several times, and made in the end
    a, b = lab.nodes().nodes
    assert laboratory.python("a", "import socket; print(socket.gethostbyname('b'))") == b.address
    program = f"import socket; socket.create_server(('{a.address}', 7)); print(1)"
    assert laboratory.python("a", program) == "1"
    assert lab.up(path).changes == ()
    lab.down()
    assert laboratory.left() == []


def test_a_killed_up_leaves_the_nodes_alone_that_it_was_not_about(
    laboratory: Laboratory, killer: Path
) -> None:
    laboratory.up("name: a")
    stays = sleeper(laboratory, "a")
    path = laboratory.write("name: a", "name: b")
    assert killed(laboratory, killer, 2, "after", "up", path)
    assert lab.up(path).changes == ("b: made",)
    assert stays.poll() is None
    lab.down()
    reap(stays)


@pytest.mark.parametrize("turn", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_a_killed_down_is_mended_by_the_next_up_or_down(
    turn: int, laboratory: Laboratory, killer: Path
) -> None:
    laboratory.up("name: a", "name: b")
    path = laboratory.write("name: a", "name: b")
    assert killed(laboratory, killer, turn, "after", "down")
    assert lab.up(path).changes[-2:] == ("a: made", "b: made")
    assert killed(laboratory, killer, turn, "before", "down")
    assert lab.down() == "bench"
    assert laboratory.left() == []


def test_a_set_that_was_killed_is_put_right_by_the_next_up(
    laboratory: Laboratory, killer: Path
) -> None:
    laboratory.up("name: a, nic: 50Mbit")
    assert killed(laboratory, killer, 1, "before", "set", "a", "nic=80Mbit")
    assert lab.up(laboratory.write("name: a, nic: 50Mbit")).changes == (
        "a: nic 80 Mbit/s -> 50 Mbit/s",
    )


def test_a_node_whose_namespace_somebody_removed_is_made_again(laboratory: Laboratory) -> None:
    a, b = laboratory.up("name: a", "name: b")
    assert a.place is not None
    subprocess.run(["ip", "netns", "del", Path(a.place.namespace).name], check=True)
    assert [node.state for node in lab.status()] == ["gone", "ready"]
    assert lab.up(laboratory.write("name: a", "name: b")).changes == ("a: made",)
    assert lab.nodes().nodes == (a, b)


def test_a_record_that_cannot_be_read_does_not_keep_a_lab_up(laboratory: Laboratory) -> None:
    laboratory.up("name: a")
    (record.folder("bench") / "state.json").write_text("{")
    with pytest.raises(HeadgateError, match="take the lab down: headgate lab down bench"):
        lab.nodes()
    lab.down("bench")
    assert laboratory.left() == []


def test_a_lab_whose_folder_was_deleted_is_told_and_can_be_taken_down(
    laboratory: Laboratory,
) -> None:
    laboratory.up("name: a", "name: b")
    inside = sleeper(laboratory, "a")
    shutil.rmtree(record.folder("bench"))
    assert lab.names() == []
    said = "no lab is up, but nodes of bench are left; remove them with: headgate lab down bench"
    assert lab.none_up() == said
    with pytest.raises(HeadgateError, match=said):
        lab.status()
    assert lab.down() == "bench"
    assert laboratory.left() == []
    assert reap(inside) < 0
    assert lab.none_up() == "no lab is up; make one with: headgate lab up lab.yaml"


def test_a_lab_of_another_boot_is_none(laboratory: Laboratory) -> None:
    laboratory.up("name: a")
    state = record.folder("bench") / "state.json"
    kept = state.read_text()
    state.write_text(json.dumps({**json.loads(kept), "boot": "another"}))
    with pytest.raises(HeadgateError, match="does not outlive a restart of this machine"):
        lab.nodes()
    state.write_text(kept)


def test_commands_at_once_wait_for_each_other(laboratory: Laboratory) -> None:
    path = laboratory.write("name: a", "name: b")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "headgate", "lab", "up", path]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = sorted(process.communicate(timeout=120)[0].splitlines()[0] for process in both)
    assert outputs == ["a: made", "nothing had to be changed"]
    assert [process.returncode for process in both] == [0, 0]
