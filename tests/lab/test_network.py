"""What the NICs of lab nodes carry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.harness import traffic
from tests.lab.laboratory import Laboratory, end

from headgate import lab
from headgate.testing import wait

IP_PACKET, SEGMENT, OVERLAY_SEGMENT = 1500, 1448, 1398
"""Bytes of a full IP packet on the wire, and of what it carries for TCP, plain and below a VXLAN of
MTU 1450.
"""


@pytest.mark.parametrize("rate", ["50Mbit", pytest.param("1Gbit", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("options", "segment"), [("", SEGMENT), ("overlay: vxlan", OVERLAY_SEGMENT)], ids=["", "vxlan"]
)
def test_a_nic_carries_its_rate_both_ways_at_once(
    rate: str, options: str, segment: int, laboratory: Laboratory
) -> None:
    a, b = laboratory.up(f"name: a, nic: {rate}", f"name: b, nic: {rate}", options=options)
    wanted = a.nic_bytes_per_second
    assert wanted is not None

    def near() -> bool:
        received = traffic.both_ways(end(a), end(b), 0.8)
        assert {each.congestion_control for each in received} == {"cubic"}
        on_the_wire = [each.bytes_per_second * IP_PACKET / segment for each in received]
        return all(0.95 * wanted <= each <= 1.05 * wanted for each in on_the_wire)

    wait.until(near, 60, f"the NICs carry {rate} each way")


def test_a_nic_without_a_rate_is_limited_by_nothing(laboratory: Laboratory) -> None:
    a, b = laboratory.up("name: a, cores: 0.8", "name: b, cores: 0.8")

    def fast() -> bool:
        return (
            sum(each.bytes_per_second for each in traffic.both_ways(end(a), end(b), 0.3)) > 2e9 / 8
        )

    wait.until(fast, 60, "the NICs carry more than 2 Gbit/s together")


def test_the_slower_of_two_nics_counts_each_way(laboratory: Laboratory) -> None:
    slow, fast = laboratory.up("name: slow, nic: 100Mbit", "name: fast, nic: 1Gbit")

    def near() -> bool:
        received = traffic.both_ways(end(slow), end(fast), 0.8)
        return all(0.9 * 100e6 / 8 <= each.bytes_per_second <= 100e6 / 8 for each in received)

    wait.until(near, 60, "both ways are as fast as the slower NIC")


def test_whose_an_address_is_is_known_without_a_name_server(laboratory: Laboratory) -> None:
    laboratory.up("name: a", "name: b")
    asks = "import socket; print([socket.getnameinfo((ip, 1), socket.NI_NAMEREQD)[0] for ip in {}])"
    asked = ["10.77.0.2", "::ffff:10.77.0.2", "::1", "::ffff:127.0.0.1"]
    assert (
        laboratory.python("a", asks.format(asked))
        == "['b', 'b.bench', 'ip6-localhost', 'ip6-localhost']"
    )
    named = "import socket; print({at[4][0] for at in socket.getaddrinfo('b', 1)})"
    assert laboratory.python("a", named) == "{'10.77.0.2'}"


def test_a_rate_changes_and_a_cable_is_pulled_while_traffic_flows(laboratory: Laboratory) -> None:
    a, b = laboratory.up("name: a, nic: 100Mbit", "name: b, nic: 100Mbit")
    ends = traffic.start(end(a), end(b), 1000), traffic.start(end(b), end(a), 1000)

    def carries(bytes_per_second: float) -> bool:
        first, second = lab.status()
        seen = (first.bytes_in, first.bytes_out, second.bytes_in, second.bytes_out)
        return all(0.9 * bytes_per_second <= each <= 1.05 * bytes_per_second for each in seen)

    try:
        wait.until(lambda: carries(100e6 / 8), 60, "100 Mbit/s flow")
        assert lab.change("a", {"nic_bytes_per_second": 30e6 / 8}).nic_bytes_per_second == 30e6 / 8
        wait.until(lambda: carries(30e6 / 8), 60, "30 Mbit/s flow")
        lab.change("a", {}, plugged=False)
        assert lab.status()[0].state == "unplugged"
        wait.until(lambda: lab.status()[1].bytes_in == 0, 60, "nothing flows")
        lab.change("bench/a", {"nic_bytes_per_second": 200e6 / 8}, plugged=True)
        wait.until(lambda: carries(100e6 / 8), 60, "100 Mbit/s flow again")
        assert all(each.poll() is None for each in ends)
    finally:
        for each in ends:
            each.kill()
            each.communicate()


def test_nothing_of_a_lab_is_in_the_machine_s_own_network(laboratory: Laboratory) -> None:
    # Docker has the machine filter all bridged packets, and drop those that it does not know.
    settings = [
        Path("/proc/sys/net/ipv4/tcp_congestion_control"),
        *Path("/proc/sys/net/bridge").glob("*"),
    ]
    interfaces = set(os.listdir("/sys/class/net"))
    before = [path.read_text() for path in settings if path.exists()]
    laboratory.up("name: a, nic: 50Mbit", "name: b", options="overlay: vxlan")
    assert [path.read_text() for path in settings if path.exists()] == before
    # those of other tests go again; a lab's would stay as long as it does
    wait.until(lambda: interfaces.issuperset(os.listdir("/sys/class/net")), what="no more of them")


def test_nodes_find_each_other_and_themselves_by_name(laboratory: Laboratory) -> None:
    a, b = laboratory.up("name: a", "name: b, address: 10.77.3.9", name="named")
    program = (
        "import socket; h = socket.gethostname(); print(h, *map(socket.gethostbyname, "
        "[h, 'b', 'localhost']))"
    )
    assert laboratory.python("a", program) == f"a {a.address} {b.address} 127.0.0.1"
    # As many programs find their own address: which would be used on the way out?
    program = (
        "import socket; s = socket.socket(type=2); s.connect(('192.0.2.1', 9)); "
        "print(*s.getsockname())"
    )
    assert laboratory.python("b", program).split()[0] == "10.77.3.9"
