"""What every engine must do: a suite to subclass.

class TestMine(EngineContract):
    @pytest.fixture
    def engine(self):
        return MyEngine()  # not yet open
"""

from __future__ import annotations

import ctypes
import functools
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.model.shares import Share
from headgate.testing import engine_programs, programs
from headgate.testing.engine_stage import EngineStage

MIB = 1 << 20
FLOOD_BYTES = 24 * MIB
HELD_BYTES = 12 * MIB
"""Most that this process may grow while `FLOOD_BYTES` of one task's output pass."""
LONG = 1000.0
"""A grace in seconds that no test waits for."""


class EngineContract(EngineStage):
    """The behaviours, numbered. A subclass provides the fixture `engine`, made and not yet open."""

    # --- the behaviours: starting and ending

    def test_01_a_task_starts_and_then_exits(self) -> None:
        task = self.start(programs.argv("leave", 7))
        end = self.ended(task)
        assert (end.code, end.signal, end.over_memory, end.ok) == (7, None, False, False)
        assert [call.kind for call in self.told.of(task)] == ["started", "exited"]
        assert (self.told.pid(task) or 0) > 1
        assert self.ended(self.start(programs.argv("leave", 0), "well")).ok

    def test_02_a_failed_start_is_an_exit_with_its_reason(self) -> None:
        bystander = self.start(programs.argv("rest"), "bystander")
        self.ready(bystander)
        for argv, cwd, named in (
            (("no-such-program-here",), "/", "no-such-program-here"),
            (("/etc/passwd",), "/", "/etc/passwd"),
            (programs.argv("rest"), "/no/such/folder", "/no/such/folder"),
        ):
            task = self.start(argv, cwd=cwd)
            end = self.ended(task)
            assert not end.ok
            assert end.reason is not None
            assert named in end.reason
            assert self.told.of(task, "started") == []
            assert task not in self.boxed()
        self.tested.stop(bystander, 0)
        self.ended(bystander)

    def test_03_a_task_can_be_started_again_after_its_end(self) -> None:
        for _ in range(2):
            task = self.start(engine_programs.argv("write", "again\\n"))
            self.ended(task)
        assert [call.kind for call in self.told.of(task)] == ["started", "output", "exited"] * 2
        assert self.log(task).read_text() == "again\nagain\n"

    def test_04_a_task_that_somebody_killed_is_told(self) -> None:
        task = self.start(programs.argv("rest"))
        self.ready(task)
        self.end_first(task)
        end = self.ended(task)
        assert (end.code, end.signal) == (None, signal.SIGKILL)

    def test_05_a_daemon_dies_with_its_task_and_does_not_hold_up_its_end(self) -> None:
        task = self.start(engine_programs.argv("abandon"))
        assert self.ended(task).ok
        assert not self.alive(int(self.ready(task, "daemon")))

    # --- output

    def test_06_output_is_appended_to_the_log_and_delivered_before_the_end(self) -> None:
        self.log(self.task()).write_text("from before\n")
        task = self.start(engine_programs.argv("write", "one\\ntwo\\n", "three\\nfour"))
        self.ended(task)
        assert self.log(task).read_text() == "from before\none\ntwo\nthree\nfour"
        assert self.told.lines(task) == ["one", "two", "three", "four"]
        assert self.told.of(task)[-1].kind == "exited"

    def test_07_so_is_that_of_many_very_short_tasks(self) -> None:
        tasks = [
            self.start(engine_programs.argv("write", f"I am {i}\\n"), f"short-{i}")
            for i in range(12)
        ]
        for i, task in enumerate(tasks):
            assert self.ended(task).ok
            assert self.told.lines(task) == [f"I am {i}"]
            assert self.log(task).read_text() == f"I am {i}\n"

    def test_08_carriage_returns_and_line_feeds_end_lines(self) -> None:
        pieces = ("a\\rb", "c\\r", "\\nd\\n\\ne\\r\\r", "f\\n")
        task = self.start(engine_programs.argv("write", *pieces))
        self.ended(task)
        assert self.told.lines(task) == ["a", "bc", "d", "e", "f"]
        assert self.log(task).read_bytes() == b"a\rbc\r\nd\n\ne\r\rf\n"

    def test_09_output_that_is_no_text_is_delivered_all_the_same(self) -> None:
        # U+00FF is two bytes in UTF-8; the two pieces end in the middle of nothing else.
        task = self.start(engine_programs.argv("write", "\\xff\\x00\\x1b[32mgreen\\n", "after\\n"))
        self.ended(task)
        assert self.told.lines(task) == ["\xff\x00\x1b[32mgreen", "after"]

    def test_10_a_flood_of_lines_may_be_thinned_out_but_not_in_the_log(self) -> None:
        lines = [f"line {i}" for i in range(50_000)]
        task = self.start(engine_programs.argv("count", len(lines)))
        assert self.ended(task).ok
        assert self.log(task).read_text().splitlines() == lines
        heard = self.told.lines(task)
        assert heard[0] == lines[0]
        numbers = [int(line.removeprefix("line ")) for line in heard]
        assert numbers == sorted(set(numbers)), "lines were delivered twice or out of order"

    def test_11_a_flood_without_line_ends_neither_grows_memory_nor_starves_another_task(
        self,
    ) -> None:
        before = _resident_bytes()
        flood = self.start(engine_programs.argv("flood"), "flood")
        self.wait(lambda: self.logged(flood) >= FLOOD_BYTES, f"{FLOOD_BYTES} bytes of output")
        assert _resident_bytes() - before < HELD_BYTES, "it grew with the output that it took in"
        other = self.start(engine_programs.argv("write", "I am here\\n"), "other")
        assert self.ended(other).ok
        assert self.told.lines(other) == ["I am here"]
        self.tested.stop(flood, 0)
        self.ended(flood)

    # --- stopping

    def test_12_a_task_that_is_not_connected_is_asked_by_sigterm(self) -> None:
        task = self.start(programs.argv("rest"))
        self.ready(task)
        self.tested.stop(task, LONG)
        assert self.ended(task).signal == signal.SIGTERM

    def test_13_a_connected_one_is_asked_through_the_channel(self) -> None:
        task = self.start(engine_programs.argv("obedient"))
        self.ready(task)
        self.tested.stop(task, LONG)
        assert self.ended(task).code == engine_programs.STOPPED
        assert [dict(of) for of in self.echoes(task) if isinstance(of, dict)] == [{"type": "stop"}]

    def test_14_one_that_has_hung_up_is_asked_by_sigterm_again(self) -> None:
        task = self.start(engine_programs.argv("parting"))
        self.ready(task)
        self.tested.stop(task, LONG)
        assert self.ended(task).signal == signal.SIGTERM

    def test_15_what_does_not_end_within_its_grace_is_killed(self) -> None:
        for name, argv in (
            ("deaf", programs.argv("stubborn")),
            ("rude", engine_programs.argv("heedless")),
        ):
            task = self.start(argv, name)
            self.ready(task)
            asked = self.now()
            self.tested.stop(task, 0.5)
            assert self.ended(task).signal == signal.SIGKILL
            assert self.now() - asked >= 0.5

    def test_16_without_grace_it_is_killed_at_once(self) -> None:
        task = self.start(programs.argv("rest"))
        self.ready(task)
        self.tested.stop(task, 0)
        assert self.ended(task).signal == signal.SIGKILL

    def test_17_a_second_stop_asks_nothing_and_can_only_shorten(self) -> None:
        task = self.start(engine_programs.argv("heedless"))
        self.ready(task)
        for grace in (LONG, LONG / 2, LONG):
            self.tested.stop(task, grace)
        self.echo(task, {"type": "ping"})
        assert self.echoes(task) == [{"type": "stop"}, {"type": "ping"}], (
            "it was asked more than once"
        )
        self.tested.stop(task, 0.5)
        self.tested.stop(task, LONG)
        assert self.ended(task).signal == signal.SIGKILL

    def test_18_unknown_and_ended_tasks_are_ignored(self) -> None:
        ended = self.start(programs.argv("leave", 0), "ended")
        self.ended(ended)
        before = len(self.told.of(ended))
        task = self.start(engine_programs.argv("heedless"))
        self.ready(task)
        for absent in (ended, self.task("nobody")):
            self.tested.set_share(absent, Share(cpu_weight=50))
            self.tested.send(absent, {"type": "checkpoint"})
            self.tested.stop(absent, 0)
            self.tested.stop(absent, 1)
        self.echo(task, {"type": "ping"})
        assert len(self.told.of(ended)) == before
        assert self.told.of(self.task("nobody")) == []
        assert self.boxed() == {task}
        self.tested.stop(task, 0)
        self.ended(task)

    # --- shares

    def test_19_a_share_reaches_the_box(self) -> None:
        task = self.start(programs.argv("rest"))
        self.ready(task)
        applied = self.watch_shares(task)
        wanted = [Share(cpu_weight=50), Share(cpu_weight=200)]
        for count, share in enumerate(wanted, 1):
            self.tested.set_share(task, share)
            self.wait(functools.partial(_equal, applied, wanted[:count]), f"share {count} applied")

    def test_20_a_share_that_cannot_be_had_is_told_and_ends_nothing(self) -> None:
        task = self.start(programs.argv("hold", 64 * MIB))
        self.ready(task)
        self.tested.set_share(task, Share(memory_bytes=16 * MIB))
        self.wait(lambda: self.told.of(task, "warned"), "a warning")
        text = self.told.of(task, "warned")[0].what
        assert "memory" in text
        assert self.told.exit(task) is None

    # --- the channel

    def test_21_messages_go_both_ways(self) -> None:
        task = self.start(engine_programs.argv("heedless"))
        self.ready(task)
        self.wait(lambda: self.told.messages(task, "hello"), "a hello")
        (hello,) = self.told.messages(task, "hello")
        assert hello["framework"] == "none"
        messages: list[dict[str, object]] = [{"type": "threads", "threads": n} for n in range(3)]
        for message in messages:
            self.tested.send(task, message)
        self.echo(task, {"type": "text", "text": 'über\n"so"'})
        assert self.echoes(task)[:3] == messages

    def test_22_a_message_to_a_task_that_is_not_connected_is_dropped(self) -> None:
        task = self.start(programs.argv("rest"))
        self.ready(task)
        self.tested.send(task, {"type": "checkpoint"})
        self.tested.stop(task, LONG)
        self.ended(task)
        assert [call.kind for call in self.told.of(task)] == ["started", "output", "exited"]

    def test_23_messages_come_in_order_and_before_the_end(self) -> None:
        tasks = [self.start(engine_programs.argv("talk", 2000), f"talker-{i}") for i in range(3)]
        for task in tasks:
            assert self.ended(task).ok
            kinds = [call.what["type"] for call in self.told.of(task, "message")]
            assert kinds == ["hello"] + ["count"] * 2000
            assert [message["n"] for message in self.told.messages(task, "count")] == list(
                range(2000)
            )
            assert self.told.of(task)[-1].kind == "exited"

    def test_24_bad_lines_cost_only_themselves(self) -> None:
        task = self.start(engine_programs.argv("garbled"))
        assert self.ended(task).ok
        types = [call.what["type"] for call in self.told.of(task, "message") if "type" in call.what]
        # as an engine may report a line that is no message
        heard = [kind for kind in types if kind != "unreadable"]
        assert heard == ["hello"] + ["count"] * 9 + ["pieces", "long", "last"]
        (long,) = self.told.messages(task, "long")
        assert len(long["text"]) == engine_programs.BIG_BYTES

    def test_25_whoever_has_a_wrong_key_is_refused_and_disturbs_nothing(self) -> None:
        honest = self.start(engine_programs.argv("heedless"), "honest")
        self.ready(honest)
        impostor = self.start(engine_programs.argv("impostor", honest), "impostor")
        self.ready(impostor, "refused")
        assert self.told.of(impostor, "message") == []
        assert self.told.messages(honest, "count") == []
        self.echo(honest, {"type": "ping"})
        assert len(self.told.messages(honest, "hello")) == 1
        self.tested.stop(impostor, LONG)
        assert self.ended(impostor).signal == signal.SIGTERM

    # --- the end of the engine

    def test_26_close_ends_everything_and_leaves_nothing(self) -> None:
        resting = self.start(programs.argv("rest"), "resting")
        stubborn = self.start(programs.argv("stubborn"), "stubborn")
        daemon = self.start(programs.argv("daemon"), "daemon")
        connected = self.start(engine_programs.argv("obedient"), "connected")
        for task in (resting, stubborn, daemon, connected):
            self.ready(task)
        pids = [self.told.pid(task) or 0 for task in (resting, stubborn, daemon, connected)]
        pids.append(int(self.ready(daemon, "daemon")))
        self.tested.close()
        assert [pid for pid in pids if self.alive(pid)] == []
        assert self.boxed() == set()
        assert self.told.exit(stubborn) is not None, "it returned before the end was told"
        self.tested.close()

    def test_27_a_start_just_before_close_is_answered_too(self) -> None:
        tasks = [self.start(programs.argv("rest"), f"late-{i}") for i in range(4)]
        self.tested.close()
        for task in tasks:
            assert not self.ended(task, 0).ok

    def test_28_the_cluster_is_known_once_it_is_open(self) -> None:
        nodes = self.tested.cluster().nodes
        assert nodes
        assert all(node.cores > 0 and node.memory_bytes > 0 for node in nodes)
        assert len({node.name for node in nodes}) == len(nodes)

    # --- reservations

    def test_29_what_was_reserved_for_is_started(self) -> None:
        task = self.task()
        self.reserve(task)
        self.start(programs.argv("leave", 0))
        assert self.ended(task).ok
        self.release(task)

    def test_30_what_cannot_be_had_is_waited_for_and_told_once(self) -> None:
        first, second = self.task("first"), self.task("second")
        self.reserve(first)
        self.start(programs.argv("rest"), "first")
        self.ready(first)
        self.reserve(second)
        self.start(engine_programs.argv("heedless"), "second")
        if self.accounts:
            self.wait(lambda: self.told.of(second, "warned"), "a warning that it waits")
            self.tested.set_share(second, Share(cpu_weight=50))
            assert [call.kind for call in self.told.of(second)] == ["warned"]
        self.tested.stop(first, 0)
        self.ended(first)
        self.release(first)
        self.ready(second)
        assert len(self.told.of(second, "warned")) == self.accounts
        self.tested.stop(second, 0)
        self.ended(second)
        self.release(second)

    def test_31_one_that_waits_can_be_stopped(self) -> None:
        first, second = self.task("first"), self.task("second")
        self.reserve(first)
        self.reserve(second)
        self.start(programs.argv("rest"), "second")
        self.tested.stop(second, 0)
        assert not self.ended(second).ok
        self.release(second)
        self.release(first)

    def test_32_what_can_never_be_had_is_refused_with_what_was_asked_for(self) -> None:
        if not self.accounts:
            pytest.skip("it keeps no accounts")
        task = self.task()
        self.reserve(task, cores=1000.0)
        self.start(programs.argv("rest"))
        reason = self.ended(task).reason
        assert reason is not None
        assert "1000" in reason
        assert self.told.of(task, "started") == []
        self.release(task)

    def test_33_what_one_task_had_is_given_back_while_another_of_its_attempt_runs_on(self) -> None:
        half = self.tested.cluster().nodes[0].cores / 2
        stays, leaves = self.task("pair"), self.task("pair", 1)
        self.reserve(stays, leaves, cores=half)
        for index, task in enumerate((stays, leaves)):
            assert self.start(programs.argv("rest"), "pair", index=index) == task
            self.wait(functools.partial(self.told.of, task, "started"), f"the start of {task}")
        waits, late = self.task("waits"), self.task("late")
        self.reserve(waits, cores=half)
        self.start(programs.argv("rest"), "waits")
        if self.accounts:
            self.wait(lambda: self.told.of(waits, "warned"), "a warning that it waits")
        self.tested.stop(leaves, 0)
        self.ended(leaves)
        self.release(leaves)
        self.ready(waits)
        self.reserve(late, cores=half)
        self.start(programs.argv("rest"), "late")
        if self.accounts:
            self.wait(
                lambda: self.told.of(late, "warned"),
                "a warning that it waits: the other one runs on",
            )
        assert self.told.exit(stays) is None
        for task in (stays, waits, late):
            self.tested.stop(task, 0)
            self.ended(task)
            self.release(task)


def _equal(what: Callable[[], list[Share]], wanted: list[Share]) -> bool:
    return what() == wanted


def _resident_bytes() -> int:
    ctypes.CDLL(None).malloc_trim(0)  # else what earlier tests left free would hide growth
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
