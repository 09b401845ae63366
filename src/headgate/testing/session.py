"""What the session of every framework must do for a script: a suite to subclass.

    class TestMine(SessionContract):
        def connect(self, environment):
            return MySession(environment, Channel.open(environment, "mine",
            my_framework.__version__, None))

        def train(self, session, at_step):
            weights = session.prepare(...)
            for _ in range(LOOPS):
                for epoch in session.epochs(EPOCHS):
                    for batch in session.batches(...):  # STEPS of them, in an order that is drawn
                    for each epoch
                        ...
                        at_step()
                        session.report(loss)
            return weights

Each attempt is a task of its own in this process, on a real channel. A job of several tasks is not
covered.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headgate.model.profiles import Profile
from headgate.model.records import parse
from headgate.task import Stop, TaskEnvironment, saving
from headgate.task.saving import ResumeError
from headgate.task.session import TaskSession
from headgate.testing.listener import ChannelListener
from headgate.testing.wait import until

LOOPS, EPOCHS, STEPS = 2, 2, 6
"""Number of loops over epochs in a training, epochs in each, and steps in an epoch."""
TOTAL = LOOPS * EPOCHS * STEPS
HANG_UP = "hang up"
"""In place of a request: the engine hangs up."""


@dataclass
class TrainingAttempt:
    """The result of a training.

    Args:
        trained: The result of `train`; None if it was ended.
        steps: Number of its steps.
        messages: The messages to the engine.
        refused: Why it did not begin; None: it did.
    """

    trained: Any = None
    steps: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    refused: ResumeError | None = None

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The messages of that type."""
        return [message for message in self.messages if message["type"] == kind]

    @property
    def checkpoint(self) -> dict[str, Any]:
        """The last checkpoint that was reported."""
        assert self.of("checkpoint"), (
            f"no checkpoint was told of, but {self.of('checkpoint_failed')}"
        )
        return self.of("checkpoint")[-1]


