"""Packages behind Headgate's optional parts, as `pip` installs them."""

from __future__ import annotations

from collections.abc import Mapping

PACKAGES: Mapping[str, str] = {
    "docker": "docker>=7.1",
    "gpu": "nvidia-ml-py>=12.535",
    "explain": "py-spy>=0.4",
    "executor": "cloudpickle>=3.0",
    "notify": "apprise>=1.9",
}
"""Packages of each extra, as in pyproject.toml. Cluster engines declare their own."""


def install(part: str) -> str:
    """The command line that installs an extra, or a package named directly."""
    return f"pip install '{PACKAGES.get(part, part)}'"
