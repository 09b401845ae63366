"""Every sample of every global batch is taken once, by one worker, whatever workers there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from headgate.torch import rng
from headgate.torch.iteration import Iteration
from headgate.torch.loaders import Loaders
from headgate.torch.sharded_loaders import ShardingSampler, Sharing
from headgate.torch.sharding import Assigner, Pass, ShardAssignment, Slices, divided


@settings(deadline=None)
@given(
    st.integers(1, 300),
    st.lists(st.integers(1, 64), min_size=1, max_size=9),
    st.sampled_from([1, 2]),
)
def test_parts_are_whole_and_near_their_proportion(
    samples: int, weights: list[int], smallest: int
) -> None:
    ends = divided(samples, weights, smallest)
    parts = [end - begin for begin, end in zip([0, *ends], ends)]
    assert sum(parts) == samples
    assert min(parts) >= 0
    assert all(part == 0 or part >= min(smallest, samples) for part in parts)
    for part, weight in zip(parts, weights):
        assert abs(part - samples * weight / sum(weights)) <= 2 * smallest


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> int:
        return number


class Shuffled(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(60).tolist()


class Watching:
    """Takes what loaders tell."""

    def __init__(self) -> None:
        self.lost = 0

    def fetching(self, iteration: Iteration) -> None:
        pass

    def fetched(self, iteration: Iteration, batch: Any) -> Any:
        return batch

    def divided(self, iteration: Iteration, batch: Any, whole: int) -> None:
        pass

    def exhausted(self, iteration: Iteration) -> None:
        pass

    def arrived(self) -> None:
        pass

    def replays(self, iteration: Iteration, drawn: bool) -> None:
        pass

    def lost_some(self, iteration: Iteration) -> None:
        self.lost += 1


class Reader:
    """One of several workers, as far as its data goes."""

    def __init__(self, loader: Any, assigner: Assigner) -> None:
        self.watching = Watching()
        self.loaders = Loaders(self.watching)
        torch.manual_seed(5)
        stream = rng.Stream(rng.capture((), devices=False))
        self.loaders.sharing = Sharing(assigner, stream, lambda: True, lambda: (0, 0), lambda: 1)
        self.loader = self.loaders.prepare(loader)
        self.iteration = iter(self.loader)

    def next(self) -> list[int]:
        """The samples that count of the next batch."""
        torch.rand(7)  # the script draws what it likes meanwhile
        batch: list[int] = next(self.iteration).tolist()
        assigned = self.iteration.assigned
        assert assigned is not None
        return batch[: assigned.taken]


LOADERS: dict[str, Callable[[], Any]] = {
    "in the process": lambda: DataLoader(Numbers(), batch_size=8, shuffle=True),
    "read ahead": lambda: DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=2),
    "read ahead by workers that stay": lambda: DataLoader(
        Numbers(), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "a stream": lambda: DataLoader(Shuffled(), batch_size=8),
    "a list": lambda: list(torch.arange(60).split(8)),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("loader", LOADERS)
def test_what_a_worker_that_leaves_would_have_taken_the_others_take(loader: str) -> None:
    readers = [
        Reader(LOADERS[loader](), Slices(index, (0, 1, 2), (2, 1, 1), lambda: 1))
        for index in range(3)
    ]
    batches = []
    for number in range(8):
        if number == 3:
            del readers[1]
            for reader in readers:
                assert reader.loaders.sharing is not None
                assert isinstance(reader.loaders.sharing.assigner, Slices)
                reader.loaders.sharing.assigner.members = (0, 2)
        batches.append([reader.next() for reader in readers])
        if number in (0, 4):
            assert [len(part) for part in batches[-1]] == ([4, 2, 2] if number == 0 else [5, 3])
    for reader in readers:
        with pytest.raises(StopIteration):
            next(reader.iteration)
        assert reader.watching.lost == 0
    parts = [part for batch in batches for part in batch]
    assert sorted(sample for part in parts for sample in part) == list(range(60))


class Leases(Assigner):
    """Whole batches, in an order that servers would say."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def assign(self, coming: Pass) -> ShardAssignment:
        assert (coming.batches, coming.by_index) == (8, True)
        return LeaseClient(self.numbers)


class LeaseClient(ShardAssignment):
    steps_back = True

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.left = list(numbers)

    def next(self) -> int | None:
        return self.left.pop(0) if self.left else None

    def ended(self, number: int) -> bool:
        return True

    def part(self, number: int, samples: int) -> tuple[int, int]:
        return 0, samples


def test_leased_batches_come_whole_in_any_order_and_together_are_all() -> None:
    readers = [
        Reader(DataLoader(Numbers(), batch_size=8, shuffle=True), assigner)
        for assigner in (Leases(0, 3, 4, 7, 5), Leases(1, 2, 6))
    ]
    batches = {}
    for reader in readers:
        for _ in range(8):
            try:
                samples = reader.next()
            except StopIteration:
                break
            batches[reader.iteration.assigned.number] = samples
    alone = Reader(
        DataLoader(Numbers(), batch_size=8, shuffle=True), Slices(0, (0,), None, lambda: 1)
    )
    assert [batches[number] for number in range(8)] == [alone.next() for _ in range(8)]


def test_a_batch_that_comes_back_after_the_end_was_seen_is_taken() -> None:
    reader = Reader(DataLoader(Numbers(), batch_size=8, shuffle=True), Leases(7, 8, 2))
    taken = [reader.next(), reader.next()]
    alone = Reader(
        DataLoader(Numbers(), batch_size=8, shuffle=True), Slices(0, (0,), None, lambda: 1)
    )
    every = [alone.next() for _ in range(8)]
    assert taken == [every[7], every[2]]


class Drawn(RandomSampler):
    """One that may draw whenever it likes."""


@pytest.mark.parametrize("sampler", [RandomSampler, Drawn])
def test_one_without_a_batch_draws_what_the_others_draw(sampler: type[RandomSampler]) -> None:
    readers = [
        Reader(DataLoader(Numbers(), batch_size=8, sampler=sampler(Numbers())), assigner)
        for assigner in (Leases(), Leases(0, 1), Leases(*range(8)))
    ]
    following = []
    for reader in readers:
        while not reader.iteration.exhausted:
            with suppress(StopIteration):
                reader.next()
        assert reader.loaders.sharing is not None
        with reader.loaders.sharing.stream.drawing():
            following.append(float(torch.rand(1)))
    assert len(set(following)) == 1


def test_a_batch_too_small_for_all_is_borrowed_from() -> None:
    sampler = ShardingSampler(nullcontext, lambda: 2).around([[1, 2, 3, 4], [5]])
    sampler.take(Slices(1, (0, 1, 2), None, lambda: 2).assign(Pass(0, 0, 0, 0, 0, 2, True)))
    assert list(sampler) == [[1, 2], [5]]
    assert [
        (assigned.number, assigned.whole, assigned.taken)
        for assigned in (sampler.assigned(), sampler.assigned())
    ] == [
        (0, 4, 0),
        (1, 1, 1),
    ]
