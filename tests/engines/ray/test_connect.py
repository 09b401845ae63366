"""What can be wrong with a cluster is said in one line."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from headgate.cli.placement import PlacementOptions, Where
from headgate.engines.base import LOCAL, EngineSpec
from headgate.engines.ray import connect
from headgate.engines.ray.engine import RayEngine
from headgate.model.errors import HeadgateError, UsageError
from headgate.testing.recorder import RecordingListener


def refusal(address: str) -> HeadgateError:
    with pytest.raises(HeadgateError) as caught:
        RayEngine(address).open(RecordingListener(lambda _: False))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture
def _ray() -> None:
    pytest.importorskip("ray", reason="engine `ray` needs Ray: pip install 'ray>=2.30'")


@pytest.mark.usefixtures("_ray")
def test_an_address_where_nobody_answers() -> None:
    assert "no Ray cluster answers at 127.0.0.1:9" in str(refusal("127.0.0.1:9"))


@pytest.mark.parametrize(
    "address", ["ray://10.0.0.1:10001", "10.0.0.1:", ":6379", "10.0.0.1:port", "a:99999"]
)
def test_an_address_that_makes_no_sense(address: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        connect.split(address)


def test_addresses_that_do() -> None:
    assert connect.split("10.0.0.1:6380") == ("10.0.0.1", 6380)
    assert connect.split("head.lab") == ("head.lab", 6379)
    assert connect.split("[fd00::1]:6379") == ("fd00::1", 6379)


def test_other_versions_are_named_on_both_sides(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = import_module("ray")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\nsys.modules['ray._version'] = "
        "types.SimpleNamespace(version='2.41.0', commit='none')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    python = ".".join(map(str, sys.version_info[:3]))
    error = refusal(ray_address)
    assert isinstance(error, UsageError)
    assert str(error) == (
        f"the Ray cluster at {ray_address} has Ray {ray.__version__} and Python {python}, this "
        f"headgate has Ray 2.41.0 and Python {python}; run headgate with the cluster's Python and "
        "Ray, or through its Jobs API: --address http://127.0.0.1:8265"
    )


def test_another_minor_version_of_python_is_named_as_well() -> None:
    text = """Version mismatch: The cluster was started with:
    Ray: 2.60.0
    Python: 3.10.4
This process on node 10.0.0.2 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""
    error = connect.explained(RuntimeError(text), "10.0.0.1", 6379)
    assert isinstance(error, UsageError)
    assert (
        "has Ray 2.60.0 and Python 3.10.4, this headgate has Ray 2.60.0 and Python 3.11.7; run"
        in str(error)
    )


def test_an_address_that_is_not_stated_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert PlacementOptions(engine="ray").place().engine == EngineSpec("ray", "10.0.0.1:6379")
    assert PlacementOptions(engine="ray", address="10.0.0.2:6379").place().engine == EngineSpec(
        "ray", "10.0.0.2:6379"
    )
    assert PlacementOptions().place().engine == LOCAL
    before = Where(engine=EngineSpec("ray", "10.0.0.3:6379"))  # of a run that is resumed
    assert PlacementOptions().place(before).engine == before.engine
    monkeypatch.delenv("RAY_ADDRESS")
    assert PlacementOptions(engine="ray").place().engine == EngineSpec("ray", "")


def test_a_token_that_is_wanted() -> None:
    error = connect.explained(RuntimeError("Unauthenticated: InvalidAuthToken"), "10.0.0.1", 6379)
    assert "asks for a token" in str(error)


def test_a_ray_of_its_own_that_does_not_start_is_not_taken_for_a_cluster_of_others() -> None:
    error = connect.explained(
        RuntimeError("The raylet did not start in time.\nSee its log."), "", 0
    )
    assert (
        str(error)
        == "Ray did not start on this machine, or refused the connection: The raylet did not "
        "start in time; try it with: ray start --head"
    )


def test_a_machine_that_is_no_node_of_it() -> None:
    error = connect.explained(
        RuntimeError("Can't find a `node_ip_address.json` file from /tmp/ray"), "h", 6379
    )
    assert "ray start --address h:6379 --num-cpus 0" in str(error)
