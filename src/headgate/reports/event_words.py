"""Entries of the event log in words, and the chain of causes behind an entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headgate.model import actions, events, job_states, progress
from headgate.model.actions import Action, subject
from headgate.model.events import Event, Notice
from headgate.model.identifiers import TaskId
from headgate.model.reason_text import in_words
from headgate.model.shares import FIELDS, Share, Unlimited
from headgate.model.units import counted, say_time
from headgate.recorded.events import LoggedEvent, Unreadable
from headgate.reports.words import listed, say

_LIMITS = {
    "cpu_weight": "CPU weight {}",
    "cpu_cap_cores": "at most {}",
    "memory_bytes": "at most {} of memory",
    "disk_bytes_per_second": "at most {} from and to disk",
    "gpu_fraction": "{} of its GPU's time",
}
_UNITS = {
    "cpu_cap_cores": "cores",
    "memory_bytes": "B",
    "disk_bytes_per_second": "B/s",
    "gpu_fraction": "%",
}
_MARKS = {"event": "←", "action": "→", "notice": "·"}


def line(entry: LoggedEvent) -> str:
    """One line about an entry: its time, input (←) or decision (→), its subject, and the reason."""
    because = f"  (by {entry.cause})" if entry.cause is not None else ""
    when = f"{entry.t:>9.3f} s" if entry.run else say_time(entry.t, seconds=True)
    return f"{entry.id:>6}  {when}  {_MARKS[entry.kind]} {text(entry)}{because}"


def text(entry: LoggedEvent) -> str:
    """An entry in words, with its subject."""
    return words(entry.what)


def words(what: Event | Action | Notice | Unreadable) -> str:
    """An event, action or notice in words, with its subject."""
    about = None if isinstance(what, Unreadable) else subject(what)
    if isinstance(about, TaskId):
        return f"{about.of_run}: {_told(what)}"
    return f"{about.name}: {_told(what)}" if about is not None else _told(what)


def chain_lines(links: Iterable[LoggedEvent]) -> Iterator[str]:
    """A line for an entry, and one for each that led to it, further to the right."""
    for depth, entry in enumerate(links):
        begin = f"{'   ' * (depth - 1)}└─ because " if depth else ""
        yield f"{begin}{text(entry)}  ({entry.id}, at {entry.t:.3f} s)"


def _told(what: Event | Action | Notice | Unreadable) -> str:
    match what:
        case Unreadable():
            return f"{what.type}, of another version"
        case (
            actions.PlanJob()
            | actions.StartTask()
            | actions.SetShare()
            | actions.TryJob()
            | actions.ShareGpu()
            | actions.BoundRun()
            | actions.StopTask()
            | actions.HoldJob()
            | actions.Resize()
            | actions.Fault()
            | actions.MarkJob()
            | actions.MarkIdle()
            | actions.Warn()
        ):
            return _decided(what)
        case (
            events.ControllerMade()
            | events.PairsKnown()
            | events.RunForgotten()
            | events.ReadingsLeftOut()
        ):
            return _noticed(what)
    return _happened(what)


def _asked(
    request: events.StopRequested
    | events.ResizeRequested
    | events.ChangeRequested
    | events.MoveRequested
    | events.PauseRequested
    | events.UnpauseRequested
    | events.JobGivesBack,
) -> str:
    match request:
        case events.StopRequested(_, kill, reason):
            why = in_words(reason) if reason is not None else "by its user"
            return f"asked to end{' at once' if kill else ''}: {why}"
        case events.ResizeRequested(_, workers):
            return f"asked to have {counted(workers, 'worker')}"
        case events.ChangeRequested(_, spec):
            most = spec.limits.cores
            cores = f"at most {say(most, 'cores')}" if most is not None else "no limit of cores"
            return f"its user set priority {say(spec.priority)}, {cores}"
        case events.MoveRequested(_, plan, reason):
            return f"asked to move to {counted(plan.workers, 'worker')}: {in_words(reason)}"
        case events.PauseRequested(_, release, urgent):
            by = f"for urgent job {urgent}" if urgent else "by its user"
            return f"asked to pause{', and to give back its memory' if release else ''}: {by}"
        case events.UnpauseRequested(_, refused):
            return "could not be frozen" if refused else "asked to go on"
        case events.JobGivesBack(_, _, reason, ends):
            way = "to end and give" if ends else "to give"
            return f"asked {way} back what it has: {in_words(reason)}"


def _decided(action: actions.Action) -> str:
    match action:
        case actions.PlanJob(revision=revision):
            return "to be planned" + (f" again ({revision})" if revision > 1 else "")
        case actions.StartTask():
            where = f"start on {action.node}, attempt {action.attempt}"
            return f"{where}, with {_granted(action)}"
        case actions.SetShare():
            return f"from now on {_granted(action)}: {in_words(action.reason)}"
        case actions.TryJob(_, cores, seconds, beside):
            names = listed([job.name for job in beside])
            return f"tried on {say(cores, 'cores')} for {say(seconds, 's')}, lent by {names}"
        case actions.ShareGpu(reason=reason) | actions.BoundRun(reason=reason):
            return in_words(reason)
        case actions.StopTask(_, grace, reason, leaves):
            verb = "leave" if leaves else "end"
            how = f"asked to {verb} within {say(grace, 's')}" if grace else "killed"
            return f"{how}: {in_words(reason)}"
        case actions.HoldJob(_, held):
            return "its tasks are frozen" if held else "its tasks go on"
        case actions.Resize(_, plan, restarts):
            when = " from its next attempt on" if restarts else ""
            return f"now {counted(plan.workers, 'worker')} ({plan.strategy}){when}"
        case actions.Fault(reason=reason, restarts=restarts):
            text = f"lost {action.task.name}: {in_words(reason)}"
            return text + (", all start again" if restarts else "")
        case actions.MarkJob(_, state, reason):
            return job_states.state_in_words(state, in_words(reason))
        case actions.MarkIdle(_, idle):
            return "idle" if idle else "uses its cores again"
        case actions.Warn(reason):
            return f"warning: {in_words(reason)}"


def _noticed(notice: events.Notice) -> str:
    match notice:
        case events.ControllerMade(policy):
            return f"a new controller, under policy {policy}"
        case events.PairsKnown(pairs):
            return f"pairs of jobs are known on {counted(len(pairs), 'device')}"
        case events.RunForgotten(run):
            return f"run {run} is over"
        case events.ReadingsLeftOut(after):
            return f"after {after:,} readings only those are kept that led to an action"


def _read(
    reading: events.Usage | progress.Progress | events.MemoryUsed | events.GpuMemoryUsed,
) -> str:
    match reading:
        case events.Usage(_, cores, memory):
            return f"uses {say(cores, 'cores')} and {say(memory, 'B')}"
        case progress.Progress(_, step, epoch, loss=loss):
            parts = (("step", step), ("epoch", epoch), ("loss", loss))
            values = [f"{name} {value:.6g}" for name, value in parts if value is not None]
            return ", ".join(values) or "goes on"
        case events.MemoryUsed(node, available):
            return f"node {node} has {say(available, 'B')} of memory left"
        case events.GpuMemoryUsed(node, used):
            return (
                f"{counted(len(used), 'GPU')} of node {node}: {say(sum(used.values()), 'B')} used"
            )


def _happened(event: Event) -> str:
    match event:
        case events.Usage() | progress.Progress() | events.MemoryUsed() | events.GpuMemoryUsed():
            return _read(event)
        case (
            events.StopRequested()
            | events.ResizeRequested()
            | events.ChangeRequested()
            | events.MoveRequested()
            | events.PauseRequested()
            | events.UnpauseRequested()
            | events.JobGivesBack()
        ):
            return _asked(event)
        case (
            events.TaskStarted()
            | events.TaskReady()
            | events.TaskExited()
            | events.TaskConnected()
            | events.GpusUsed()
            | events.TaskJoined()
            | events.TaskLeaves()
        ):
            return _of_task(event)
        case events.NodeJoined(node):
            return f"node {node.name} is there: {say(node.cores, 'cores')}"
        case events.NodeLeft(node, _, for_good):
            return f"node {node} is gone" + (" for good" if for_good else "")
        case events.SlotsStated(jobs):
            most = "as the cores are for" if jobs is None else say(jobs)
            return f"as many jobs of all runs at once: {most}"
        case events.MachineShared(shared):
            return "the arbiter of the machine says when jobs start" if shared else "no arbiter"
        case events.JobGranted(_, gpus):
            held = listed([str(gpu) for worker in gpus for gpu in worker])
            return "granted by the arbiter" + (f", with GPU {held}" if held else "")
        case events.JobSubmitted(resume=resume):
            return "handed in" + (f", to go on from {resume.where}" if resume else "")
        case events.JobPlanned(_, _, plan):
            return f"planned: {counted(plan.workers, 'worker')} ({plan.strategy})"
        case events.CheckpointDone(_, checkpoint):
            return f"saved a checkpoint at {checkpoint.where}"
        case events.CheckpointLost(_, told):
            return f"its checkpoint is lost: {told}"
        case events.Predicted():
            return "a forecast of what is left of it"
        case events.Wake():
            return "the time has come that the controller waited for"


def _of_task(
    event: events.TaskStarted
    | events.TaskReady
    | events.TaskExited
    | events.TaskConnected
    | events.GpusUsed
    | events.TaskJoined
    | events.TaskLeaves,
) -> str:
    match event:
        case events.TaskStarted(_, pid):
            return f"started as process {pid}"
        case events.TaskReady(_, failure):
            return f"not ready: {in_words(failure)}" if failure is not None else "ready"
        case events.TaskExited(_, end):
            return f"ended: {in_words(end.because())}" if not end.ok else "ended well"
        case events.TaskConnected(_, framework):
            return f"connected ({framework})"
        case events.GpusUsed(_, gpus):
            return f"computes on GPU {listed([str(gpu) for gpu in gpus])}"
        case events.TaskJoined():
            return "has joined the others"
        case events.TaskLeaves():
            return "says that it ends before the others"


def _granted(action: actions.StartTask | actions.SetShare) -> str:
    limits = [_limit(name, action.share) for name in FIELDS]
    entitled = f"{say(action.entitled_cores, 'cores')} when all are busy"
    return ", ".join([entitled, *(limit for limit in limits if limit)])


def _limit(name: str, share: Share) -> str:
    value = getattr(share, name)
    if value is None or isinstance(value, Unlimited):
        return ""
    return _LIMITS[name].format(say(value, _UNITS.get(name, "")))
