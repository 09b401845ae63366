"""Brings the data of a resumed `fit` to where they were when the checkpoint was taken.

The batches of an epoch depend on the iterators that Keras made in earlier epochs, because each
takes its seeds when it is made. They also depend on the batches that were read from an iterator
that goes on from epoch to epoch. So a resume goes through the earlier epochs as Keras does, without
a step. It reads no more than it has to.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from headgate.keras import backends

_READERS = {
    "tensorflow": "TFEpochIterator",
    "jax": "JAXEpochIterator",
    "torch": "TorchEpochIterator",
}
"""The classes with which Keras 3 reads its epochs, by back end."""


class Reading:
    """The reader of a `fit`'s training data.

    Args:
        keras: The model's Keras.
        backend: What it computes with.
        first: The epoch with which the script begins its `fit`.
        epoch: The epoch with which this `fit` begins.
        batches: Batches of an epoch by the checkpoint; None: it does not say.
    """

    def __init__(
        self, keras: Any, backend: str, first: int, epoch: int, batches: int | None
    ) -> None:
        self._legacy = backends.is_legacy(keras)
        self._backend = backend
        self._epoch = epoch
        self._passes = max(epoch - first, 0)
        self._batches = batches
        self._source: Any = None
        self._owner: Any
        if self._legacy:
            self._owner = getattr(sys.modules.get(keras.Model.__module__), "data_adapter", None)
            self._name = "get_data_handler"
        else:
            self._owner = sys.modules.get(f"keras.src.backend.{backend}.trainer")
            self._name = _READERS[backend]

    @property
    def begins_anew(self) -> bool:
        """Whether `fit` has to begin with its first epoch all the same. `caught` then leaves out
        the earlier ones.
        """
        return self._legacy and self.is_known

    @property
    def is_known(self) -> bool:
        """Whether Headgate knows how this Keras reads data."""
        return hasattr(self._owner, self._name)

    @property
    def batches(self) -> int | None:
        """Batches of an epoch, as far as Keras knows by now."""
        return getattr(self._source, "_num_batches", None)

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """A context for `fit` to run in: the first reader that it makes is the one to follow."""
        if not self.is_known:
            yield
            return
        owner, name = self._owner, self._name
        make = getattr(owner, name)

        def making(*args: Any, **kwargs: Any) -> Any:
            setattr(owner, name, make)
            self._source = make(*args, **kwargs)
            if self._legacy:
                self._leave_out()
            return self._source

        setattr(owner, name, making)
        try:
            yield
        finally:
            setattr(owner, name, make)

    def catch_up(self) -> None:
        """Called when the first epoch begins: with Keras 3, go through the epochs before it."""
        if self._source is None or self._legacy:
            return
        source, goes_on = self._source, bool(self._source.steps_per_epoch)
        # Of an unknown length Keras makes one iterator an epoch, and reads it to its end each time.
        unknown = self._backend == "tensorflow" and not goes_on and source._num_batches is None
        for _ in range(self._passes):
            if unknown:
                iter(source._distributed_dataset)
                source._num_batches = self._batches
            elif self._backend == "tensorflow":
                for begin, end, batch in source:
                    if goes_on:
                        _read(batch, end - begin + 1)
            elif goes_on or type(source.data_adapter).__name__ == "TFDatasetAdapter":
                # What is shuffled by the generators of Python, NumPy or torch follows their states.
                for begin, end, batch in source:
                    if self._backend == "jax":
                        _read(batch, end - begin + 1 if goes_on else 1)
                    if not goes_on:  # its iterator is made by the first batch
                        break

    # --- inside -----------------------------------------------------------------------------------

    def _leave_out(self) -> None:
        """Of legacy Keras: have the handler go through its epochs from the first on, and hand out
        those from `epoch` on.
        """
        handler, epochs = self._source, self._source.enumerate_epochs

        def enumerating() -> Iterator[tuple[int, Any]]:
            for epoch, iterator in epochs():
                if epoch >= self._epoch:
                    yield epoch, iterator
                elif not handler._adapter.should_recreate_iterator():
                    _read(iterator, handler.inferred_steps or 0)

        handler.enumerate_epochs = enumerating


def _read(iterator: Any, count: int) -> None:
    """Read up to `count` batches."""
    next(islice(iterator, count, count), None)
