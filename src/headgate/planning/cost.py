"""The cost of a plan: seconds of a step by part, from a job's profile and the nodes.

`planning.physics` has the formula. This module derives its parameters from profiles and node rates,
with their uncertainty. `Planner` starts from these parameters and corrects them by measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headgate.model.cluster import Cluster, Node
from headgate.model.errors import UsageError
from headgate.model.identifiers import TaskName
from headgate.model.jobs import Job
from headgate.model.plans import Plan, Prediction
from headgate.model.profiles import Profile
from headgate.model.units import say_bits, say_bytes, say_percent, say_seconds
from headgate.planning import devices, gpu_links, physics
from headgate.planning.features import Device, Features, Floats, Known, features
from headgate.planning.joining import alone
from headgate.planning.kinds import NodeKind, kinds
from headgate.planning.memory import STORE, memory

USUAL_RATE = 125e6
"""Assumed bytes a second of a NIC with unknown rate: 1 Gbit/s."""
_WIRE = 1.08  # bytes on the wire and gaps between chunks, relative to the bytes of the model
_INSIDE = 1.5e9  # bytes a second between processes of a node
# seconds, and fraction of α, for each factor e of busy GPUs on a node; see docs/plans.md
_CONTENTION = (2.2e-3, 0.13)
# deviation of the logarithm of that between the models it was fitted to
_UNLIKE = 1.1
_COPY = 15e9  # bytes a second of a core that copies
_ROUND = 2e-4  # seconds of a round trip to another node
_BUCKET = 25e6  # bytes of gradients in one all-reduce
_PIECE = 1e6  # bytes of gradients in one message to servers
# a server's messages of gradients, as `torch.ps.layout` has them
_CHUNKS, _CHUNK_BYTES = 48, (64 * 1024, 512 * 1024)
# usual bytes of an embedding's row, and of an index in a sample
_ROW, _INDEX = 256.0, 8.0
_TABLES = ("Embedding", "EmbeddingBag")

# CPU seconds, timed on processes that exchange small models, large models and tables:
# benchmarks/exchange_cost.py.
_PLAIN, _SECRET = 0.37e-9, 1.25e-9  # a byte sent or received, in the clear and encrypted
_AROUND = 1.1e-9  # a byte around a ring, both ways
# a step's all-reduce, for each other worker and for each table
_COLLECTIVE, _COLLECTIVE_TABLE = 0.9e-3, 1.0e-3
_EXCHANGE, _EXCHANGE_TABLE = 0.55e-3, 0.75e-3  # a worker's step with servers, and for each table
_ASKED, _ASKED_TABLE = 0.05e-3, 0.6e-3  # the same for each server
_ANSWER, _ANSWER_TABLE = 0.12e-3, 0.6e-3  # a server's for each worker
_CHUNK = (1e-4, 0.4e-4)  # a message of gradients, of a worker and of a server
_OF_ROW = (4e-7, 4.5e-7)  # a row of a table, of a worker and of a server
_BAND = 1.645  # standard deviations of a band that holds 90 %
_LEFT_OVER = 0.12  # of the logarithm: error of the formula

_SHARDED = (
    "its parameters are sharded (FSDP, ZeRO-3): a step gathers them twice and adds gradients "
    "up once, 3(w-1)/w of the "
    "model through each NIC, where an all-reduce (DDP, ZeRO-1, ZeRO-2) has 2(w-1)/w"
)

_MEANING = {
    "alpha": "compute that does not depend on the batch, of the slowest worker",
    "beta": "compute of its samples",
    "reading": "reading them, in one thread",
    "contention": "workers on a node share its host, memory and I/O",
    "straggling": "waiting for the slowest of several like it",
    "ring": "gradients once around a ring, through the slowest NIC of it",
    "ring_worker": "rounds of the ring, for each worker past the second",
    "ring_node": "rounds of the ring, for each node past the second",
    "inside": "gradients from worker to worker inside a node",
    "inside_worker": "rounds inside a node, for each worker past the second",
    "to_servers": (
        "gradients and parameters each way through the busiest NIC of a node with servers"
    ),
    "to_workers": "the same of a node without servers",
    "handling": "a worker's cores send and receive them",
    "collective": (
        "a worker's cores take part in them, and messages go there and back, for each other worker"
    ),
    "exchange": (
        "a worker's cores begin and end the exchange, and it waits for the way there and back"
    ),
    "update": "the busiest server receives them, adds them up and sends the sums",
    "worker": "messages of each worker",
    "server": "messages of each server",
}


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a step.

    Args:
        name: Its name in the formula.
        seconds: Seconds of a step, before overlap with other parts.
        meaning: What happens in this time.
        resource: The busy resource.
        how: Origin of the number.
    """

    name: str
    seconds: float
    meaning: str
    resource: str
    how: str


