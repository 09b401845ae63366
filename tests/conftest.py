"""What all tests share: a Headgate folder of their own, no silent skips where every optional part
is required, and who may run beside whom.
"""

from __future__ import annotations

import gc
import os
import re
import resource
import select
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController

CONTRACTS = "/headgate/testing/"
"""A skip that a contract suite raises itself says what its subject does not claim; no installation
would cure that.
"""

OF_THE_MACHINE = {"distributed", "engines", "faults", "hub", "isolation", "lab", "studies", "v2"}
"""Tests of hubs, boxes and labs, which look at the machine as a whole and at how its cores are
shared: where tests run in several processes, one of these runs after another, and what runs beside
them has to stand back.
"""

BESIDE = (
    "tests/isolation/guests/test_guest_jobs.py",
    "tests/isolation/guests/test_guest_containers.py",
    *(f"tests/hub/test_{name}.py" for name in ("allocations", "bundle", "endings", "engines")),
    *(f"tests/hub/test_{name}.py" for name in ("event_log", "gpu_memory", "heirs", "hosts")),
    *(f"tests/hub/test_{name}.py" for name in ("launched", "launched_plans", "mpi", "odd_bytes")),
    *(f"tests/hub/test_{name}.py" for name in ("resumed_variables", "resuming", "roles", "slurm")),
    *(f"tests/hub/test_{name}.py" for name in ("stopping", "tasks", "terminals", "traces")),
    *(f"tests/hub/test_{name}.py" for name in ("unconnected", "visible_gpus")),
)
"""Of these, tests of what a hub does, not of how fast: they go with the others."""

RAY = "ray"
"""Those that start Ray, where one serves most of them."""

WHOLE = {RAY, "keras", "jax", "torch"}
"""Of these one process has all: an interpreter that has imported the framework serves them."""

FIRST = ("torch", "keras", "jax", "test_docs.py", "test_readme.py", RAY)
"""What to begin with beside those of the machine, in this order: what takes longest is not to be
the last.
"""

APART = "tests/test_docs.py"
"""Whose tests share nothing that takes time to make: one by one to whoever is free. Of any other
file one process has all, so that what a module shares is made once.
"""

SLOW = (
    *("tests/ray/", "tests/engines/ray/", "tests/lab/", "tests/faults/"),
    *("tests/keras/", "tests/jax/", "tests/isolation/containers/", "tests/isolation/guests/"),
    *(f"tests/test_docs.py::test_{name}" for name in ("command_lines_of", "python_blocks_run")),
    *(f"tests/torch/test_{name}.py" for name in ("together", "extra_state", "spinning")),
    *("tests/sampling/test_training_process.py", "tests/web/test_page.py"),
    "tests/web/test_accessible.py",
    *(f"tests/hub/test_{name}.py" for name in ("allocations", "delivered", "endings", "engines")),
    *(f"tests/hub/test_{name}.py" for name in ("explaining", "explaining_devices", "hosts", "lab")),
    *(f"tests/hub/test_{name}.py" for name in ("launched_plans", "many", "memory_by_learning")),
    *(f"tests/hub/test_{name}.py" for name in ("odd_jobs", "outside_memory", "proving")),
    *(f"tests/hub/test_{name}.py" for name in ("replanning", "resumed_variables", "resuming")),
    *(f"tests/hub/test_{name}.py" for name in ("script_saves", "slurm", "standstill")),
    "tests/hub/test_start_estimates.py",
    *(f"tests/hub/test_{name}.py" for name in ("stopping", "tasks", "unconnected", "visible_gpus")),
)
"""What `make test` leaves to `make test-all`, where all of a folder or file are such: see
CONTRIBUTING.md.
"""

QUICK = (
    "tests/faults/test_deaths.py::test_of_a_task_fails_its_job_and_no_other",
    "tests/hub/test_engines.py::test_what_an_engine_says_of_use",
    "tests/hub/test_lab.py::test_tasks_are_on_their_nodes",
    "tests/hub/test_script_saves.py::test_a_script_without_a_known_argument_is_asked_about",
    "tests/hub/test_stopping.py::test_stop_ends_one_job_and_leaves_the_other",
    "tests/hub/test_tasks.py::test_tasks_know_each_other",
    "tests/isolation/containers/test_container.py::test_jobs_run_in_containers",
    "tests/jax/test_script.py::test_the_state_after_the_last_report",
    "tests/keras/test_together.py::test_a_job_of_tensorflow_s_parameter_servers",
    "tests/lab/test_commands.py::test_exec_hands_on_input_output_and_exit_code",
    "tests/sampling/test_training_process.py::test_a_process_that_trains_is_no_worker_of_a_loader[spawn",
    "tests/web/test_accessible.py::test_axe_finds_nothing_serious_and_pages_fit[light-1280]",
    "tests/web/test_page.py::test_three_jobs_are_followed_as_they_learn",
)
"""Of these, the one of each capability that `make test` runs."""

NICENESS = 19

