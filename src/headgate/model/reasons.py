"""Why a job is in its state or has its share, and why something was refused: kinds and facts.

`model.reason_text` alone makes sentences of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headgate.model.records import READ, parse, plain


class PauseKind(StrEnum):
    """What a paused job keeps: all of its memory, a checkpoint, or its place in the queue."""

    FROZEN = "frozen"
    RELEASED = "released"
    HELD_BACK = "held-back"


class KeepsRoom(StrEnum):
    """Why a job is not ended for an urgent job: its user forbids pausing it, it would begin anew,
    or it is urgent itself.
    """

    NOT_PAUSABLE = "not-pausable"
    NO_CHECKPOINT = "no-checkpoint"
    URGENT = "urgent"


class ReasonKind(StrEnum):
    """The kinds of reasons. `docs/reasons.md` lists each kind with its facts."""

    TEXT = "text"

    # a waiting job
    BEING_PLANNED = "being-planned"
    BEING_STARTED = "being-started"
    AFTER_JOBS = "after-jobs"
    STARTS_IN = "starts-in"
    NEEDS_ROOM = "needs-room"
    AWAITS_NODES = "awaits-nodes"
    AWAITS_ENGINE = "awaits-engine"
    STARTED_AGAIN = "started-again"
    LOST_WITH_HUB = "lost-with-hub"
    TRIED_AGAIN = "tried-again"
    TRIED_AS_ONE_TASK = "tried-as-one-task"
    GIVEN_WORKERS = "given-workers"

    # a running job
    STARTED = "started"
    TAKEN_UP = "taken-up"
    RESIZED = "resized"
    CHANGED_BY_USER = "changed-by-user"
    UNPAUSED = "unpaused"
    EVALUATING = "evaluating"
    WORKERS_APART = "workers-apart"

    # a paused job
    PAUSES = "pauses"
    PAUSED = "paused"

    # why a job or a task is ended
    USER_ASKED = "user-asked"
    STOPPED_BY_USER = "stopped-by-user"
    KILLED_BY_USER = "killed-by-user"
    STOPPED_BEFORE_START = "stopped-before-start"
    STOPPED_DIFFERS = "stopped-differs"
    STOPPED_EARLY = "stopped-early"
    GOAL_REACHED = "goal-reached"
    TIMED_OUT = "timed-out"
    MAKES_ROOM = "makes-room"
    MADE_ROOM = "made-room"
    GIVES_BACK = "gives-back"
    BETTER_PLAN = "better-plan"
    NODE_CAME = "node-came"
    TRAINING_OVER = "training-over"
    WORKERS_ENDED = "workers-ended"

    # how a task ended, or was lost
    EXIT = "exit"
    OF_TASK = "of-task"
    OUT_OF_GPU_MEMORY = "out-of-gpu-memory"
    TASK_LOST = "task-lost"
    NODE_GONE = "node-gone"
    FELL_BEHIND = "fell-behind"
    LOST_TOUCH = "lost-touch"
    PORT_TAKEN = "port-taken"
    NOT_READY = "not-ready"
    READY_LATE = "ready-late"
    READY_UNREADABLE = "ready-unreadable"
    CHECKPOINT_LOST = "checkpoint-lost"
    OUTGREW_WORKERS = "outgrew-workers"

    # the consequence for its job
    LOST_AT_END = "lost-at-end"
    OTHERS_GO_ON = "others-go-on"
    TASK_REPLACED = "task-replaced"
    JOB_RESTARTED = "job-restarted"
    JOB_WIDENED = "job-widened"
    CANNOT_GO_ON = "cannot-go-on"
    MEMORY_ADVICE = "memory-advice"

    # how a job ended
    FINISHED = "finished"
    ENDED_AS_ASKED = "ended-as-asked"
    NO_ANSWER = "no-answer"
    IN_DOUBT = "in-doubt"
    SKIPPED = "skipped"
    SKIPPED_IN_DOUBT = "skipped-in-doubt"
    NO_CHECKPOINT_LEFT = "no-checkpoint-left"
    NO_NODES = "no-nodes"
    NO_PLACE = "no-place"
    NO_END = "no-end"

    # a job's share
    NO_POLICY = "no-policy"
    LEFT_BY_OTHERS = "left-by-others"
    PINNED = "pinned"
    LIFTED = "lifted"
    EQUAL_SHARE = "equal-share"
    WORK_LEFT = "work-left"
    WORK_UNKNOWN = "work-unknown"
    ENDS_LATE = "ends-late"
    DIVERGES = "diverges"
    STALLED = "stalled"
    LEAST_SERVICE = "least-service"
    FAIRNESS = "fairness"
    LOSS_DROP = "loss-drop"
    NO_CURVE = "no-curve"
    GROWTH = "growth"
    LIMITED_BY_GROWTH = "limited-by-growth"
    ALL_COMPLETING = "all-completing"
    ON_TRIAL = "on-trial"
    LENDS_CORES = "lends-cores"
    CORES_BUY_STEPS = "cores-buy-steps"
    FEW_CORES_DO = "few-cores-do"
    BY_POLICY = "by-policy"

    # warnings
    GOAL_IN_DOUBT = "goal-in-doubt"
    POLICY_FAILED = "policy-failed"
    SHARE_DROPPED = "share-dropped"

    # as a run begins
    HAS_NAMESAKE = "has-namesake"
    GPU_NEED_UNKNOWN = "gpu-need-unknown"
    LEVERS_MISSING = "levers-missing"
    VARIABLES_NOT_SENT = "variables-not-sent"
    SLURM_SHARE = "slurm-share"
    CORES_SHARED = "cores-shared"
    NO_RUN_DELETED = "no-run-deleted"
    RUNS_DELETED = "runs-deleted"
    GPUS_NOT_SEEN = "gpus-not-seen"
    GPU_MISSING = "gpu-missing"
    OUT_OF_REACH = "out-of-reach"
    GUESTS_EMULATED = "guests-emulated"
    INPUT_ENDS_EARLY = "input-ends-early"
    CLIENT_SAYS = "client-says"
    ARBITER_AWAY = "arbiter-away"
    HOLDS_IDLE_GPUS = "holds-idle-gpus"
    HELD_FOR_PROOF = "held-for-proof"
    HOLDS_IDLE_MEMORY = "holds-idle-memory"
    ADMINISTRATOR = "administrator"

    # plans, trials and proofs
    PLANNED = "planned"
    MOVED = "moved"
    NO_PLAN = "no-plan"
    TOO_FEW_SAMPLES = "too-few-samples"
    TRIED_WITH_MORE = "tried-with-more"
    VERIFIED = "verified"
    PROVED = "proved"
    NOT_PROVED = "not-proved"
    NOT_PAUSED = "not-paused"
    GPU_SHARED = "gpu-shared"
    NO_TURNS = "no-turns"
    AT_ONCE_MEASURED = "at-once-measured"

    # what tasks do and say
    TASK_READY = "task-ready"
    JOINED = "joined"
    TASK_SAYS = "task-says"
    PROCESSES_KILLED = "processes-killed"
    UNCONTROLLED = "uncontrolled"
    SHARE_NOT_SET = "share-not-set"
    RUNS_ALREADY = "runs-already"
    OTHER_PYTHON = "other-python"
    BOX_LEFT = "box-left"
    OUTPUT_LOST = "output-lost"
    OUTPUT_WRITTEN = "output-written"
    MESSAGE_NOT_TAKEN = "message-not-taken"
    MESSAGE_FLOOD = "message-flood"
    MESSAGE_TOO_LONG = "message-too-long"
    CANNOT_CONNECT = "cannot-connect"
    MANY_STRANGERS = "many-strangers"
    SOCKET_GONE = "socket-gone"
    ENGINE_SAYS = "engine-says"
    ENGINE_HOLDS = "engine-holds"
    RECOVERED = "recovered"
    CAUGHT_UP = "caught-up"
    NO_STEP = "no-step"
    STEPS_AGAIN = "steps-again"
    LOSS_NOT_A_NUMBER = "loss-not-a-number"
    METRICS_LEFT_OUT = "metrics-left-out"
    STEPS_UNSEEN = "steps-unseen"
    METRIC_MISSING = "metric-missing"
    PATTERN_TOO_SLOW = "pattern-too-slow"
    LINE_UNREADABLE = "line-unreadable"
    MESSAGE_UNREADABLE = "message-unreadable"
    MESSAGE_SENSELESS = "message-senseless"
    UNCONNECTED = "unconnected"
    OPEN_ENDPOINTS = "open-endpoints"
    OPEN_MEETING = "open-meeting"

    # files
    FILES_EDITED = "files-edited"
    RESUMES_WITH = "resumes-with"
    STARTS_OVER = "starts-over"
    CHECKPOINT_NOT_SAVED = "checkpoint-not-saved"
    CHECKPOINTS_AGAIN = "checkpoints-again"
    PROFILE_NOT_STORED = "profile-not-stored"
    FILE_WRITTEN_TWICE = "file-written-twice"
    WROTE_OUTSIDE = "wrote-outside"
    LEFT_SHARED_MEMORY = "left-shared-memory"
    FOLDER_GONE = "folder-gone"
    HUB_CAME_AGAIN = "hub-came-again"
    SOCKET_MADE_AGAIN = "socket-made-again"
    STORE_FAILS = "store-fails"
    STORE_WRITES = "store-writes"
    TRACKER_FAILS = "tracker-fails"
    TRACKER_WRITES = "tracker-writes"
    TRACKER_MISSES = "tracker-misses"
    NOTICE_MISSED = "notice-missed"

    # nodes, and what else runs there
    NODE_JOINED = "node-joined"
    NODE_LEFT = "node-left"
    NODE_SAYS = "node-says"
    NODE_LEFT_OUT = "node-left-out"
    NODE_CUT_OFF = "node-cut-off"
    NODE_LINKED = "node-linked"
    NODE_SLOW = "node-slow"
    NODE_NOT_SLOW = "node-not-slow"
    KILLED_OUTSIDE = "killed-outside"
    INTERNAL_ERROR = "internal-error"


class StartOver(StrEnum):
    """Why a script does not resume from the latest checkpoint that it saved by itself."""

    UNASKED = "unasked"
    """Nothing tells how it resumes."""
    DAMAGED = "damaged"
    WRITTEN_ANEW = "written-anew"
    """It was being written over."""
    GONE = "gone"
    ELSEWHERE = "elsewhere"
    """Another node alone has it."""


class CureKind(StrEnum):
    """What a user may do about a job that ran out of memory.

    A fact gives a cure as its kind and parameters: `{"kind": "other-gpu", "node": "a", "gpu": 1,
    "free_bytes": 8589934592}`.
    """

    SMALLER_BATCH = "smaller-batch"
    LESS_GPU_MEMORY = "less-gpu-memory"
    HIGHER_LIMIT = "higher-limit"
    OTHER_NODES = "other-nodes"
    DIVIDE_MODEL = "divide-model"
    SEVERAL_WORKERS = "several-workers"
    MORE_NODES = "more-nodes"
    GIVE_BACK = "give-back"
    STATE_GPU_MEMORY = "state-gpu-memory"
    OTHER_GPU = "other-gpu"


class RefusalKind(StrEnum):
    """The kinds of refusals: of an entry in a policy's decision, or of a plan."""

    NO_SUCH_JOB = "no-such-job"
    NO_SHARE = "no-share"

    # no plan
    TOO_MANY_TASKS = "too-many-tasks"
    NOT_IN_GUESTS = "not-in-guests"
    NODES_TAKEN = "nodes-taken"
    UNKNOWN_NODE = "unknown-node"
    NODE_TOO_SMALL = "node-too-small"
    NO_NODE_FITS = "no-node-fits"
    NO_ROOM_LEFT = "no-room-left"
    NO_LAYOUT = "no-layout"

    # one node, or a plan as a whole
    TOO_FEW_GPUS = "too-few-gpus"
    TOO_LITTLE_MEMORY = "too-little-memory"
    TOO_LITTLE_GPU_MEMORY = "too-little-gpu-memory"
    KIND_TAKEN = "kind-taken"
    MODEL_TOO_LARGE = "model-too-large"
    BATCH_TOO_SMALL = "batch-too-small"
    TRAINS_ALONE = "trains-alone"
    NO_ROOM_FOR_STEP = "no-room-for-step"


