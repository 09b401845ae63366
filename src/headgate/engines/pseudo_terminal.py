"""A pseudo-terminal that a task prints to."""

from __future__ import annotations

import os
import struct
import termios
from fcntl import ioctl

_ROWS, _COLUMNS, _MOST_COLUMNS = 40, 120, 9999


def terminal(columns: str) -> tuple[int, int]:
    """Open a pseudo-terminal. Returns the descriptor for reading, and the one for writing.

    Args:
        columns: Its width; 120 if this is no usual number.
    """
    reads, writes = os.openpty()
    wide = int(columns) if columns.isdecimal() and 0 < int(columns) <= _MOST_COLUMNS else _COLUMNS
    ioctl(writes, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, wide, 0, 0))
    attributes = termios.tcgetattr(writes)
    attributes[1] &= ~termios.ONLCR  # a line ends as it is printed
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(writes, termios.TCSANOW, attributes)
    return reads, writes