MOST_BYTES = 8 << 30
"""Memory that a process of a test may fill, a hub or a task too; the largest take a third."""

REQUIRE_ALL = os.environ.get("HEADGATE_TEST_REQUIRE_ALL") == "1"

# What JAX compiles is kept: tests train the same small networks again and again, in many processes.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / "build" / "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Settings of whoever runs the tests are not theirs.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parents[1] / "build" / "config")
# What runs for seconds is not worth optimising for seconds.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`HEADGATE_HOME` of this test; a hub that it started is gone when it ends."""
    from headgate.machine.allocation import BATCH_JOBS

    folder = tmp_path / "home"
    monkeypatch.setenv("HEADGATE_HOME", str(folder))
    # what tests of them say by the job, or by leaving it out
    monkeypatch.setenv("HEADGATE_VERIFY", "off")
    monkeypatch.setenv("HEADGATE_REPORT", "off")
    # a hub that a test kills leaves nothing behind
    monkeypatch.setenv("HEADGATE_ON_HUB_DEATH", "stop")
    for variable in (
        "HEADGATE_CHANNEL",
        "HEADGATE_TASK",
        "HEADGATE_RESUME",
        "HEADGATE_HUB",
        *BATCH_JOBS,
    ):
        monkeypatch.delenv(variable, raising=False)
    yield folder
    if (folder / "hub").exists():
        end_hub()


def end_hub() -> None:
    """End the hub of `HEADGATE_HOME`, and with it whatever it still runs."""
    from headgate.hub.connection import connect

    hub = connect()
    if hub is None:
        return
    hub.close()
    try:
        pidfd = os.pidfd_open(hub.pid)
    except ProcessLookupError:  # it was ending
        return
    try:
        for patience in (5, 120):  # asked a second time, it kills what does not end
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            ended, _, _ = select.select([pidfd], [], [], patience)
            if ended:
                return
    finally:
        os.close(pidfd)
    raise TimeoutError("the hub did not end within 120 s of a second SIGTERM")


def _part(nodeid: str) -> str:
    """The folder or file of `tests/` that a test belongs to."""
    return (
        RAY
        if nodeid.startswith(("tests/engines/ray/", "tests/ray/"))
        else re.split("[/:]", nodeid)[1]
    )


def _is_of_the_machine(nodeid: str) -> bool:
    return _part(nodeid) in OF_THE_MACHINE and not nodeid.startswith(BESIDE)


def pytest_configure(config: pytest.Config) -> None:
    """Where tests run in several processes, one that runs away fails with `MemoryError`, before the
    kernel kills what it likes.
    """
    if hasattr(config, "workerinput"):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, most))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """All tests of the machine in one process, in their order; the others file by file to whoever
    is free. What a process that died had left is done by another.
    """
    from xdist.scheduler import LoadScopeScheduling

    class MachineAndOthers(LoadScopeScheduling):  # type: ignore[misc]  # has no types
        def _split_scope(self, nodeid: str) -> str:
            if _is_of_the_machine(nodeid):
                return "machine"
            if _part(nodeid) in WHOLE:
                return _part(nodeid)
            return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]

        def remove_node(self, node: WorkerController) -> str | None:
            """The test that a process died in, which is not run again."""
            left = {
                scope: {nodeid: False for nodeid, is_done in unit.items() if not is_done}
                for scope, unit in self.assigned_work[node].items()
            }
            pending = [(scope, nodeid) for scope, unit in left.items() for nodeid in unit]
            for scope, nodeid in pending[:1]:
                del left[scope][nodeid]
            self.assigned_work[node] = {scope: unit for scope, unit in left.items() if unit}
            super().remove_node(node)
            return pending[0][1] if pending else None

        def _reschedule(self, node: WorkerController) -> None:
            if node in self.registered_collections:  # not of one that has just been started
                super()._reschedule(node)

    config.option.loadscopereorder = False
    return MachineAndOthers(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW) and not item.nodeid.startswith(QUICK):
            item.add_marker("slow")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _order(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()  # of what is collected nothing goes
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _order(nodeid: str) -> int:
    """Who has begun with others has none of the machine's to come."""
    part = _part(nodeid)
    return (
        0
        if _is_of_the_machine(nodeid)
        else 1 + FIRST.index(part)
        if part in FIRST
        else 1 + len(FIRST)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    beside = "PYTEST_XDIST_WORKER" in os.environ and not _is_of_the_machine(item.nodeid)
    if beside and (niceness := os.nice(0)) < NICENESS:
        os.nice(NICENESS - niceness)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("hardware") is None and not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where every optional part is required, a skip is a failure that names what is missing."""
    if not REQUIRE_ALL or report.outcome != "skipped":
        return
    where, reason = "", str(report.longrepr)
    if isinstance(report.longrepr, tuple):
        where, _, reason = report.longrepr
    if CONTRACTS not in where:
        report.outcome = "failed"
        report.longrepr = (
            f"skipped although HEADGATE_TEST_REQUIRE_ALL is set: {reason.removeprefix('Skipped: ')}"
        )
