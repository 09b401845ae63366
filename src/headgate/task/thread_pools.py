"""Sets the threads of the OpenMP and BLAS libraries that this process has loaded, in the way of
`threadpoolctl`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctypes import CDLL

VARIABLE = "HEADGATE_THREADS"
"""The variable that tells the threads of a task at its start, and which other variables Headgate
has set to this number: `2:OMP_NUM_THREADS,MKL_NUM_THREADS`.
"""
OPENMP, MKL, OPENBLAS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"
_MAPS = "/proc/self/maps"


@dataclass(frozen=True)
class _Kind:
    """A library.

    Args:
        files: How the names of its files begin.
        variables: The variables that tell it its threads.
        calls: Functions that return the number of threads, and set it, by the names that builds of
            it have for them.
    """

    files: tuple[str, ...]
    variables: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]


_KINDS = (
    _Kind(
        ("libopenblas", "libscipy_openblas", "libblas"),
        (OPENBLAS, OPENMP),
        tuple(
            (f"{begin}openblas_get_num_threads{end}", f"{begin}openblas_set_num_threads{end}")
            for begin in ("", "scipy_")
            for end in ("", "64_", "_64")
        ),
    ),
    _Kind(("libmkl_rt",), (MKL, OPENMP), (("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),)),
    _Kind(
        ("libgomp", "libomp", "libiomp"),
        (OPENMP,),
        (("omp_get_max_threads", "omp_set_num_threads"),),
    ),
)


def first_threads(*variables: str) -> int | None:
    """The threads of this task at its start, as these variables say; None: the user has set one of
    them.
    """
    count, _, names = os.environ.get(VARIABLE, "").partition(":")
    own = names.split(",")
    if count and all(name in own and os.environ.get(name) == count for name in variables):
        return int(count)
    return None


class ThreadPools:
    """The libraries of this process. Where the user has set a number of threads, by a variable or a
    call, it stays.
    """

    def __init__(self) -> None:
        self._threads = first_threads(OPENMP)
        self._known: dict[str, int] = {}  # the threads of each file, as they were set last

    def follow(self, threads: int) -> None:
        """Compute with this many threads from now on. Call it in the thread that trains: OpenMP
        counts for each thread apart.
        """
        if self._threads in (None, threads):
            return
        try:
            from ctypes import CDLL

            for path, kind in _loaded().items():
                first = first_threads(*kind.variables)
                if first is not None:
                    with suppress(OSError):  # its file has been replaced since
                        self._set(path, CDLL(path, os.RTLD_NOLOAD), kind, first, threads)
        except (ImportError, OSError):  # no `ctypes`, or no `/proc`
            self._threads = None
        else:
            self._threads = threads

    def _set(self, path: str, library: CDLL, kind: _Kind, first: int, threads: int) -> None:
        for get_name, set_name in kind.calls:
            if not hasattr(library, get_name) or not hasattr(library, set_name):
                continue
            now = library[get_name]()
            # OpenBLAS has no more at its start than cores
            own = self._known.get(path, min(first, len(os.sched_getaffinity(0))))
            if now in (own, threads) or (path not in self._known and now == first):
                library[set_name](threads)
                self._known[path] = library[get_name]()
            return


def _loaded() -> dict[str, _Kind]:
    """The files of these libraries that are loaded."""
    with open(_MAPS, errors="surrogateescape") as maps:
        paths = {line[line.index("/") :].rstrip("\n") for line in maps if "/lib" in line}
    return {
        path: kind
        for path in sorted(paths)
        for kind in _KINDS
        if path.rpartition("/")[2].startswith(kind.files)
    }
