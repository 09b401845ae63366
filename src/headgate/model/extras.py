"""What optional parts of Headgate need, as pip is told to install it."""

from __future__ import annotations

from collections.abc import Mapping

PACKAGES: Mapping[str, str] = {
    "docker": "docker>=7.1",
    "gpu": "nvidia-ml-py>=12.535",
    "explain": "py-spy>=0.4",
    "executor": "cloudpickle>=3.0",
}
"""By the extra that brings it; pyproject.toml says the same. Engines of clusters declare theirs."""


def install(part: str) -> str:
    """The command line that installs what an extra brings, or a package that is given itself."""
    return f"pip install '{PACKAGES.get(part, part)}'"
