"""Debian's kernel for virtual machines, taken out of its package into a cache and installed
nowhere.
"""

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
    """Path of a bootable kernel image; its modules are in `../lib/modules` from there.

    Raises:
        SystemExit: apt knows none.
    """
    depends = subprocess.run(
        ["apt-cache", "depends", PACKAGE], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"linux-image-[0-9][^\s]*", depends)
    if found is None:
        raise SystemExit(f"apt knows no package {PACKAGE}; run: apt-get update")
    ready = cache() / f"{found[0]}.content"
    if not ready.exists():
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            subprocess.run(["apt-get", "-q", "download", found[0]], cwd=folder, check=True)
            (package,) = Path(folder).glob("*.deb")
            content = Path(folder) / "content"
            subprocess.run(["dpkg", "-x", package, content], check=True)
            if not (content / "lib").exists():  # a later Debian has them below usr
                (content / "lib").symlink_to("usr/lib")
            content.rename(ready)
    (image,) = ready.glob("boot/vmlinuz-*")
    return image