class CostModel:
    """The cost model of one job on one cluster.

    Args:
        job: The job. Its limits decide on GPUs and encryption.
        cluster: The cluster.
        profile: The job's profile.
        measured_on: The node that the profile was measured on; None: unknown, all cores count as
            equal.

    Attributes:
        grows: Whether each worker has the script's own batch, so that the global batch grows with
            the workers.

    Raises:
        UsageError: The profile does not tell the time of a step, or the cluster has no node.
    """

    def __init__(
        self, job: Job, cluster: Cluster, profile: Profile, *, measured_on: Node | None = None
    ) -> None:
        if not cluster.nodes:
            raise UsageError(f"job {job.name!r}: the cluster has no node to plan for")
        self.job = job
        self.cluster = cluster
        self.profile = profile = profile.with_parameters(job.parameters)
        self.grows = profile.observed and job.batch == "per-worker"
        self.kinds: tuple[NodeKind, ...] = kinds(cluster.nodes)
        gpus = job.limits.gpus != 0
        try:
            self.compute = tuple(
                devices.compute(profile, kind.node, measured_on, gpus) for kind in self.kinds
            )
        except ValueError as error:
            measured = profile.source == "profile" and not profile.is_busy
            cure = "state its plan instead: headgate run FILE --strategy allreduce --workers N"
            cure = cure if measured else "measure it: headgate profile FILE"
            raise UsageError(f"job {job.name!r}: {error}; {cure}") from None
        self.memory_of = memory(profile)
        self._dense, self._sparse = (
            float(profile.dense_bytes or 0),
            float(profile.sparse_bytes or 0),
        )
        self.batch = profile.batch or max((step.batch for step in profile.step_times), default=1)
        self._bytes = max(self._dense + self._sparse, 1.0)
        first = self.compute[0]
        self._alpha, self._beta = max(first.alpha, 1e-9), max(first.beta, 1e-12)
        self._inside = [self._inside_of(kind) for kind in self.kinds]
        self.known = self._known()
        self._how: dict[str, str] = {}
        self.prior = self._prior()
        self.notes = self._notes()

    # --- what is known ----------------------------------------------------------------------------

    def _known(self) -> Known:
        by_name: dict[str, Device] = {}
        for kind, compute_of_kind in zip(self.kinds, self.compute):
            work, reads = (
                max(compute_of_kind.beta, 1e-12) / self._beta,
                1 / compute_of_kind.core if compute_of_kind.read > 0 else 0.0,
            )
            device = Device(
                compute_of_kind.alpha / self._alpha,
                work,
                compute_of_kind.gpu,
                compute_of_kind.core,
                reads,
                compute_of_kind.bends,
            )
            by_name |= dict.fromkeys(kind.names, device)
        data = self.profile.dataset
        fastest = max(rate.bytes_per_second for rate in self._inside)
        inside = {
            name: fastest / rate.bytes_per_second
            for kind, rate in zip(self.kinds, self._inside)
            for name in kind.names
        }
        row = (data.bytes_per_sample or 0.0) / _INDEX * _ROW if data is not None else 0.0
        if self.profile.sparse_bytes_per_sample is not None:
            row = self.profile.sparse_bytes_per_sample + _INDEX * (
                self.profile.sparse_rows_per_sample or 0.0
            )
        return Known(
            devices=by_name,
            usual_rate=USUAL_RATE,
            inside=inside,
            dense=self._dense / self._bytes,
            sparse_sample=(row or self._sparse) / self._bytes,
            sparse_most=self._sparse / self._bytes,
            rows=self._of_rows(),
            batch=self.batch,
            plain=_AROUND / self._of_byte()[0] * (1.5 if self.profile.sharded else 1.0),
            late=(
                min(_BUCKET / max(self._dense, 1.0), 1.0),
                min(_PIECE / max(self._dense, 1.0), 1.0),
            ),
        )

    def _has_links(self, kind: NodeKind) -> bool:
        """Whether several GPUs of a node may cooperate."""
        return len(kind.node.gpus) > 1 and self.job.limits.gpus != 0

    def _inside_of(self, kind: NodeKind) -> gpu_links.Rate:
        """Bytes a second between workers within a node."""
        if self._has_links(kind):
            return gpu_links.all_reduce(kind.node)
        copies = kind.node.core_copy_bytes_per_second
        how = "from the rate of copies in memory" if copies else "usual, not measured"
        return gpu_links.Rate(_INSIDE * (copies / _COPY if copies else 1.0), 0.7, how)

    def _of_byte(self) -> tuple[float, float]:
        """CPU seconds of a worker and of a server for a byte of gradients, which returns as
        parameters.
        """
        chunk = min(max(self._dense / _CHUNKS, _CHUNK_BYTES[0]), _CHUNK_BYTES[1])
        both_ways = 2 * (_SECRET if self.job.encrypt else _PLAIN)
        return both_ways + _CHUNK[0] / chunk, both_ways + _CHUNK[1] / chunk

    def _of_rows(self) -> tuple[float, float]:
        """The same for a byte of a table's rows, relative to gradients."""
        rows, size = self.profile.sparse_rows_per_sample, self.profile.sparse_bytes_per_sample
        of_row = (size / rows if rows and size else _ROW) + _INDEX
        both_ways = 2 * (_SECRET if self.job.encrypt else _PLAIN)
        worker, server = (
            (cpu / of_row + both_ways) / dense for cpu, dense in zip(_OF_ROW, self._of_byte())
        )
        return worker, server

    def _prior(self) -> physics.Prior:
        size = self._bytes
        fastest = max(kind.node.nic_bytes_per_second or USUAL_RATE for kind in self.kinds)
        has_rates = all(kind.node.nic_bytes_per_second for kind in self.kinds)
        wire, unsure = _WIRE * size / fastest, 0.2 if has_rates else 1.0
        through = f"{say_bytes(size)} at {say_bits(fastest)}" + (
            "" if has_rates else ", which nobody said for every node"
        )
        handling, update = self._of_byte()
        tables = sum(self.profile.layers.get(kind, 0) for kind in _TABLES) if self._sparse else 0
        secret = "encrypted" if self.job.encrypt else "in the clear"
        error = max((fit.relative_error or 0.1 for fit in self.profile.fits), default=0.2)
        measured = math.hypot(max(error, 0.03), self.compute[0].deviation, self.profile.deviation)
        buckets = max(self._dense / _BUCKET, 1.0)
        trips = [trip for kind in self.kinds if (trip := kind.node.round_trip_seconds)]
        trip, unsure_turn = (max(trips), 0.7) if trips else (_ROUND, 1.0)
        turn = _ROUND / 2 + trip  # on a core and on the wire
        fast = max(self._inside)
        on_gpus = [i for i, kind in enumerate(self.kinds) if self._has_links(kind)] or range(
            len(self.kinds)
        )
        unsure_inside = max(self._inside[i].deviation for i in on_gpus)
        read = (
            self.profile.dataset.read_seconds_per_sample
            if self.profile.dataset is not None
            else None
        )
        grown, forward = devices.power(self.profile), self.profile.flops_per_sample_forward
        part = (
            forward / total_flops
            if forward and (total_flops := self.profile.flops_per_sample)
            else 1 / 3
        )
        # An all-reduce gathers the sums. Sharded parameters are gathered twice, and their gradients
        # are summed.
        passes, gathers = (
            (3, ", because parameters are sharded") if self.profile.sharded else (2, "")
        )
        usual = "usual, not measured"
        rounds = f"from round trips of {say_seconds(max(trips))} between nodes" if trips else usual
        values: dict[str, tuple[float, float, str]] = {
            "alpha": (self._alpha, measured, self.compute[0].how),
            "beta": (self._beta, measured, self.compute[0].how),
            "reading": (
                max(read or 0.0, 1e-12),
                math.hypot(0.3, self.profile.deviation),
                "measured in the training process",
            ),
            "contention": (
                _CONTENTION[0] + _CONTENTION[1] * self.compute[on_gpus[0]].alpha,
                _UNLIKE,
                "usual of GPUs in one node, not measured",
            ),
            "ring": (passes / 2 * wire, unsure, f"{passes}(w-1)/w times {through}{gathers}"),
            "ring_worker": (turn * buckets, unsure_turn, rounds),
            "ring_node": (turn / 4 * buckets, unsure_turn, rounds),
            "inside": (
                passes / 2 * size / fast.bytes_per_second,
                unsure_inside,
                fast.how + gathers,
            ),
            "inside_worker": (0.05 * size / fast.bytes_per_second, 1.0, usual),
            "to_servers": (wire, unsure, f"copies that cross the NIC, times {through}"),
            "to_workers": (wire, unsure, f"copies that cross the NIC, times {through}"),
            "handling": (handling * size, 0.5, f"timed of data {secret}, over the worker's cores"),
            "collective": (
                _COLLECTIVE + _COLLECTIVE_TABLE * tables + trip * (1 + tables),
                0.7,
                f"timed, and {rounds}",
            ),
            "update": (update * size, 0.5, f"timed of data {secret}, over the server's cores"),
            "exchange": (
                _EXCHANGE + _EXCHANGE_TABLE * tables + trip * (1 + tables),
                0.5,
                f"timed, and {rounds}",
            ),
            "worker": (_ANSWER + _ANSWER_TABLE * tables, 0.7, "timed, over the server's cores"),
            "server": (_ASKED + _ASKED_TABLE * tables, 0.7, "timed, over the worker's cores"),
            "straggling": (0.03, 0.7, usual),
            "hiding": (1.5, 0.5, usual),
            "cores": (
                *(grown or (0.7, 0.3)),
                "fitted to steps timed on several threads" if grown else usual,
            ),
            "streaming": (6.0, 0.5, usual),
            "forward": (
                part,
                0.2,
                "the forward pass over the whole, in FLOPs" if forward else usual,
            ),
        }
        self._how = {name: how for name, (_, _, how) in values.items()}
        speeds: dict[str, float] = {}
        for kind, compute_of_kind in zip(self.kinds, self.compute):
            speeds.setdefault(kind.name, math.hypot(compute_of_kind.deviation, 0.05))
        means = [math.log(values[name][0]) for name in physics.NAMES] + [0.0] * (len(speeds) - 1)
        deviations = [values[name][1] for name in physics.NAMES] + list(speeds.values())[1:]
        return physics.Prior(np.array(means), np.array(deviations))

    def _notes(self) -> tuple[str, ...]:
        notes = []
        unsaid = [kind for kind in self.kinds if not kind.node.nic_bytes_per_second]
        if unsaid:
            names = ", ".join(dict.fromkeys(kind.in_words for kind in unsaid))
            notes.append(
                f"no NIC rate is known of {names}: {say_bits(USUAL_RATE)} is assumed; add "
                "`nic:` to say it"
            )
        for kind, compute_of_kind in zip(self.kinds, self.compute):
            if compute_of_kind.deviation > 0.25:
                notes.append(f"compute on {kind.in_words}: {compute_of_kind.how}")
        for kind, rate in zip(self.kinds, self._inside):
            if rate.assumed:
                note = (
                    f"how GPUs of {kind.in_words} are joined is not known: {rate.assumed} "
                    "is assumed"
                )
                notes.append(
                    f"{note}; add `gpu_link:` to say it, or measure it there with: "
                    "headgate calibrate"
                )
        if self._sparse > 0 and self.profile.sparse_bytes_per_sample is None:
            notes.append(
                "rows of sparse layers that a sample touches are estimated from the bytes "
                "of a sample"
            )
        if self.profile.dense_bytes is None:
            notes.append("the profile has no size of the model: what is sent counts as nothing")
        if self.profile.batch is None:
            of_each = " of a worker" if self.grows else ""
            notes.append(
                f"the profile has no batch: {self.batch} samples a step{of_each} are assumed"
            )
        if self.profile.is_busy:
            used = "" if self.profile.others is None else f" {say_percent(self.profile.others)} of"
            waited = (
                f"its steps waited {say_percent(self.profile.waited)} of the time for a core, and "
                "may take much less"
            )
            note = f"the profile was taken while others used{used} the machine: {waited}"
            notes.append(f"{note}; the bands are wider for it; measure it again: headgate profile")
        if self.profile.sharded:
            notes.append(_SHARDED)
        if self.profile.alone or self.profile.observed:
            why = alone(self.job, self.profile)
            notes += [f"one task, because {why}"] if why else []
        return tuple(dict.fromkeys(notes))

    # --- predictions ------------------------------------------------------------------------------

    def features(self, plans: Sequence[Plan]) -> Features:
        """The features of plans, at least one.

        Raises:
            UsageError: A plan names an unknown node.
        """
        for plan in plans:
            for name in {*plan.worker_nodes, *plan.server_nodes} - self.known.devices.keys():
                raise UsageError(f"the plan names node {name!r}; expected nodes of the cluster")
        if self.grows:
            plans = [
                replace(plan, batch_per_worker=plan.batch_per_worker or self.batch)
                for plan in plans
            ]
        return features(plans, self.cluster, 1.0, self.known)

    def many(self, plans: Sequence[Plan]) -> tuple[Floats, Floats]:
        """Samples a second of plans, and the standard deviations of their logarithms."""
        return self._spread(self.features(plans))

    def _spread(self, of: Features) -> tuple[Floats, Floats]:
        # Steps of a whole deviation: communication hidden behind compute may not be hidden at a
        # third of the rate.
        logs, slopes = physics.slopes(self.prior.mean, of, self.prior.deviation)
        return np.exp(logs), np.sqrt(((slopes * self.prior.deviation) ** 2).sum(1) + _LEFT_OVER**2)

    def predictions(self, plans: Sequence[Plan]) -> list[Prediction]:
        """Predict plans, in their order."""
        if not plans:
            return []
        of = self.features(plans)
        step = physics.seconds(self.prior.mean, of)
        _, deviation = self._spread(of)
        predicted = []
        for i, plan in enumerate(plans):
            middle, off = float(step.throughput[i]), math.exp(_BAND * float(deviation[i]))
            parts = {
                name: float(values[i]) for name, values in step.resources.items() if values[i] > 0
            }
            bottleneck = max(parts, key=lambda name: parts[name])
            predicted.append(
                Prediction(plan, middle, middle / off, middle * off, parts, bottleneck)
            )
        return predicted

    def predict(self, plan: Plan) -> Prediction:
        """Predict a plan."""
        return self.predictions([plan])[0]

    def explain(self, plan: Plan) -> tuple[Term, ...]:
        """The parts of a plan's step that take time, longest first."""
        step = physics.seconds(self.prior.mean, self.features([plan]))
        terms = [
            Term(name, float(values[0]), _MEANING[name], physics.OF[name], self._how[name])
            for name, values in step.terms.items()
            if values[0] > 0
        ]
        return tuple(sorted(terms, key=lambda term: -term.seconds))

    # --- memory -----------------------------------------------------------------------------------

    def memory(self, plan: Plan) -> dict[TaskName, int]:
        """Predicted bytes of each task."""
        usual = self.batch / (plan.workers if plan.synchronous and not self.grows else 1)
        size, served = plan.batch_per_worker, plan.strategy == "ps"
        of_each = usual if size is None else size
        sizes = of_each if isinstance(of_each, tuple) else [of_each] * plan.workers
        held = [self.memory_of.of_worker(samples, served, plan.workers) for samples in sizes]
        if plan.workers > 1 and self.job.contract in ("torchrun", "deepspeed"):
            held[0] += STORE
        bytes_by_task = {TaskName.of("worker", i): int(samples) for i, samples in enumerate(held)}
        of_server = int(self.memory_of.of_server(plan.servers))
        return bytes_by_task | {TaskName.of("server", i): of_server for i in range(plan.servers)}
