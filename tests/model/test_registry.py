"""What other packages bring is found by name; where it cannot be loaded, whoever asks for it hears
why.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.installing import install

from headgate import engines, isolation, policies
from headgate.engines.base import EngineSpec
from headgate.model.errors import UsageError

MAKERS: dict[str, Callable[[str], object]] = {
    "engine": lambda name: engines.make(EngineSpec(name), Path()),
    "isolation": lambda name: isolation.make(name, "test"),
    "policy": policies.make,
}
GROUPS = {
    "engine": "headgate.engines",
    "isolation": "headgate.isolations",
    "policy": "headgate.policies",
}
PLUGINS = """
from headgate.policies import EqualPolicy
class Fair(EqualPolicy):
    def __init__(self, patience: float = 1.0) -> None:
        super().__init__()
        self.patience = patience
def strange(*_):
    return 3
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a sound policy, and of each kind one that cannot be imported and one that is
    something else.
    """
    entries = "".join(
        f"[{group}]\nbroken = broken_by_name:Broken\nstrange = plugins_by_name:strange\n"
        for group in GROUPS.values()
    )
    modules = {"plugins_by_name": PLUGINS, "broken_by_name": "raise RuntimeError('no licence')"}
    install(tmp_path, modules, f"{entries}fair = plugins_by_name:Fair\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_a_plug_in_is_made_by_its_name_with_its_options() -> None:
    policy = policies.make("fair:patience=3")
    assert (type(policy).__name__, policy.name) == ("Fair", "fair:patience=3")
    assert vars(policy)["patience"] == 3.0


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.usefixtures("installed")
def test_who_asks_for_one_that_cannot_be_loaded_is_told_why(kind: str) -> None:
    with pytest.raises(UsageError, match=rf"^no {kind} 'broken'; expected one of ") as raised:
        MAKERS[kind]("broken")
    origin = f"'broken' of someones-package ({GROUPS[kind]})"
    assert str(raised.value).endswith(f"; plug-in {origin} is left out: RuntimeError: no licence")


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.usefixtures("installed")
def test_what_makes_something_else_is_none(kind: str) -> None:
    with pytest.raises(UsageError, match=f"no {kind} 'strange'"):
        MAKERS[kind]("strange")