class SessionContract:
    """The behaviours, numbered. A subclass overrides `connect` and `train`."""

    exact = True
    """Whether a resume continues within an epoch. Otherwise it starts the epoch again."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.set_up(tmp_path)

    # --- what a subclass overrides

    def connect(self, environment: TaskEnvironment) -> TaskSession:
        """The session of a script that begins. It has no engine if the environment names no
        channel.
        """
        raise NotImplementedError("override `connect`: return the session to hold to the contract")

    def train(self, session: TaskSession, at_step: Callable[[], None]) -> Any:
        """A training from the same random states each time, in `LOOPS` loops over `EPOCHS` epochs
        of `STEPS` steps.

        Args:
            session: The result of `connect`.
            at_step: Call it after computing each step, before its boundary.

        Returns:
            The trained values, as plain numbers that are compared exactly.
        """
        raise NotImplementedError("override `train`: train by the session to hold to the contract")

    def threads(self, session: TaskSession) -> int | None:
        """Number of threads that the framework computes with now; None: it cannot change during a
        run.
        """
        return None

    # --- how the tests are written

    def set_up(self, folder: Path) -> None:
        self._folders = folder
        self._attempts = 0

    def attempt(
        self,
        order: str | Mapping[str, Any] | None = None,
        at: int = 0,
        visit: Callable[[TaskSession], None] | None = None,
        share: float = 0.0,
        **variables: str,
    ) -> TrainingAttempt:
        """Train under an engine.

        Args:
            order: The engine's request.
            at: The step, from 1, before whose boundary it arrives.
            visit: Called before the first boundary.
            share: Fraction of time for automatic checkpoints.
            variables: Variables of its environment.
        """
        self._attempts += 1
        folder = self._folders / str(self._attempts)
        folder.mkdir()
        attempt, sessions = TrainingAttempt(), list[TaskSession]()

        def at_step() -> None:
            attempt.steps += 1
            if attempt.steps == 1 and visit is not None:
                visit(sessions[0])
            if order is not None and attempt.steps == at:
                _give(listener, order, sessions[0])

        welcome = {"role": "worker", "index": 0, "plan": {}, "threads": None}
        with ChannelListener(folder, welcome) as listener, _sharing(share):
            try:
                sessions.append(
                    self.connect(TaskEnvironment.read(listener.environment(**variables)))
                )
                attempt.trained = self.train(sessions[0], at_step)
            except Stop:
                pass
            except ResumeError as error:
                attempt.refused = error
            finally:
                for session in sessions:
                    atexit.unregister(session.close)
                    session.close()
                    session._channel.close()
                    listener.finish()
            if not sessions:
                listener.wait_for("checkpoint_damaged")
            attempt.messages = list(listener.messages)
        return attempt

    def alone(self) -> Any:
        """The trained values without an engine."""
        session = self.connect(TaskEnvironment())
        atexit.unregister(session.close)
        trained = self.train(session, lambda: None)
        session.close()
        return trained

    def goes_on(self, checkpoint: Mapping[str, Any]) -> None:
        """Check that a resume does the remaining steps, and gets the same result as without an
        engine.
        """
        resumed = self.attempt(HEADGATE_RESUME=str(checkpoint["path"]))
        done = checkpoint["step"]
        if checkpoint["position"] is None:
            done -= done % STEPS or STEPS
        assert resumed.trained is not None, "it did not train to the end"
        assert resumed.steps == TOTAL - done, (
            f"{resumed.steps} steps were done after {done} of {TOTAL}"
        )
        if checkpoint["position"] is not None:
            assert resumed.trained == self.alone(), "another result than without a stop"
            assert not resumed.steps or resumed.of("progress")[-1]["step"] == TOTAL, (
                "steps before it were not counted"
            )

    # --- the behaviours

    def test_01_it_says_hello_first_and_once(self) -> None:
        attempt = self.attempt()
        assert attempt.messages[0]["type"] == "hello"
        assert len(attempt.of("hello")) == 1
        assert attempt.messages[0]["framework"]
        assert attempt.messages[0]["framework_version"]

    def test_02_an_engine_that_asks_for_nothing_changes_nothing(self) -> None:
        attempt = self.attempt()
        assert attempt.trained == self.alone()
        assert attempt.steps == TOTAL

    def test_03_every_step_and_loss_is_told_of(self) -> None:
        progress = self.attempt().of("progress")
        steps = [message["step"] for message in progress]
        assert steps == sorted(steps)
        assert (steps[-1], progress[-1]["epoch"], progress[-1]["epochs"]) == (
            TOTAL,
            EPOCHS - 1,
            EPOCHS,
        )
        epoch_messages = [message for message in progress if message.get("covers") == "epoch"]
        if epoch_messages:  # as Keras tells them
            assert [message["epoch"] for message in epoch_messages] == [*range(EPOCHS)] * LOOPS
        else:
            assert sum(message["count"] for message in progress) == TOTAL

    def test_04_a_stop_ends_it_at_the_step_boundary_with_a_checkpoint(self) -> None:
        for at in (1, STEPS - 1):
            stopped = self.attempt("stop", at)
            assert stopped.trained is None, "it trained on"
            assert stopped.steps == at, "it was not ended at the boundary"
            assert [(message["why"], message["step"]) for message in stopped.of("checkpoint")] == [
                ("stop", at)
            ]
            assert stopped.of("progress")[-1]["step"] == at, "what was reported last was not told"
            assert Path(stopped.checkpoint["path"]).exists()

    def test_05_a_resume_goes_on_where_the_stop_was(self) -> None:
        for at in (STEPS + 2, STEPS, EPOCHS * STEPS, EPOCHS * STEPS + 1, TOTAL - 1):
            stopped = self.attempt("stop", at)
            if stopped.checkpoint["position"] is None:
                assert not self.exact, "no position in its epoch is known"
                assert stopped.of("note"), "nobody was told that the epoch starts again"
            self.goes_on(stopped.checkpoint)

    def test_06_what_was_resumed_can_be_stopped_and_resumed_again(self) -> None:
        first = self.attempt("stop", STEPS).checkpoint
        second = self.attempt("stop", STEPS, HEADGATE_RESUME=str(first["path"])).checkpoint
        assert second["step"] == 2 * STEPS
        if self.exact:
            self.goes_on(second)

    def test_07_a_checkpoint_on_request_is_saved_and_training_goes_on(self) -> None:
        asked = self.attempt("checkpoint", STEPS + 2)
        assert asked.trained == self.alone()
        assert [message["why"] for message in asked.of("checkpoint")] == ["request"]
        self.goes_on(asked.checkpoint)

    def test_08_epochs_that_end_are_saved_where_that_takes_little_of_the_time(self) -> None:
        saved = self.attempt("stop", EPOCHS * STEPS + 1, share=1.0).of("checkpoint")
        saved_positions = [
            (message["why"], message["epoch"], message["position"]) for message in saved[:-1]
        ]
        assert saved_positions == [("epoch", epoch + 1, 0) for epoch in range(EPOCHS)]
        self.goes_on(saved[EPOCHS - 1])  # of a loop that is over

    def test_09_an_engine_that_is_gone_ends_it_with_a_checkpoint(self) -> None:
        left = self.attempt(HANG_UP, STEPS + 1)
        assert left.trained is None
        assert left.steps == STEPS + 1
        saved = list((self._folders / str(self._attempts) / "checkpoints").glob("step-*"))
        assert len(saved) == 1, "nothing was saved"
        if self.exact:
            self.goes_on({"path": saved[0], "step": STEPS + 1, "position": 1})

    def test_10_a_checkpoint_that_cannot_be_saved_is_told_of_and_training_goes_on(self) -> None:
        (self._folders / "file").write_text("no folder")
        attempt = self.attempt(
            "checkpoint", 2, HEADGATE_CHECKPOINTS=str(self._folders / "file" / "checkpoints")
        )
        assert attempt.trained == self.alone()
        assert [message["why"] for message in attempt.of("checkpoint_failed")] == ["request"]
        assert attempt.of("checkpoint") == []

    def test_11_a_damaged_checkpoint_is_told_of_and_not_loaded(self) -> None:
        path = Path(self.attempt("stop", STEPS + 1).checkpoint["path"])
        files = (
            [path]
            if path.is_file()
            else [
                checkpoint_file for checkpoint_file in path.rglob("*") if checkpoint_file.is_file()
            ]
        )
        largest = max(files, key=lambda file: file.stat().st_size)
        os.truncate(largest, largest.stat().st_size // 2)
        attempt = self.attempt(HEADGATE_RESUME=str(path))
        assert attempt.refused is not None, "it trained on from it"
        assert [message["path"] for message in attempt.of("checkpoint_damaged")] == [str(path)]

    def test_12_it_takes_as_many_threads_as_it_is_granted(self) -> None:
        for granted in (2, 3):
            seen: list[TaskSession] = []
            attempt = self.attempt({"type": "threads", "threads": granted}, 2, seen.append)
            assert attempt.trained is not None
            assert not seen[0]._channel.pending, "the grant was not taken"
            assert self.threads(seen[0]) in (None, granted)

    def test_13_a_gate_holds_its_steps_back(self) -> None:
        seen: list[TaskSession] = []
        gated = self.attempt({"type": "gate", "fraction": 0.5}, 2, seen.append)
        assert gated.trained == self.alone()
        assert seen[0]._gate.held > 0, "no step was held"

    def test_14_spans_are_told_of_some_steps_and_make_them_up(self) -> None:
        span_messages = self.attempt().of("spans")
        assert span_messages, "no spans were told"
        for step in span_messages:
            assert 0 < step["step"] <= TOTAL
            assert step["epoch"] in range(EPOCHS)
            assert sum(span["seconds"] for span in step["spans"]) == pytest.approx(step["seconds"])

    def test_15_what_the_job_costs_is_told_once(self) -> None:
        attempt = self.attempt()
        (profile_message,) = attempt.of("profile")
        profile = parse(Profile, profile_message["profile"])
        assert (profile.framework, profile.source) == (attempt.messages[0]["framework"], "run")

    def test_16_a_run_to_measure_tells_what_it_costs_and_saves_nothing(self) -> None:
        attempt = self.attempt("checkpoint", STEPS, HEADGATE_MODE="profile")
        (profile_message,) = attempt.of("profile")
        profile = parse(Profile, profile_message["profile"])
        assert profile.source == "profile"
        assert attempt.of("checkpoint") == []

    def test_17_a_worker_that_is_alone_decides_by_itself(self) -> None:
        met: list[Any] = []
        self.attempt(
            visit=lambda session: met.extend((session.rank, session.mean(2.5), session.agree(True)))
        )
        assert met == [0, 2.5, True]

    def test_18_the_user_is_told_something_once(self) -> None:
        def tell(session: TaskSession) -> None:
            session.note("twice")
            session.note("twice")

        assert [note["text"] for note in self.attempt(visit=tell).of("note")].count("twice") == 1


def _give(listener: ChannelListener, order: str | Mapping[str, Any], session: TaskSession) -> None:
    """Send a request to a session."""
    listener.wait_for("hello")
    if order == HANG_UP:
        listener.hang_up()
    else:
        listener.send({"type": order} if isinstance(order, str) else order)
    channel = session._channel
    until(lambda: channel.pending or channel.gate is not None, what="the order")


@contextmanager
def _sharing(share: float) -> Iterator[None]:
    """A context in which automatic checkpoints take that fraction of the time, however long they
    take here.
    """
    before, saving.SHARE = saving.SHARE, share
    try:
        yield
    finally:
        saving.SHARE = before
