"""A cluster file is checked as a whole: every problem at once, each with its line, the value and
the cure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.config import clusterfile
from headgate.config.clusterfile import ClusterFile
from headgate.model.cluster import Cluster, Gpu, GpuLink, Node
from headgate.model.errors import InvalidFileError, UsageError

Reader = Callable[[str], ClusterFile]
Problems = Callable[[str], list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    def read(text: str) -> ClusterFile:
        path = tmp_path / "bench.yaml"
        path.write_text(textwrap.dedent(text))
        return clusterfile.read(str(path))

    return read


@pytest.fixture
def problems(read: Reader) -> Problems:
    def problems(text: str) -> list[str]:
        with pytest.raises(InvalidFileError) as raised:
            read(text)
        return [str(problem) for problem in raised.value.problems]

    return problems


def node(line: str, options: str = "lab: true") -> str:
    """A file of one node, good but for what this line, which is line 4, adds."""
    return f"{options}\nnodes:\n  - {{name: a, cores: 1, memory: 1GiB,\n     {line}}}\n"


# --- what is read


def test_a_cluster_may_exist_only_on_paper(read: Reader) -> None:
    found = read(
        """
        name: racks
        nodes:
          - name: head
            address: 192.168.1.10
            cores: 32
            memory: 128GiB
            nic: 25Gbit
            disk: 2GB/s
            gpus: [{name: H200, memory: 141GB}, {name: H200, memory: 141GB}]
          - {kind: small, count: 2, cores: 0.5, memory: 2GiB}
        """
    )
    head = Node(
        name="head",
        cores=32.0,
        memory_bytes=128 << 30,
        address="192.168.1.10",
        nic_bytes_per_second=25e9 / 8,
        disk_bytes_per_second=2e9,
        gpus=(Gpu(0, "H200", 141 * 10**9), Gpu(1, "H200", 141 * 10**9)),
    )
    small = [Node(name=f"small-{i}", cores=0.5, memory_bytes=2 << 30, kind="small") for i in (1, 2)]
    assert found == ClusterFile(name="racks", cluster=Cluster((head, *small)))


@pytest.mark.parametrize(
    ("said", "link"),
    [
        ("{rate: 300GB/s, how: nvlink}", GpuLink(300e9, "nvlink")),
        ("nvlink", GpuLink(None, "nvlink")),
        ("25GB/s", GpuLink(25e9, None)),
        ("{rate: 18GB/s, how: measured}", GpuLink(18e9, "measured")),
    ],
)
def test_how_gpus_are_joined_may_be_said_in_short(said: str, link: GpuLink, read: Reader) -> None:
    gpus = "[{name: A100, memory: 40GB}, {name: A100, memory: 40GB}]"
    [node] = read(
        f"nodes: [{{name: a, cores: 8, memory: 1GiB, gpus: {gpus}, gpu_link: {said}}}]"
    ).cluster.nodes
    assert node.gpu_link == link


def test_a_lab_is_a_cluster_file_that_says_so(read: Reader) -> None:
    found = read(
        "{lab: true, overlay: vxlan, oversubscribe: true, nodes: [{name: a, cores: 9, "
        "memory: 1GiB, gpus: [1]}]}"
    )
    assert (found.name, found.lab, found.overlay, found.oversubscribe) == (
        "bench",
        True,
        "vxlan",
        True,
    )
    assert found.cluster.nodes[0].gpus == (Gpu(1, "", 0),)


def test_nodes_of_a_lab_get_the_addresses_that_are_free(read: Reader) -> None:
    found = read(
        """
        lab: true
        nodes:
          - {name: a, cores: 1, memory: 1GiB}
          - {name: b, cores: 1, memory: 1GiB, address: 10.77.0.1}
          - {kind: c, count: 2, cores: 1, memory: 1GiB, address: 10.77.0.3}
          - {name: d, kind: c, count: 2, cores: 1, memory: 1GiB}
        """
    )
    assert [
        (each.name, each.address.rpartition(".")[2], each.kind) for each in found.cluster.nodes
    ] == [
        ("a", "2", ""),
        ("b", "1", ""),
        ("c-1", "3", "c"),
        ("c-2", "4", "c"),
        ("d-1", "5", "c"),
        ("d-2", "6", "c"),
    ]


def test_names_that_yaml_would_take_for_numbers_are_text(read: Reader) -> None:
    assert (
        read("{name: 01, nodes: [{name: 1, kind: 2e3, cores: 1, memory: 1GiB}]}")
        .cluster.nodes[0]
        .name
        == "1"
    )


def test_the_free_addresses_of_a_lab_are_beside_those_that_are_stated(read: Reader) -> None:
    stated = "{name: a, cores: 1, memory: 1GiB, address: 10.91.3.2}"
    nodes = read(
        f"{{lab: true, nodes: [{stated}, {{kind: b, count: 2, cores: 1, memory: 1GiB}}]}}"
    ).cluster.nodes
    assert [node.address for node in nodes] == ["10.91.3.2", "10.91.3.1", "10.91.3.3"]


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["10.77.0.1", "10.77.0.254"], "10.77.0.0/24"),
        (["10.77.0.1", "10.77.1.1"], "10.77.0.0/23"),
        (["10.77.0.1", "10.77.128.1"], "10.77.0.0/16"),
        (["10.77.0.1", "10.78.0.1"], "None"),
    ],
)
def test_the_network_of_some_addresses_is_the_smallest_that_has_them(
    addresses: list[str], network: str
) -> None:
    assert str(clusterfile.network_of(addresses)) == network


def test_the_schema_has_every_key_of_a_node() -> None:
    schema = clusterfile.schema()
    assert schema["title"] == "Headgate cluster file"
    assert set(schema["$defs"]["NodeEntry"]["properties"]) == {
        *("name", "kind", "count", "address", "cores", "memory", "nic", "disk", "gpus", "gpu_link")
    }


# --- what is refused


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "nic: 200",
            "nodes[0].nic: found 200; expected a rate such as 200Mbit, 1Gbit/s or 100MB/s",
        ),
        (
            "nic: 1kbit",
            "nodes[0].nic: found '1kbit'; expected at least 100 kbit/s, which is 12.5 kB/s",
        ),
        (
            "disk: 0MB/s",
            "nodes[0].disk: found '0MB/s'; expected at least 100 kbit/s, which is 12.5 kB/s",
        ),
        (
            "disk: fast",
            "nodes[0].disk: found 'fast'; expected a rate such as 200Mbit, 1Gbit/s or 100MB/s",
        ),
        (
            "address: 10.77",
            "nodes[0].address: found '10.77'; expected an IPv4 address such as 10.77.0.1",
        ),
        (
            "address: 224.0.0.1",
            "found '224.0.0.1'; expected an address that a machine can have, such as 10.77.0.1",
        ),
        (
            "address: 169.254.0.1",
            "found '169.254.0.1'; expected an address that a machine can have",
        ),
        ("address: 127.0.0.1", "found 127.0.0.1; expected one such as 10.77.0.1"),
        (
            "address: 10.77.0.0",
            "stands for the whole network 10.77.0.0/24; choose one from 10.77.0.1 to 10.77.0.254",
        ),
        ("count: 0", "nodes[0].count: found 0; expected a value greater than or equal to 1"),
        ("count: true", "nodes[0].count: found True; expected a number"),
        (
            "kind: Big One",
            (
                "nodes[0].kind: found 'Big One'; expected lower-case letters, digits and '-', "
                "at most 32"
            ),
        ),
        (
            "gpus: [{name: H200}]",
            "nodes[0].gpus[0]: a lab's node has GPUs of this machine; give its number",
        ),
        (
            "gpus: [0], gpu_link: nvlink",
            "nodes[0].gpu_link: found 1 GPUs, and a link is between two or more; add the",
        ),
        ("gpus: [0, 1], gpu_link: 2", "nodes[0].gpu_link: found 2; expected keys with values"),
        (
            "gpus: [0, 1], gpu_link: infiniband",
            "nodes[0].gpu_link.how: found 'infiniband'; expected 'nvlink', 'pcie'",
        ),
        (
            "gpus: [0, 1], gpu_link: measured",
            "nodes[0].gpu_link: it says no rate; write {rate: 300GB/s, how: nvlink}",
        ),
        (
            "gpus: [0, 1], gpu_link: {rate: 0GB/s}",
            "nodes[0].gpu_link.rate: found '0GB/s'; expected at least",
        ),
        ("cpus: 3", "nodes[0]: unknown key 'cpus'; did you mean 'cores'?"),
    ],
)
def test_a_wrong_value_is_said_with_its_line_and_the_cure(
    line: str, problem: str, problems: Problems
) -> None:
    [found] = problems(node(line))
    assert problem in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nodes: []", "line 1: nodes: found []; expected at least one"),
        ("{}", "nodes: it is missing; add it"),
        (
            "nodes: [{cores: 1, memory: 1GiB}]",
            "line 1: nodes[0].name: it is missing; add it, or `kind` and `count`",
        ),
        ("nodes: [{name: a, memory: 1GiB}]", "nodes[0].cores: it is missing; add it"),
        ("nodes: [{name: a, cores: 1}]", "nodes[0].memory: it is missing; add it"),
        (
            node("gpus: [0]", "lab: false"),
            "it has no name or no memory; write {name: H200, memory: 141GB}",
        ),
        (
            node("count: 1", "overlay: vxlan"),
            "overlay: found 'vxlan' in a file that is no lab; add `lab: true`",
        ),
        (node("count: 1", "lab: true\noverlay: gre"), "overlay: found 'gre'; expected 'vxlan'"),
        (
            node("count: 255"),
            "nodes[0].count: found 255 nodes up to here; expected at most 254 in a lab",
        ),
        (
            node("count: 100001", "lab: false"),
            "found 100001; expected a value less than or equal to 100000",
        ),
        (
            node("count: 9, address: 223.255.255.250", "lab: false"),
            "9 nodes from 223.255.255.250 on do not all get",
        ),
        (
            node("count: 9, address: 255.255.255.250", "lab: false"),
            "expected an address that a machine can have",
        ),
    ],
)
def test_what_is_missing_or_does_not_fit_is_said(
    text: str, problem: str, problems: Problems
) -> None:
    assert any(problem in found for found in problems(text))


def test_all_problems_come_at_once(problems: Problems) -> None:
    found = problems(
        """\
        lab: true
        nodes:
          - {name: a, cores: none, memory: 1GiB, address: 10.77.0.9}
          - {name: b, cores: 1, memory: much}
          - {name: a, cores: 1, memory: 1GiB}
          - {name: d, cores: 1, memory: 1GiB, address: 10.77.0.9}
        """
    )
    assert [line.split("; ")[0] for line in found] == [
        "line 3: nodes[0].cores: found 'none'",
        "line 4: nodes[1].memory: found 'much'",
        "line 5: nodes[2].name: found 'a', as on line 3",
        "line 6: nodes[3].address: 10.77.0.9 is that of 'a' already",
    ]


def test_thousands_of_nodes_may_exist_on_paper_and_entries_of_a_kind_go_on_counting(
    read: Reader,
) -> None:
    entries = "\n".join(
        f"  - {{kind: a, count: 500, cores: {cores}, memory: 1GiB}}" for cores in (1, 2, 4, 8)
    )
    nodes = read(f"nodes:\n{entries}").cluster.nodes
    assert len({node.name for node in nodes}) == len(nodes) == 2000
    assert (nodes[500].name, nodes[500].cores, nodes[-1].name) == ("a-501", 2.0, "a-2000")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{kind: a, count: 0, cores: 1, memory: 1GiB}", "nodes[0].count: found 0"),
        ("{kind: B, count: 3, cores: 1, memory: 1GiB}", "nodes[0].kind: found 'B'"),
        ("{kind: a, count: many, cores: 1, memory: 1GiB}", "nodes[0].count: found 'many'"),
        ("{kind: a, count: 200000, cores: 1, memory: 1GiB}", "nodes[0].count: found 200000"),
    ],
)
def test_one_mistake_is_one_problem(entry: str, problem: str, problems: Problems) -> None:
    [found] = problems(f"nodes:\n  - {entry}\n")
    assert problem in found


def test_an_entry_of_many_nodes_that_others_are_called_like_is_one_problem(
    problems: Problems,
) -> None:
    entry = "  - {name: a, count: 250, address: 10.77.0.1, cores: 1, memory: 1GiB}\n"
    assert [line.split("; ")[0] for line in problems(f"nodes:\n{entry}{entry}{entry}")] == [
        "line 3: nodes[1].name: found 'a-1', as on line 2",
        "line 4: nodes[2].name: found 'a-1', as on line 2",
    ]


def test_addresses_too_far_apart_are_refused(problems: Problems) -> None:
    nodes = ", ".join(
        f"{{name: {name}, cores: 1, memory: 1, address: 10.{part}.0.1}}"
        for part, name in enumerate("ab")
    )
    assert problems(f"{{lab: true, nodes: [{nodes}]}}") == [
        (
            "line 1: nodes: the addresses are too far apart; choose them within one network such "
            "as 10.77.0.0/16"
        )
    ]


def test_a_file_whose_name_cannot_be_a_lab_s_needs_one(tmp_path: Path) -> None:
    path = tmp_path / "My Lab.yaml"
    path.write_text("nodes: [{name: a, cores: 1, memory: 1GiB}]")
    with pytest.raises(
        InvalidFileError, match="the file's own name 'my lab' cannot be one; add `name: lab`"
    ):
        clusterfile.read(str(path))
    with pytest.raises(UsageError, match=r"cannot read .*missing\.yaml"):
        clusterfile.read(str(tmp_path / "missing.yaml"))
