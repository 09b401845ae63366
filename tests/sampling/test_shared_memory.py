"""Shared memory that nobody uses any more, in the machine's own /dev/shm."""

from __future__ import annotations

import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from headgate.sampling.shared_memory import FOLDER, left_since

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="this machine has no /dev/shm")
HOLDS = """
import mmap, sys
file = open(sys.argv[1], "r+b")
memory = mmap.mmap(file.fileno(), 0)
if sys.argv[2] == "mapped":
    file.close()
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_memory_is_left_once_no_process_has_it(how: str) -> None:
    began = time.time()
    memory = SharedMemory(create=True, size=1 << 16)
    name = memory.name
    memory.close()
    (FOLDER / name).write_bytes(b"x" * (1 << 16))
    try:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(FOLDER / name), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None and holder.stdout.readline() == b"holds\n"
        assert name not in {file.name for file in left_since(began)}
        holder.communicate()
        assert (name, 1 << 16) in left_since(began)
        assert name not in {file.name for file in left_since(time.time() + 1.0)}
    finally:
        memory.unlink()


def test_what_is_no_file_of_shared_memory_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "sem.a").write_bytes(b"x")
    assert [file.name for file in left_since(0.0, tmp_path)] == ["sem.a"]
    assert left_since(0.0, tmp_path / "absent") == []
