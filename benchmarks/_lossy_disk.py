"""A disk with a write cache that a power cut empties, for QEMU: a server of network block devices.

What the guest wrote since it last flushed is in the cache. At a power cut a random part of that
gets to the disk, in blocks and in any order, and the rest is lost: what a disk without a battery
may do.
"""

from __future__ import annotations

import random
import shutil
import socket
import struct
import threading
from pathlib import Path
from typing import BinaryIO, cast

_BLOCK = 4096
"""Bytes that are written as a whole."""
# https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
_MAGIC, _OPTION, _REPLY = b"NBDMAGIC", b"IHAVEOPT", 0x0003E889045565A9
_EXPORT_NAME, _ABORT, _UNSUPPORTED = 1, 2, (1 << 31) + 1
_REQUEST, _ANSWER = 0x25609513, 0x67446698
_READ, _WRITE, _CLOSE, _FLUSH = range(4)
_HAS_FLAGS, _SENDS_FLUSH = 1, 4


class LossyDisk:
    """A disk in a file.

    Args:
        file: What is on it for good.
        draw: Draws what a power cut leaves.
        socket_path: Where QEMU finds it.
    """

    def __init__(self, file: Path, draw: random.Random, socket_path: Path) -> None:
        self.file, self.uri = file, f"nbd+unix:///?socket={socket_path}"
        self.lost = self.flushes = 0
        self._draw = draw
        self._socket_path = socket_path
        self._cached: list[tuple[int, bytes]] = []

    def plug(self) -> None:
        """Serve a machine until it is gone."""
        self._seen = self.file.with_suffix(".seen")
        shutil.copyfile(self.file, self._seen)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._socket_path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def cut(self) -> int:
        """The power was cut, and the machine is gone: keep a part of what was in the cache. Returns
        how many blocks were lost.
        """
        self._listener.shutdown(socket.SHUT_RDWR)  # it may have gone before it connected
        self._thread.join()
        self._listener.close()
        self._socket_path.unlink()
        part, lost = self._draw.choice((0.0, 0.5, 0.9)), 0
        with self.file.open("r+b") as disk:
            for at, data in self._cached:
                for start in range(0, len(data), _BLOCK):
                    if self._draw.random() < part:
                        disk.seek(at + start)
                        disk.write(data[start : start + _BLOCK])
                    else:
                        lost += 1
        self._cached.clear()
        return lost

    def _serve(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # no machine came
        with connection, connection.makefile("rwb") as stream, self._seen.open("r+b") as seen:
            both_ways = cast(BinaryIO, stream)
            try:
                if self._agree(both_ways):
                    self._obey(both_ways, seen)
            except (ConnectionError, struct.error):
                return  # the machine was killed

    def _agree(self, stream: BinaryIO) -> bool:
        stream.write(_MAGIC + _OPTION + struct.pack(">H", 1))  # fixed newstyle
        stream.flush()
        stream.read(4)
        while True:
            _, option, length = struct.unpack(">8sII", stream.read(16))
            stream.read(length)
            if option == _EXPORT_NAME:
                size = self.file.stat().st_size
                stream.write(struct.pack(">QH", size, _HAS_FLAGS | _SENDS_FLUSH) + bytes(124))
                stream.flush()
                return True
            if option == _ABORT:
                return False
            stream.write(struct.pack(">QIII", _REPLY, option, _UNSUPPORTED, 0))
            stream.flush()

    def _obey(self, stream: BinaryIO, seen: BinaryIO) -> None:
        while True:
            _, _, kind, handle, at, length = struct.unpack(">IHHQQI", stream.read(28))
            data = b""
            if kind == _READ:
                seen.seek(at)
                data = seen.read(length)
            elif kind == _WRITE:
                written = stream.read(length)
                if len(written) < length:
                    return
                seen.seek(at)
                seen.write(written)
                self._cached.append((at, written))
            elif kind == _FLUSH:
                self._flush()
            elif kind == _CLOSE:
                return
            stream.write(struct.pack(">IIQ", _ANSWER, 0, handle) + data)
            stream.flush()

    def _flush(self) -> None:
        self.flushes += 1
        with self.file.open("r+b") as disk:
            for at, data in self._cached:
                disk.seek(at)
                disk.write(data)
        self._cached.clear()
