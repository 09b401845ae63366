"""Bytes are spread over servers evenly, early buffers too, and the same way everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.planning import cost
from headgate.torch.ps.rounds import chunks as chunking
from headgate.torch.ps.rounds.chunks import CHUNK_BYTES, lay_out

MIB = 1 << 20


@settings(deadline=None)
@given(st.lists(st.integers(0, 3 * MIB), max_size=12), st.integers(1, 5))
def test_every_byte_has_one_server(sizes: list[int], servers: int) -> None:
    layout = lay_out(sizes, servers)
    for buffer, size in enumerate(sizes):
        chunks = sorted(layout.buffers[buffer], key=lambda chunk: chunk.offset)
        assert [chunk.offset for chunk in chunks] == [
            sum(c.size for c in chunks[:i]) for i in range(len(chunks))
        ]
        assert sum(chunk.size for chunk in chunks) == size
        assert all(0 < chunk.size <= CHUNK_BYTES and chunk.buffer == buffer for chunk in chunks)
    assert [chunk.number for chunk in layout.chunks] == list(range(len(layout.chunks)))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3 * MIB), max_size=12), st.integers(1, 5))
def test_the_bytes_of_a_server_lie_side_by_side(sizes: list[int], servers: int) -> None:
    layout = lay_out(sizes, servers)
    for server in range(servers):
        chunks = [chunk for chunk in layout.chunks if chunk.server == server]
        assert [chunk.place for chunk in chunks] == [
            sum(c.size for c in chunks[:i]) for i in range(len(chunks))
        ]
        assert layout.loads[server] == sum(chunk.size for chunk in chunks)
        assert layout.counts[server] == len(chunks)


@settings(deadline=None)
@given(st.lists(st.integers(64, MIB), min_size=1, max_size=40), st.integers(1, 6))
def test_no_server_has_much_more_than_another(sizes: list[int], servers: int) -> None:
    loads = lay_out(sizes, servers).loads
    assert max(loads) - min(loads) <= max(2048, 0.05 * min(loads))


@pytest.mark.parametrize("servers", [2, 3, 4])
def test_a_large_tensor_is_split(servers: int) -> None:
    layout = lay_out([100 * MIB], servers)
    assert max(layout.loads) <= 1.001 * min(layout.loads)


def test_early_buffers_keep_all_servers_at_work() -> None:
    layout = lay_out([MIB] * 8, 3)
    for count in range(1, 9):
        loads = [0, 0, 0]
        for chunk in (chunk for chunks in layout.buffers[:count] for chunk in chunks):
            loads[chunk.server] += chunk.size
        assert max(loads) - min(loads) <= 1024


def test_servers_take_turns_within_a_buffer() -> None:
    turns = [chunk.server for chunk in lay_out([16 * MIB], 2).chunks]
    assert turns == [0, 1] * (len(turns) // 2)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_small_model_has_enough_chunks_for_push_and_pull_to_overlap(servers: int) -> None:
    assert min(lay_out([MIB, MIB], servers).counts) >= 16
    assert max(lay_out([MIB] * 100, servers).counts) == 200 // servers


def test_a_small_buffer_is_not_split() -> None:
    assert len(lay_out([1500], 4).chunks) == 1


@settings(deadline=None)
@given(st.lists(st.integers(1, MIB // 8), min_size=1, max_size=12), st.integers(1, 4))
def test_no_number_is_cut_in_two(elements: list[int], servers: int) -> None:
    assert all(
        chunk.offset % 8 == 0
        for chunk in lay_out([8 * count for count in elements], servers).chunks
    )


def test_plans_are_costed_with_the_messages_that_are_sent() -> None:
    assert cost._CHUNKS == chunking._CHUNKS
    assert cost._CHUNK_BYTES == (chunking._SMALL_CHUNK_BYTES, chunking.CHUNK_BYTES)
