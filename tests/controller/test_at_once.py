"""How many jobs run at once, and how the first of a script tells what the others need: events in,
exact actions out.
"""

from __future__ import annotations

from dataclasses import replace

from tests.controller.driver import job
from tests.controller.test_memory import MIB, ON_N, names
from tests.controller.test_queueing import GIB, Queueing, states

from headgate.controller.core import live_controller
from headgate.controller.probing import MemoryOfScripts
from headgate.model.actions import Action, HoldJob
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.events import (
    ChangeRequested,
    JobPlanned,
    JobSubmitted,
    MemoryUsed,
    NodeJoined,
    PauseRequested,
    SlotsStated,
    UnpauseRequested,
    Usage,
    Wake,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.progress import Progress
from headgate.model.sweeps import SweepTrial
from headgate.policies import EqualPolicy, NoPolicy, Policy


class Hub(Queueing):
    """A controller as a hub has it, on a node of two cores."""

    def __init__(self, gib: float = 16.0, policy: Policy | None = None, cores: float = 2.0) -> None:
        self.controller = live_controller(policy or EqualPolicy())
        self.wake_at = None
        self.step(0.0, NodeJoined(Node("n", cores, int(gib * GIB))))
        self.step(0.0, MemoryUsed("n", gib * GIB, {}))

    def hands_in(
        self,
        *jobs: str,
        run: str = "r",
        script: str = "",
        at_once: int | str | None = None,
        best: int | None = None,
        trial: SweepTrial | None = None,
    ) -> list[str]:
        """Jobs of one run; those that start then."""
        for name in jobs:
            spec = replace(job(name, at_once=at_once), trial=trial)
            id = JobId(f"{run}/{name}")
            self.step(1.0, JobSubmitted(id, spec, script=script, best_at_once=best))
        planned = (JobPlanned(JobId(f"{run}/{name}"), 1, ON_N) for name in jobs)
        self.actions: list[Action] = [
            action for event in planned for action in self.step(1.0, event)
        ]
        return names(self.actions)

    def waits(self, name: str) -> str:
        """What a job just handed in waits for."""
        return {job: why for job, _, why in states(self.actions)}[f"r/{name}"]

    def uses(self, now: float, name: str, mib: float, cores: float = 1.0) -> list[str]:
        return names(self.step(now, Usage(TaskId(f"r/{name}/worker-0"), cores, mib * MIB)))

    def steps(self, now: float, name: str) -> list[str]:
        return names(self.step(now, Progress(TaskId(f"r/{name}/worker-0"), 1, loss=1.0)))

    def ends(self, now: float, name: str, code: int = 0) -> list[str]:
        return names(self.end(now, f"{name}/worker-0", Exit(code=code)))


SIX = ("a", "b", "c", "d", "e", "f")
MANY = tuple(f"j{i:02}" for i in range(40))


def test_so_many_jobs_of_a_run_as_its_user_says_run_at_once() -> None:
    hub = Hub()
    assert hub.hands_in(*SIX, at_once=2) == ["a", "b"]
    assert hub.waits("f") == "for a slot: at most 2 jobs of its run at once"
    assert hub.hands_in("x", "y", run="other") == ["x", "y"], "whose slots are their own"
    assert hub.ends(2.0, "b") == ["c"]
    [first, *_] = hub.controller.ahead(3.0, {JobId("r/a"): 9.0})
    assert (first.job, first.at, first.holders) == ("r/d", 9.0, ("r/a", "r/c"))


def test_slots_of_a_sweep_bound_its_own_jobs_and_those_of_the_run_all() -> None:
    hub = Hub()
    of_sweep = SweepTrial("w", {}, at_once=2)
    assert hub.hands_in(*SIX[:4], trial=of_sweep) == ["a", "b"]
    assert hub.waits("d") == "for a slot: at most 2 jobs of its sweep at once"
    assert hub.hands_in(*MANY, trial=SweepTrial("v", {})) == [*MANY[:8]], "others have their own"
    more = replace(job("d"), trial=replace(of_sweep, at_once=3))
    assert names(hub.step(2.0, ChangeRequested(JobId("r/d"), more))) == ["c"]
    hub = Hub()
    assert hub.hands_in(*SIX[:4], at_once=3, trial=of_sweep) == ["a", "b"]
    assert hub.hands_in("e", "f", at_once=3) == ["e"], "the third of the run"
    assert (hub.ends(2.0, "e"), hub.ends(3.0, "a")) == (["f"], ["c"])


def test_a_paused_job_gives_its_slot_and_waits_for_none_when_it_goes_on() -> None:
    hub = Hub()
    hub.hands_in(*SIX, at_once=2)
    assert names(hub.step(2.0, PauseRequested(JobId("r/a")))) == ["c"]
    [held] = [action for action in hub.step(3.0, UnpauseRequested(JobId("r/a"))) if _held(action)]
    assert held == HoldJob(JobId("r/a"), False), "at once, though three run now"
    assert [hub.ends(4.0, name) for name in "ab"] == [[], ["d"]]
    hub.step(5.0, PauseRequested(JobId("r/c")))
    assert hub.ends(6.0, "c", code=1) == [], "its slot was given before"
    assert hub.ends(7.0, "d") == ["f"]


def _held(action: Action) -> bool:
    return isinstance(action, HoldJob)


def test_policy_none_has_four_times_as_many_slots_and_no_probe() -> None:
    hub = Hub(policy=NoPolicy())
    assert hub.hands_in(*MANY) == [*MANY[:32]]
    hub = Hub(policy=NoPolicy())
    assert hub.hands_in(*MANY, script="s") == [*MANY[:32]], "no job of a script is first"


def test_a_run_with_slots_of_its_own_takes_none_of_the_others() -> None:
    hub = Hub()
    assert hub.hands_in(*MANY, at_once=20) == [*MANY[:20]]
    assert hub.hands_in(*MANY, run="other") == [*MANY[:8]]


def test_slots_change_while_jobs_run() -> None:
    hub = Hub()
    hub.hands_in(*SIX, at_once=2)
    more = job("f", at_once=4)
    assert names(hub.step(2.0, ChangeRequested(JobId("r/f"), more))) == ["c", "d"]
    fewer = replace(more, at_once=1)
    assert names(hub.step(3.0, ChangeRequested(JobId("r/f"), fewer))) == []
    assert [hub.ends(4.0, name) for name in "abcd"] == [[], [], [], ["e"]]


def test_four_jobs_run_for_each_core_and_more_only_while_cores_are_idle() -> None:
    hub = Hub()
    assert hub.hands_in(*MANY) == [*MANY[:8]]
    for name in MANY[:8]:
        assert hub.uses(2.0, name, 100, cores=0.02) == [], "too early to tell"
    began = [hub.uses(5.0, name, 100, cores=0.02) for name in MANY[:8]]
    assert began == [[]] * 4 + [[*MANY[8:10]], [*MANY[10:12]], [*MANY[12:14]], [*MANY[14:16]]]
    assert hub.uses(6.0, "j00", 100, cores=0.02) == [], "those that came last are not seen yet"
    busy = [hub.uses(9.0, name, 100, cores=0.25) for name in MANY[:16]]
    assert busy == [[]] * 16
    assert hub.ends(10.0, "j00") == [], "16 at a quarter of a core are more than there is room for"


def test_of_jobs_that_use_next_to_nothing_sixteen_run_for_each_core() -> None:
    hub, waiting = Hub(), tuple(f"j{i:03}" for i in range(300))
    running = hub.hands_in(*waiting, script="s")
    running += hub.steps(1.5, running[0])
    most = len(running)
    for number in range(250):
        ended, now = running.pop(0), 4.0 + 0.1 * number
        exit = Exit(code=0, cpu_seconds=0.005)
        running += names(hub.end(now, f"{ended}/worker-0", exit))
        most = max(most, len(running))
    assert most == 32


def test_cores_that_other_programs_use_are_not_idle() -> None:
    hub = Hub()
    hub.hands_in(*MANY)

    def goes_on(now: float, busy: float) -> list[str]:
        began = [hub.uses(now, name, 100, cores=0.1) for name in MANY[:8]]
        hub.step(now, MemoryUsed("n", 16.0 * GIB, {}, busy))
        return [name for names in began for name in names]

    goes_on(2.0, 2.0)
    assert goes_on(5.0, 2.0) == [], "others take more than a core"
    assert goes_on(6.0, 0.8) == [], "they took that much until now"
    assert goes_on(7.0, 0.8) == ["j08"], "one second without them may be a moment"


def test_one_job_of_a_script_runs_for_each_core_of_those_that_were_handed_in_together() -> None:
    hub = Hub()
    assert hub.hands_in(*SIX, script="s") == ["a"]
    hub.steps(1.5, "a")
    hub.actions = hub.step(4.0, Usage(TaskId("r/a/worker-0"), 1.0, 100 * MIB))
    assert names(hub.actions) == ["b"]
    assert hub.waits("f") == "for a slot: at most 2 jobs of its script at once"
    assert hub.hands_in("x", "y", run="other", script="s") == ["x", "y"], "of another run"
    assert hub.ends(9.0, "a") == ["c"]
    assert names(hub.step(10.0, SlotsStated(8))) == ["d", "e", "f"], "as their user says"
    hub = Hub()
    assert hub.hands_in(*SIX, script="s", at_once=3) == ["a"]
    hub.steps(1.5, "a")
    assert hub.uses(4.0, "a", 100) == ["b", "c"], "as their user says"


def test_more_jobs_of_a_script_run_on_idle_cores() -> None:
    hub = Hub()
    hub.hands_in(*MANY, script="s")
    hub.steps(1.5, "j00")
    assert hub.uses(4.0, "j00", 100, cores=0.1) == ["j01"]
    assert hub.uses(5.0, "j00", 100, cores=0.1) == [], "the second is not seen yet"
    assert hub.uses(8.0, "j01", 100, cores=0.1) == ["j02", "j03"], "twice as many at most"
    began = [hub.uses(12.0, name, 100, cores=1.0) for name in MANY[:4]]
    assert began == [[]] * 4
    assert hub.ends(13.0, "j00") == [], "three of a core each are more than there is room for"


def test_another_job_of_a_script_runs_beside_one_that_takes_far_longer_than_others() -> None:
    hub = Hub()
    hub.hands_in(*MANY, script="s")
    hub.steps(1.5, "j00")
    assert hub.uses(4.0, "j00", 100) == ["j01"]
    assert hub.uses(90.0, "j00", 100) == [], "nobody knows how long they take"
    assert hub.ends(101.0, "j00") == ["j02"]
    assert hub.ends(102.0, "j02", code=1) == ["j03"]
    assert hub.uses(190.0, "j01", 100) == [], "one took 100 s; what failed does not tell"
    assert hub.uses(205.0, "j01", 100) == ["j04"], "it takes twice as long"


def test_slots_of_a_sweep_are_none_of_its_script() -> None:
    hub = Hub()
    hub.hands_in(*SIX, script="s", trial=SweepTrial("w", {}, at_once=4))
    hub.steps(1.5, "a")
    assert hub.uses(4.0, "a", 100) == ["b", "c", "d"]
    assert hub.hands_in("x", "y", "z", script="s") == ["x", "y"]


def test_a_number_that_is_set_counts_at_once_and_again_when_it_is_unset() -> None:
    hub = Hub()
    hub.hands_in(*SIX, script="s")
    hub.steps(1.5, "a")
    assert hub.uses(4.0, "a", 100) == ["b"]
    assert names(hub.step(5.0, SlotsStated(3))) == ["c"]
    assert names(hub.step(6.0, SlotsStated(None))) == []
    assert [hub.ends(7.0, name) for name in "ab"] == [[], ["d"]], "two, as before"
    assert names(hub.step(8.0, SlotsStated(None))) == [], "as the next run says again"
    more = replace(job("c"), at_once=4)
    assert names(hub.step(9.0, ChangeRequested(JobId("r/c"), more))) == ["e", "f"]


def test_the_first_job_of_a_script_shows_what_the_others_need() -> None:
    hub = Hub(gib=8.0, cores=8.0)
    assert hub.hands_in(*SIX, script="s") == ["a"]
    assert hub.waits("f") == "for the memory that the first job of its script takes"
    assert hub.hands_in("x", run="other", script="t") == ["x"], "another script has its own first"
    assert hub.uses(5.0, "a", 1_000) == []
    assert hub.uses(9.0, "a", 2_000) == [], "it has not stepped"
    hub.steps(9.5, "a")
    hub.actions = hub.step(11.5, Usage(TaskId("r/a/worker-0"), 1.0, 2_020 * MIB))
    assert names(hub.actions) == ["b", "c"], "of 7.7 GiB, as it is now"
    assert hub.waits("f") == "for 2.17 GiB of memory"


def test_a_first_job_that_never_steps_holds_others_back_until_it_grows_no_more() -> None:
    hub = Hub(cores=8.0)
    hub.hands_in(*SIX, script="s")
    hub.uses(5.0, "a", 300)
    assert hub.uses(14.0, "a", 300) == []
    assert hub.uses(15.0, "a", 300) == ["b", "c", "d", "e", "f"]


def test_one_that_takes_too_little_for_a_framework_holds_others_back_for_seconds_only() -> None:
    hub = Hub(cores=8.0)
    hub.hands_in(*SIX, script="s")
    hub.steps(1.5, "a")
    assert hub.uses(2.0, "a", 60) == ["b", "c", "d", "e", "f"]
    hub.hands_in("x", "y", script="silent")
    hub.uses(2.0, "x", 60)
    assert hub.uses(4.0, "x", 60) == []
    assert hub.uses(5.0, "x", 60) == ["y"]


def test_a_first_job_that_grows_on_and_on_holds_others_back_for_a_minute() -> None:
    hub = Hub(cores=8.0)
    hub.hands_in(*SIX, script="s")
    assert [hub.uses(now, "a", 10 * now) for now in range(5, 61, 5)] == [[]] * 12
    assert hub.wake_at == 61.0
    assert names(hub.step(61.0, Wake())) == ["b", "c", "d", "e", "f"]


def test_after_one_that_fails_another_is_first() -> None:
    hub = Hub(cores=8.0)
    hub.hands_in(*SIX, script="s")
    assert hub.ends(2.0, "a", code=1) == ["b"]
    hub.uses(3.0, "b", 100)
    assert hub.ends(4.0, "b") == ["c", "d", "e", "f"]


def test_one_that_took_ten_times_as_much_as_others_is_soon_forgotten() -> None:
    hub = Hub(gib=8.0, cores=8.0)
    hub.hands_in(*MANY, script="s")
    hub.steps(2.0, "j00")
    hub.uses(2.0, "j00", 4_000)
    assert hub.uses(4.0, "j00", 4_000) == [], "of 8 GiB, 3.5 are left"
    running, begun = ["j00"], 1
    for now in range(5, 40):
        hub.uses(now, running[0], 4_000 if running[0] == "j00" else 400)
        running += hub.ends(now + 0.5, running.pop(0))
        begun = max(begun, len(running))
    assert begun == 8


def test_others_wait_for_a_job_whose_memory_doubles_late() -> None:
    hub = Hub(gib=8.0, cores=8.0)
    hub.hands_in(*MANY, script="s")
    hub.steps(2.0, "j00")
    hub.uses(2.0, "j00", 1_000)
    began = hub.uses(4.0, "j00", 1_000)
    assert began == [*MANY[1:7]], "each is expected to take 1,100 MiB"
    assert hub.uses(30.0, "j01", 2_000) == []
    assert hub.ends(31.0, "j02") == [], "what j01 has grown by is not there for another"
    assert hub.ends(32.0, "j01") == [], "the next may grow as much"
    assert hub.ends(33.0, "j03") == ["j07"]


def test_a_wider_spread_of_peaks_makes_a_larger_margin() -> None:
    even, spread = MemoryOfScripts(), MemoryOfScripts()
    for peak in (100, 100, 100, 100):
        even.learn("s", peak)
    for peak in (40, 100, 40, 100):
        spread.learn("s", peak)
    assert (even.need("s"), spread.need("s")) == (110, 140)
