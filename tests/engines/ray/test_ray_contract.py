"""The engine `ray` keeps the contract, over a real Ray on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.ray.cluster import folders_left
from tests.engines.ray.running import RayStaysOpen
from tests.engines.staying_open import AgentsContract, ends

from headgate.engines.base import Engine
from headgate.engines.ray.engine import RayEngine


@pytest.fixture(scope="module")
def kept(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayStaysOpen]:
    speeds = tmp_path_factory.mktemp("speeds") / "speeds.json"
    engine = RayStaysOpen(ray_address, shared_files=True, speeds=speeds)
    yield engine
    engine.end()
    assert folders_left() == []


class TestRay(AgentsContract):
    accounts = True

    @pytest.fixture
    def engine(
        self, kept: RayStaysOpen, ray_address: str, request: pytest.FixtureRequest
    ) -> Engine:
        if ends(request):
            return RayEngine(ray_address, shared_files=True)
        return kept

    def folders(self) -> list[Path]:
        return [Path(folder) for folder in folders_left() if folder.startswith("/sys/fs/cgroup")]
