"""Plans that a script's library cannot run are refused before anything starts; where it is not
plain, nothing is.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.scripts import inspection
from headgate.scripts.facts import SourceFacts, facts_of, source_facts
from headgate.scripts.inspection import other_cluster

JAX, KERAS, TORCH = (f"import headgate.{name} as hg\n" for name in ("jax", "keras", "torch"))
PS = Plan(strategy="ps", workers=2, servers=1, batch_per_worker=None)
ASYNC = Plan(strategy="ps", workers=2, servers=1, batch_per_worker=None, synchronous=False)
STALE = Plan(
    strategy="ps", workers=2, servers=1, batch_per_worker=None, synchronous=False, staleness=2
)
TOGETHER = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
UNEVEN = Plan(strategy="allreduce", workers=2, batch_per_worker=(8, 24))


def check(job: Job, environment: dict[str, str]) -> None:
    inspection.check(job, facts_of(job), environment)


def job(folder: Path, text: str, plan: Plan) -> Job:
    (folder / "train.py").write_text(text)
    return Job(
        name="train", script="train.py", workdir=str(folder), plan=plan, allow=frozenset({"async"})
    )


@pytest.mark.parametrize(
    ("text", "plan", "environment", "says"),
    [
        (JAX, PS, {}, "JAX has no parameter servers; run with --strategy allreduce --workers 2"),
        ("from headgate import jax as hg", ASYNC, {}, "JAX has no parameter servers"),
        (JAX, UNEVEN, {}, "leave `batch_per_worker` out"),
        (KERAS, PS, {}, "allow that with --async"),
        (KERAS, STALE, {}, "leave --staleness out"),
        (KERAS, ASYNC, {"KERAS_BACKEND": "jax"}, "headgate.keras over JAX"),
        (KERAS, TOGETHER, {"KERAS_BACKEND": "torch"}, "set KERAS_BACKEND=jax"),
        (
            TORCH,
            TOGETHER,
            {"WORLD_SIZE": "8", "RANK": "3"},
            "found WORLD_SIZE=8, RANK=3 in the environment, but ",
        ),
        (
            TORCH + JAX,
            TOGETHER,
            {"TF_CONFIG": "{}"},
            "of each other by itself; unset it, or run with --strategy single",
        ),
        (JAX, TOGETHER, {"JAX_NUM_PROCESSES": "8"}, "found JAX_NUM_PROCESSES=8 in the environment"),
    ],
)
def test_what_the_library_does_not_have_is_refused_with_what_works(
    text: str, plan: Plan, environment: dict[str, str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        check(job(tmp_path, text, plan), environment)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "plan", "environment"),
    [
        (TORCH, PS, {}),
        (TORCH + JAX, PS, {}),
        ("if True:\n    " + JAX, PS, {}),
        ("def main():\n    " + JAX, PS, {}),
        (TORCH + "def export():\n    " + JAX, PS, {}),
        ("import jax, headgate\n", PS, {}),
        ("'''\n" + JAX + "'''\nimport headgate.torch\n", PS, {}),
        (JAX + "print 'of another Python'\n", PS, {}),
        (JAX, TOGETHER, {}),
        (KERAS, ASYNC, {}),
        (KERAS, TOGETHER, {"KERAS_BACKEND": "torch", "TF_USE_LEGACY_KERAS": "1"}),
        (
            "import os; os.environ['KERAS_BACKEND'] = 'jax'\n" + KERAS,
            TOGETHER,
            {"KERAS_BACKEND": "torch"},
        ),
    ],
)
def test_what_works_or_may_work_is_let_through(
    text: str, plan: Plan, environment: dict[str, str], tmp_path: Path
) -> None:
    check(job(tmp_path, text, plan), environment)


def test_of_an_image_s_tasks_only_the_job_s_own_variables_are_known() -> None:
    pod = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "10.0.0.7"}
    here = Job(name="train", script="train.py")
    assert other_cluster(here, pod) == "MASTER_ADDR=10.0.0.7, WORLD_SIZE=1, RANK=0"
    boxed = replace(here, isolation="container", image="python:3.12")
    assert not other_cluster(boxed, pod)
    assert (
        other_cluster(replace(boxed, env={"TF_CONFIG": "{}"}), pod | {"TF_CONFIG": "{}"})
        == "TF_CONFIG={}"
    )


FIT = KERAS + "strategy = hg.strategy()\nmodel = hg.prepare(make())\nmodel.fit(x, y, epochs=3)\n"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment whose packages lie where another one's do, as far as it is looked at."""
    packages, others = tmp_path / "env/lib/python3.11/site-packages", tmp_path / "others"
    packages.mkdir(parents=True)
    (packages / "others.pth").write_text(f"import sys\n{others}\n")
    (others / "keras-3.9.1.dist-info").mkdir(parents=True)
    (tmp_path / "env/bin").mkdir()
    (tmp_path / "env/bin/python").symlink_to(sys.executable)
    return tmp_path / "env/bin/python"


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        (FIT, {}),
        (FIT, {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "0"}),
        ("import os\nos.environ['KERAS_BACKEND'] = 'tensorflow'\n" + FIT, {"KERAS_BACKEND": "jax"}),
        (FIT.replace("x, y, epochs=3", "data, callbacks=[hg.callback()]"), {}),
    ],
)
def test_fit_of_keras_3_over_workers_of_tensorflow_is_refused_before_the_start(
    text: str, environment: dict[str, str], python: Path, tmp_path: Path
) -> None:
    for named in (str(python), None):
        asked = replace(job(tmp_path, text, TOGETHER), python=named)
        with pytest.raises(
            UsageError, match=r"trains by `fit` of Keras 3 over TensorFlow.*set KERAS_BACKEND=jax"
        ):
            check(asked, {"PATH": str(python.parent), **environment})


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        (FIT, {"KERAS_BACKEND": "jax"}),
        (FIT, {"TF_USE_LEGACY_KERAS": "1"}),
        ("import tf_keras\n" + FIT, {}),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\n" + FIT, {}),
        ("import os\nos.environ.setdefault('KERAS_BACKEND', which())\n" + FIT, {}),
        (FIT + "strategy.experimental_distribute_dataset(data)\n", {}),
        (KERAS + "scaler.fit(x)\n", {}),
        (FIT, {"PATH": "/nowhere"}),
    ],
)
def test_fit_of_another_keras_or_a_loop_beside_it_is_let_through(
    text: str, environment: dict[str, str], python: Path, tmp_path: Path
) -> None:
    check(job(tmp_path, text, TOGETHER), {"PATH": str(python.parent), **environment})
    check(job(tmp_path, FIT, replace(TOGETHER, workers=1)), {"PATH": str(python.parent)})


