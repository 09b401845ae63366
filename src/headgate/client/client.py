"""Run jobs from Python: `headgate.Client` and `headgate.run`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from headgate.client.asynchronous import AsyncRun
from headgate.client.explaining import RunComparison, compare
from headgate.client.notebook import runs_table
from headgate.client.run import Run
from headgate.client.starting import clean, connect_or_start, take_up
from headgate.client.submitting import submission, submitted
from headgate.engines.base import LOCAL, EngineSpec
from headgate.engines.engine_options import usual
from headgate.hub.connection import HubConnection, HubGoneError
from headgate.hub.submission import Submission, reach
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.jobs import Job
from headgate.recorded import runs
from headgate.recorded.runs import RunSummary


class Client:
    """Runs jobs through the hub. Starts a hub if none runs.

    Jobs go on after the client is closed. Methods may be called from several threads. `async with`
    gives an `AsyncClient`, whose methods are awaited.

    Example:
        >>> with headgate.Client() as client:
        ...     run = client.run(headgate.Job(name="a", script="a.py"))
        ...     print(run.wait().state, run.logs(tail=5))
    """

    def __init__(self) -> None:
        self._hub: HubConnection | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Client({str(runs.home())!r})"

    def _repr_html_(self) -> str:
        return runs_table(self.runs())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> AsyncClient:
        return AsyncClient(self)

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the hub. Submitted jobs go on."""
        with self._lock:
            if self._hub is not None:
                self._hub.close()
                self._hub = None

    def run(
        self,
        *jobs: Job,
        policy: str | None = None,
        cluster: str | None = None,
        engine: str = LOCAL.name,
        address: str = "",
        shared_files: bool = False,
    ) -> Run:
        """Start jobs side by side and return at once. The arguments are those of `headgate.run`.

        Raises:
            UsageError: The input is invalid.
            HubError: No hub could be started.
        """
        return self.submit(placed(jobs, cluster, engine, address, shared_files), policy)

    def submit(self, jobs: Submission, policy: str | None = None) -> Run:
        """Start the jobs of a prepared submission and return at once.

        Raises:
            UsageError: The hub refuses it.
            HubError: No hub could be started.
        """
        with self._lock:
            answer = self._connected().submit(jobs.plain(), policy, attach=False)
        return Run(Path(answer["path"]))

    def find(self, run: str | None = None) -> Run:
        """Find a run by its id or a part of its id; None: the latest run.

        Raises:
            NotFoundError: No run matches.
            UsageError: Several runs match.
        """
        take_up()
        return Run(runs.find(run))

    def compare(self, first: str, second: str) -> RunComparison:
        """Say what differs between two runs, given by their ids or parts of them.

        Jobs of the same name are compared; if each run has one job, those two.

        Raises:
            NotFoundError: No run matches.
            UsageError: Several runs match.
            StorageError: A run's store cannot be read.
        """
        return compare(runs.find(first), runs.find(second))

    def runs(self) -> tuple[RunSummary, ...]:
        """All runs, oldest first, except those with a damaged store."""
        clean()
        summaries = []
        for folder in runs.listing():
            try:
                summaries.append(runs.summary(folder))
            except HeadgateError:
                continue
        return tuple(summaries)

    def _connected(self) -> HubConnection:
        if self._hub is not None:
            try:
                self._hub.ask("runs")
            except HubGoneError:
                self._hub.close()
            else:
                return self._hub
        clean()
        self._hub = connect_or_start()
        return self._hub


class AsyncClient:
    """A `Client` whose methods are awaited; made by `async with headgate.Client()`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(
        self,
        *jobs: Job,
        policy: str | None = None,
        cluster: str | None = None,
        engine: str = LOCAL.name,
        address: str = "",
        shared_files: bool = False,
    ) -> AsyncRun:
        """Start jobs side by side and return at once; see `Client.run`."""
        run = await asyncio.to_thread(
            self._client.run,
            *jobs,
            policy=policy,
            cluster=cluster,
            engine=engine,
            address=address,
            shared_files=shared_files,
        )
        return AsyncRun(run)

    async def find(self, run: str | None = None) -> AsyncRun:
        return AsyncRun(await asyncio.to_thread(self._client.find, run))

    async def compare(self, first: str, second: str) -> RunComparison:
        return await asyncio.to_thread(self._client.compare, first, second)

    async def runs(self) -> tuple[RunSummary, ...]:
        return await asyncio.to_thread(self._client.runs)


def placed(
    jobs: tuple[Job, ...], cluster: str | None, engine: str, address: str, shared_files: bool
) -> Submission:
    """A submission of jobs, with the place where they run.

    Raises:
        UsageError: The options contradict each other.
    """
    name, nodes = reach(cluster) if cluster is not None else ("", ())
    where = EngineSpec(engine, address or usual(engine, "address"), shared_files)
    if cluster is not None and where != LOCAL:
        raise UsageError(
            f"found cluster={cluster!r} with engine {engine!r}, which has nodes of its "
            "own; give one"
        )
    return submission(jobs, cluster=name, nodes=nodes, engine=where)


def run(
    *jobs: Job,
    policy: str | None = None,
    cluster: str | None = None,
    engine: str = LOCAL.name,
    address: str = "",
    shared_files: bool = False,
) -> runs.RunSummary:
    """Run jobs side by side and wait until all have ended.

    Args:
        jobs: The jobs to run.
        policy: Policy that moves shares between jobs. None: the policy of the jobs that run
            already, or else `headgate`.
        cluster: Name or file of a running lab whose nodes run the jobs; None: this machine.
        engine: Engine that starts tasks: `local`, or another that `headgate doctor` lists.
        address: Address of the engine's cluster. Empty: taken from the environment, or else a
            cluster is started on this machine.
        shared_files: Whether the nodes of that cluster see this machine's files. If so, no files
            are sent.

    Returns:
        How the run and each of its jobs ended. `path` is the run's folder, with its logs and
        `report.html`.

    Raises:
        UsageError: The input is invalid.
        HubError: No hub could be started, or the hub died.

    Example:
        >>> import headgate
        >>> trains = headgate.Job(name="a", script="a.py")
        >>> headgate.run(trains, headgate.Job(name="b", run="make b"))
    """
    handed_in = placed(jobs, cluster, engine, address, shared_files)
    with submitted(handed_in, policy, kill=False) as watch:
        for _ in watch.follow(60.0):
            pass
    return runs.summary(watch.path)
