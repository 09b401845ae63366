"""Debian's kernel for virtual machines, taken out of its package into a cache and installed nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

PACKAGE = "linux-image-cloud-amd64"


def cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate-test"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def kernel() -> Path:
    """Path of a bootable kernel image.

    Raises:
        SystemExit: apt knows none.
    """
    depends = subprocess.run(["apt-cache", "depends", PACKAGE], capture_output=True, text=True, check=False).stdout
    found = re.search(r"linux-image-[0-9][^\s]*", depends)
    if found is None:
        raise SystemExit(f"apt knows no package {PACKAGE}; run: apt-get update")
    ready = cache() / found[0]
    if not ready.exists():
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            subprocess.run(["apt-get", "-q", "download", found[0]], cwd=folder, check=True)
            (package,) = Path(folder).glob("*.deb")
            subprocess.run(["dpkg", "-x", package, Path(folder) / "content"], check=True)
            (image,) = Path(folder).glob("content/boot/vmlinuz-*")
            image.rename(ready)
    return ready