def test_fit_of_keras_2_is_let_through(python: Path, tmp_path: Path) -> None:
    (tmp_path / "others/keras-3.9.1.dist-info").rename(tmp_path / "others/keras-2.15.0.dist-info")
    check(job(tmp_path, FIT, TOGETHER), {"PATH": str(python.parent)})


def test_a_script_that_imports_several_trains_with_whichever_it_calls(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCH + "def export():\n    from headgate.jax import init\n")
    assert source_facts(script).libraries == {"torch", "jax"}
    assert source_facts(script).library is None
    assert source_facts(tmp_path / "missing.py") == SourceFacts()


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("import headgate.torch as hg\nhg.report(loss=1.0)\n", True),
        ("import headgate.torch\nheadgate.torch.report(loss=1.0)\n", True),
        ("from headgate.torch import report as tell\ntell(loss=1.0)\n", True),
        ("from headgate.torch import *\nreport(loss=1.0)\n", True),
        ("def main():\n    from headgate import torch as hg\n    train(hg)\n", True),
        ("import headgate.torch as hg\n", False),
        ("try:\n    import headgate.torch as hg\nexcept ImportError:\n    hg = None\n", False),
        ("from headgate.torch import report\nprint('report')\n", False),
    ],
)
def test_a_library_that_is_imported_and_never_used_is_not_called(
    text: str, uses: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert source_facts(script).libraries == {"torch"}
    assert source_facts(script).called == ({"torch"} if uses else set())


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("import torch\nfrom torch import nn\n", True),
        (TORCH, False),
        ("from headgate import jax as hg\n", False),
        ("import beside\n", False),
        ("from beside.inner import train\n", False),
        ("from . import other\n", False),
        ("import importlib\nimportlib.import_module('headgate.torch')\n", False),
        ("def broken(:\n", False),
    ],
)
def test_workers_share_nothing_where_neither_the_script_nor_a_file_beside_it_can_import_a_library(
    text: str, apart: bool, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text(TORCH)
    assert facts_of(job(tmp_path, text, TOGETHER)).shares_nothing == apart