Facts = Mapping[str, Any]
"""Plain JSON values by name. A value may be a `Reason`, whose JSON has `kind` and `facts`."""


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"kind", "facts"}:
            return parse(Refusal if value["kind"] in set(RefusalKind) else Reason, value)
        return {name: _read(fact) for name, fact in value.items()}
    return tuple(map(_read, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job is in its state, has its share, or has a warning.

    Args:
        kind: The kind of reason.
        facts: Known facts. Unknown ones are left out.

    Example:
        >>> Reason.of(ReasonKind.TIMED_OUT, seconds=90.0).plain()
        {'kind': 'timed-out', 'facts': {'seconds': 90.0}}
    """

    kind: ReasonKind
    facts: Facts = field(default_factory=dict, metadata={READ: _read})

    def __post_init__(self) -> None:
        if any(isinstance(fact, list) for fact in self.facts.values()):
            facts = {name: _frozen(fact) for name, fact in self.facts.items()}
            object.__setattr__(self, "facts", facts)

    @classmethod
    def of(cls, kind: ReasonKind, **facts: object) -> Reason:
        """A reason with the given facts, without those that are None or empty."""
        return cls(kind, _known(facts))

    @classmethod
    def read(cls, value: Facts) -> Reason:
        """Parse a reason from its JSON.

        Raises:
            KeyError, TypeError, ValueError: This version does not know it.
        """
        return parse(cls, value)

    @property
    def root(self) -> Reason:
        """What a job was asked to end for, behind how it ended."""
        return self.facts["after"] if self.kind is ReasonKind.ENDED_AS_ASKED else self

    def plain(self) -> dict[str, Any]:
        """The reason as JSON."""
        json: dict[str, Any] = plain(self)
        return json


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was refused: a kind and facts, like a `Reason`."""

    kind: RefusalKind
    facts: Facts = field(default_factory=dict, metadata={READ: _read})


def _known(facts: Facts) -> Facts:
    return {
        name: fact
        for name, fact in facts.items()
        if fact is not None and not (isinstance(fact, str | Sequence | Mapping) and not fact)
    }


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
