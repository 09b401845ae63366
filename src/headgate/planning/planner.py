"""Find the best of many plans with few measurements: ask for a plan to measure, tell its
throughput.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from scipy.stats import norm, t

from headgate.model.cluster import Cluster, Node
from headgate.model.jobs import Job
from headgate.model.plans import Plan, Prediction
from headgate.model.profiles import Profile
from headgate.planning import fitting, physics
from headgate.planning.candidates import tells
from headgate.planning.cost import CostModel
from headgate.planning.features import NOTHING, Floats, Indices, features

# usual deviation of a measurement's logarithm, and its weight in measurements
_NOISE, _NOISE_WEIGHT = 0.012, 4
_CAUTION = 0.25  # penalty of uncertain plans, in deviations
_EQUAL = _NOISE / 2  # of the logarithm: differences that measurements can hardly detect
# deviation of a profile's times, once there are measurements: this many times its own, and at least
# this much
_TRUST = (3.0, 0.8)
_BUDGETS = (0.15, 0.3, 0.5, 0.75, 1.0)  # fractions of the plans, fewest tasks first
# the first ask for the plan that may itself be the best; earlier, too little is known
_IMPROVING = 4
_OUTCOMES = norm.ppf((np.arange(12) + 0.5) / 12)
_LOOKED_AT = 400  # most plans of a large space that are considered


class Planner:
    """Chooses from a space of plans. Deterministic: the same measurements give the same answers.

    With a profile it starts from the cost model, otherwise from usual values. Measurements correct
    both.

    Args:
        space: Plans, each once.
        job: The job. With a profile it decides on GPUs and encryption.
        cluster: Cluster of the plans; None: their nodes are unknown.
        profile: The job's profile; None, or one without a step time: unknown.
        seed: Selects which plans of a very large space are considered besides the most promising
            ones.
        measured_on: The node that the profile was measured on, to compare cores; None: as the
            profile says.

    Raises:
        ValueError: There is no plan.
        UsageError: There is a profile, and the cluster has no nodes.
    """

    def __init__(
        self,
        space: Sequence[Plan],
        *,
        job: Job | None = None,
        cluster: Cluster | None = None,
        profile: Profile | None = None,
        seed: int = 0,
        measured_on: Node | None = None,
    ) -> None:
        self._space = list(dict.fromkeys(space))
        if not self._space:
            raise ValueError("a Planner needs at least one plan; the space is empty")
        self._index = {plan: i for i, plan in enumerate(self._space)}
        self._cluster = cluster
        self._random = np.random.default_rng(seed)
        self._told: dict[int, list[float]] = {}
        self._batches: list[float] = []
        self._failed: dict[int, str] = {}
        self._tasks = np.array([plan.tasks for plan in self._space])
        self._belief: fitting.Belief | None = None
        self._batch: float | None = None  # batch of the features
        self._costs: CostModel | None = None
        if profile is not None and tells(profile):
            known_cluster = (
                cluster
                if cluster is not None
                else Cluster((Node("node", cores=1.0, memory_bytes=1 << 40),))
            )
            self._costs = CostModel(
                job or Job(name="job", run="true"), known_cluster, profile, measured_on=measured_on
            )

    def tell(self, plan: Plan, *, throughput: float, step_time: float | None = None) -> None:
        """Add a measurement of a plan; repeated measurements are averaged.

        Args:
            plan: A plan of the space.
            throughput: Samples a second.
            step_time: Seconds of a step. Gives the samples of a step if the plan leaves them to the
                script.

        Raises:
            ValueError: The plan is not in the space, or a number is not finite and positive.
        """
        for name, value in (("throughput", throughput), ("step_time", step_time)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"{name} is {value!r}; expected more than 0; fail() tells of a plan that "
                    "did not run"
                )
        at = self._at(plan)
        self._failed.pop(at, None)
        self._told.setdefault(at, []).append(math.log(throughput))
        if step_time is not None and plan.batch_per_worker is None:
            self._batches.append(throughput * step_time / plan.workers)
        self._belief = None

    def fail(self, plan: Plan, reason: str) -> None:
        """Exclude a plan that did not run: it is not asked for again, and is never the best.

        Raises:
            ValueError: The plan is not in the space.
        """
        self._failed[self._at(plan)] = reason
        self._belief = None

    @property
    def failed(self) -> dict[Plan, str]:
        """The plans that did not run, and why."""
        return {self._space[i]: reason for i, reason in self._failed.items()}

    def ask(self) -> Plan | None:
        """The plan most worth measuring next, to find the best one within each number of tasks.
        None: all were measured.

        Usually it is the plan that tells most about others (knowledge gradient: Frazier et al.,
        2009). Its gain is the expected increase in throughput of the plan that would be chosen
        next, summed over several budgets of tasks. Every other time from the fourth on, it is the
        plan with the greatest expected improvement over the best measured one (Jones et al., 1998).
        """
        open_to = np.array(
            [i for i in range(len(self._space)) if i not in self._told and i not in self._failed]
        )
        if open_to.size == 0:
            return None
        belief = self._believe()
        hopeful = belief.mean + belief.deviation
        asked = self._shortlist(open_to, hopeful)
        if not self._told:
            # Nothing is known: take the plan that tells most about all others.
            others = self._shortlist(self._running(), hopeful)
            among = belief.covariance(asked, others)
            information = (among**2).sum(1) / (belief.deviation[asked] ** 2 + _NOISE**2)
            return self._space[int(asked[np.argmax(information)])]
        ran = [sum(logs) / len(logs) for at, logs in self._told.items() if at not in self._failed]
        turn = len({*self._told, *self._failed}) + 1
        if ran and turn >= _IMPROVING and turn % 2 == 0:
            return self._space[int(asked[np.argmax(_improvement(belief, asked, max(ran)))])]
        gain = np.zeros(asked.size)
        running = self._running()
        for most in np.unique(np.quantile(self._tasks[running], _BUDGETS, method="lower")):
            within = self._shortlist(running[self._tasks[running] <= most], hopeful)
            level = np.exp(belief.mean[within] - belief.mean.max())
            moves = belief.covariance(asked, within) * level
            moves /= np.sqrt(belief.deviation[asked] ** 2 + _NOISE**2)[:, None]
            then = np.mean([(level + outcome * moves).max(1) for outcome in _OUTCOMES], axis=0)
            gain += then / level.max() - 1
        return self._space[int(asked[np.argmax(gain)])]

    def predict(self, plan: Plan) -> Prediction:
        """Predict a plan.

        Raises:
            ValueError: The plan is not in the space.
        """
        return self._prediction(self._at(plan))

    def best(self, where: Callable[[Plan], bool] | None = None) -> Prediction:
        """The plan to run: among the fastest, one that is well known. Among equal plans: the fewest
        nodes, then the fewest tasks.

        Args:
            where: Which plans may be chosen; None: all.

        Raises:
            ValueError: No plan that may run is left.
        """
        allowed = [i for i in self._running() if where is None or where(self._space[i])]
        if not allowed:
            tried = "; ".join(f"{reason}" for reason in dict.fromkeys(self._failed.values()))
            raise ValueError(
                "no plan is left to choose from"
                + (f"; those that failed: {tried}" if tried else "")
            )
        belief = self._believe()
        # The fastest of many uncertain plans is fast partly by luck.
        score = belief.mean - _CAUTION * belief.deviation
        highest = max(score[i] for i in allowed)
        equal = [i for i in allowed if score[i] >= highest - _EQUAL]
        return self._prediction(
            min(equal, key=lambda i: (_nodes(self._space[i]), self._space[i].tasks, -score[i]))
        )

    # --- what is known ----------------------------------------------------------------------------

    def _at(self, plan: Plan) -> int:
        if plan not in self._index:
            raise ValueError(f"{plan} is not in the space of this Planner")
        return self._index[plan]

    def _running(self) -> Indices:
        """Indices of plans that did not fail."""
        return np.array([i for i in range(len(self._space)) if i not in self._failed], np.intp)

    def _shortlist(self, of: Indices, hopeful: Floats) -> Indices:
        """The most promising plans, and some others."""
        if of.size <= _LOOKED_AT:
            return of
        first = of[np.argsort(-hopeful[of], kind="stable")]
        sampled = self._random.choice(first[_LOOKED_AT * 3 // 4 :], _LOOKED_AT // 4, replace=False)
        return np.concatenate([first[: _LOOKED_AT * 3 // 4], sampled])

    def _believe(self) -> fitting.Belief:
        if self._belief is None:
            logs_by_plan = {i: logs for i, logs in self._told.items() if i not in self._failed}
            usual_batch = median(self._batches) if self._batches else 1.0
            known = self._costs.known if self._costs is not None else NOTHING
            if self._batch != usual_batch:
                self._features, self._batch = (
                    features(self._space, self._cluster, usual_batch, known),
                    usual_batch,
                )
            spare = [
                log - sum(logs) / len(logs)
                for logs in logs_by_plan.values()
                for log in logs
                if len(logs) > 1
            ]
            free = sum(len(logs) - 1 for logs in logs_by_plan.values())
            noise = math.sqrt(
                (_NOISE_WEIGHT * _NOISE**2 + sum(x * x for x in spare)) / (_NOISE_WEIGHT + free)
            )
            logs = [sum(throughputs) / len(throughputs) for throughputs in logs_by_plan.values()]
            usual = (
                self._usual(list(logs_by_plan), logs)
                if self._costs is None
                else self._informed(self._costs.prior)
            )
            sigma = [noise / math.sqrt(len(throughputs)) for throughputs in logs_by_plan.values()]
            self._belief = fitting.fit(self._features, usual, list(logs_by_plan), logs, sigma)
        return self._belief

    def _informed(self, informed: physics.Prior) -> physics.Prior:
        """The prior from the profile, weakened as far as measurements replace it."""
        if not self._told:
            return informed
        terms = len(physics.TERMS)
        free = np.maximum(_TRUST[0] * informed.deviation[:terms], _TRUST[1])
        return physics.Prior(informed.mean, np.concatenate([free, informed.deviation[terms:]]))

    def _usual(self, indices: Sequence[int], logs: Sequence[float]) -> physics.Prior:
        """The prior of a job without a profile."""
        samples = self._features.samples
        step = (
            median(samples[i] / math.exp(log) for i, log in zip(indices, logs)) if indices else 1.0
        )
        batch = math.exp(np.log(samples / self._features.workers).mean())
        return physics.prior(step, batch, len(self._features.kind_names))

    def _prediction(self, at: int) -> Prediction:
        belief = self._believe()
        step = physics.seconds(belief.physics, self._features)
        free = 2.0 if self._costs is None else 8.0
        # The band is 90 % of Student's t: few measurements leave the deviations themselves
        # uncertain.
        mean, off = (
            belief.mean[at],
            t.ppf(0.95, max(len(self._told) / 2, free)) * belief.deviation[at],
        )
        # Parts by the physics, scaled to the predicted total.
        scale = float(step.throughput[at] / math.exp(mean))
        seconds = {
            name: float(values[at]) * scale
            for name, values in step.resources.items()
            if values[at] > 0
        }
        return Prediction(
            plan=self._space[at],
            throughput=math.exp(mean),
            low=math.exp(mean - off),
            high=math.exp(mean + off),
            seconds=seconds,
            bottleneck=max(seconds, key=lambda name: seconds[name]),
        )


def _improvement(belief: fitting.Belief, of: Indices, best: float) -> Floats:
    """Expected improvement of plans over the best measured one (of the logarithm)."""
    mean, deviation = belief.mean[of] - best, belief.deviation[of]
    return np.asarray(mean * norm.cdf(mean / deviation) + deviation * norm.pdf(mean / deviation))


def _nodes(plan: Plan) -> int:
    """Number of nodes of a plan, as far as it is placed."""
    return len({*plan.worker_nodes, *plan.server_nodes})
