"""`headgate lab` as it is typed."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.lab.laboratory import Laboratory

from headgate.cli import headgate
from headgate.config import clusterfile
from headgate.model.errors import HeadgateError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("verb", ["up", "status", "exec", "set", "down"])
def test_help_says_what_it_does_and_shows_an_example(verb: str) -> None:
    done = CliRunner().invoke(headgate, ["lab", verb, "--help"], catch_exceptions=False)
    assert done.exit_code == 0
    assert re.search(rf"Example: headgate lab {verb}\b", done.stdout)
    assert "--json" in done.stdout


def typed(*words: str) -> str:
    """What `headgate lab ...` prints."""
    done = CliRunner().invoke(headgate, ["lab", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_lab_from_up_to_down(laboratory: Laboratory) -> None:
    path = laboratory.write("name: a, nic: 50Mbit, kind: small", "name: b")
    assert typed("up", path).splitlines() == [
        "a: made",
        "b: made",
        "lab bench is up: 2 nodes, 0.6 cores",
    ]
    again = json.loads(typed("up", path, "--json"))
    assert (again["lab"], again["changes"], [node["name"] for node in again["nodes"]]) == (
        "bench",
        [],
        ["a", "b"],
    )
    said = typed("set", "a", "nic=80Mbit", "cores=0.2", "memory=100MiB")
    assert said == "a: 0.2 cores, 100 MiB, 80 Mbit/s\n"
    assert json.loads(typed("set", "a", "nic=unlimited", "--json"))["nic_bytes_per_second"] is None
    assert typed("set", "a", "nic=down").endswith("unlimited, NIC disconnected\n")
    heading, columns, a, b = typed("status").splitlines()
    assert heading == "lab bench"
    assert (
        " ".join(columns.split())
        == "node kind address cores memory NIC in out disk processes state"
    )
    assert re.match(
        r"a +small +10\.77\.0\.1 +0\.00 of 0\.2 .* of 100 MiB +unlimited .* unplugged *$", a
    )
    assert re.match(r"b +10\.77\.0\.2 .* ready *$", b)
    [one, _] = json.loads(typed("status", "bench", "--json"))
    assert (one["node"]["name"], one["state"], one["processes"]) == ("a", "unplugged", 0)
    assert json.loads(typed("down", "--json")) == {"lab": "bench"}
    assert typed("status") == "no lab is up; make one with: headgate lab up lab.yaml\n"
    assert json.loads(typed("status", "--json")) == []


def test_exec_hands_on_input_output_and_exit_code(laboratory: Laboratory) -> None:
    laboratory.up("name: a")
    process = laboratory.starts(
        "a", "sh", "-c", "read word; echo got $word; hostname; echo bad >&2; exit 7"
    )
    assert process.communicate("it\n", timeout=120) == ("got it\na\n", "bad\n")
    assert process.returncode == 7
    assert socket.gethostname() != "a"
    told = laboratory.types(
        "exec", "--json", "bench/a", "--", "sh", "-c", "cat /proc/self/cgroup; exit 3"
    )
    assert told.returncode == 3
    answer = json.loads(told.stdout)
    assert answer["exit_code"] == 3
    assert re.search(r"headgate-lab-bench\.\w+/a/shell$", answer["stdout"], re.MULTILINE)
    told = laboratory.types(
        "exec", "a", sys.executable, "-c", "import sys; print(sys.argv)", "--json"
    )
    assert told.stdout == "['-c', '--json']\n"  # what follows the command is the command's
    ignored = laboratory.types(
        "exec", "a", "sh", "-c", "grep SigIgn /proc/$$/status"
    ).stdout.split()[1]
    assert int(ignored, 16) & 1 << signal.SIGPIPE - 1 == 0  # a broken pipe ends it
    missing = laboratory.types("exec", "a", "--", "no-such-program")
    assert (missing.returncode, missing.stderr) == (
        127,
        "headgate: no-such-program cannot be run: No such file or directory\n",
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("down",), 5, "no lab is up"),
        (("status", "nobody"), 5, "no lab 'nobody' is up"),
        (
            ("exec", "a", "true"),
            5,
            "no node 'a' in any lab; make one with: headgate lab up lab.yaml",
        ),
        (("exec", "a", "--"), 2, "expected a command after the node"),
        (
            ("set", "a", "speed=3"),
            2,
            "found 'speed=3'; expected one of nic, cores, memory, disk, such as nic=100Mbit",
        ),
        (("set", "a", "nic=3"), 2, "nic: found '3'; expected a rate such as 200Mbit"),
        (("set", "a", "cores=many"), 2, "cores: found 'many'; expected a number such as 0.5"),
        (
            ("set", "a", "memory=much"),
            2,
            "memory: found 'much'; expected a size such as 512MB or 2GiB",
        ),
        (("up", "missing.yaml"), 2, "cannot read missing.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_one_message(
    words: tuple[str, ...], code: int, said: str, laboratory: Laboratory
) -> None:
    with pytest.raises(HeadgateError, match=re.escape(said)) as raised:
        headgate.main(["lab", *words], standalone_mode=False)
    assert raised.value.exit_code == code


@pytest.mark.parametrize("name", ["lab.yaml", "lab-mixed.yaml"])
def test_the_examples_are_labs_for_two_cores(name: str) -> None:
    file = clusterfile.read(str(EXAMPLES / name))
    assert file.lab
    assert sum(node.cores for node in file.cluster.nodes) == pytest.approx(1.8)


def test_the_mixed_example_has_six_nodes_of_three_kinds(laboratory: Laboratory) -> None:
    told = json.loads(typed("up", str(EXAMPLES / "lab-mixed.yaml"), "--json"))
    assert len(told["nodes"]) == 6
    assert len({node["kind"] for node in told["nodes"]}) == 3


def test_the_schema_of_a_cluster_file_is_printed() -> None:
    done = CliRunner().invoke(headgate, ["schema", "cluster"], catch_exceptions=False)
    assert json.loads(done.stdout) == clusterfile.schema()
