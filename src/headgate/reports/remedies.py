"""Sentences for remedies: what to do about a finding. A template or a writer for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headgate.diagnosis.account import Account
from headgate.diagnosis.attribution import Resource
from headgate.diagnosis.findings import FailureFacts, Finding, FindingKind
from headgate.diagnosis.remedies import (
    AloneFacts,
    NodesFacts,
    OrderFacts,
    ProgramFacts,
    Remedy,
    RemedyKind,
    ResourceFacts,
    StacksFacts,
    TasksFacts,
    ThreadSetting,
)
from headgate.model.reason_text import what_to_do
from headgate.model.units import say_bytes, say_seconds
from headgate.recorded.jobs import CoresSetting
from headgate.reports.commands import (
    location_hint,
    plan_command,
    rerun_command,
    single_worker_command,
    with_workers_command,
)

_NAMED = 8
"""Most jobs named in an advice."""
_TWICE: Mapping[Resource, str] = {
    "cores": "cores",
    "network": "NIC's rate",
    "disk": "disk's rate",
    "loader": "loader workers",
    "servers": "servers",
    "gpu": "GPU's speed",
}

Advice = Callable[[Remedy, Finding, Account], str]


def next_step(finding: Finding, account: Account) -> str:
    """What to do about a finding; empty: nothing."""
    if isinstance(finding.facts, FailureFacts) and (cure := what_to_do(finding.facts.reason)):
        return f"{_sentence(cure)}."
    return _sentence(_advice(finding.remedy, finding, account))


def _advice(remedy: Remedy, finding: Finding, account: Account) -> str:
    """A remedy and its alternative, each in lower case where possible."""
    write = NEXT_STEPS[remedy.kind]
    if isinstance(write, str):
        text = write.format(job=account.job, settings=remedy.settings, facts=remedy.facts)
    else:
        text = write(remedy, finding, account)
    if remedy.otherwise is None or remedy.kind is RemedyKind.ADD_LOADER_WORKERS:
        return text
    otherwise = _advice(remedy.otherwise, finding, account)
    link = _link(remedy, finding)
    return f"{text} {link} {otherwise}" if link else f"{text} {_sentence(otherwise)}"


def _link(remedy: Remedy, finding: Finding) -> str:
    """The words between a remedy and its alternative; empty: two sentences."""
    if remedy.kind is RemedyKind.RAISE_SHARE:
        return "Or else:"
    if remedy.kind is RemedyKind.SINGLE_WORKER and remedy.speedup is not None:
        return "Else"
    if remedy.kind is not RemedyKind.ADD_RESOURCE:
        return ""
    if finding.kind in (FindingKind.COMMUNICATION, FindingKind.NETWORK):
        return "Else"
    return "Or" if finding.kind in (FindingKind.INPUT, FindingKind.LOADER) else ""


def setting_in_words(setting: CoresSetting) -> str:
    """A setting as in a job file."""
    value = f"{setting.value:g}" if isinstance(setting.value, float) else setting.value
    place, _, name = setting.field.rpartition(".")
    if place == "limits":
        return f"`limits: {{{name}: {value}}}`"
    return f"`{name}: {value}`" + (f" of role `{setting.role}`" if setting.role else "")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _more_cores(setting: CoresSetting | None) -> str:
    if setting is None:
        return "give the job more cores"
    return f"raise or drop {setting_in_words(setting)} of the job"


def _add_cores(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"{_more_cores(remedy.facts.setting)}."


def _add_cores_or_remove_tasks(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: TasksFacts = remedy.facts
    role = "fewer tasks: a lower `count:` of one of its roles"
    fewer = role if facts.roles else "one task less"
    if facts.setting is not None:
        return f"{_more_cores(facts.setting)}, or {fewer}."
    tasks = f"the {facts.cores:g} that its {facts.tasks} tasks share"
    return f"give it more cores than {tasks}, or {fewer}."


def _add_loader_workers(remedy: Remedy, finding: Finding, account: Account) -> str:
    now = remedy.facts.now
    if now == 0:
        return "`DataLoader(..., num_workers=1)` reads beside it."
    if now:
        return f"more loader workers: `num_workers={2 * now}` instead of {now}."
    otherwise = ", or prepare the data once" if remedy.otherwise is not None else ""
    workers = "`DataLoader(..., num_workers=2)`, or twice as many as there are"
    return f"more loader workers: {workers}{otherwise}."


def _add_resource(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: ResourceFacts = remedy.facts
    if facts.now is None:
        twice = f"twice the {_TWICE[facts.resource]}"
    elif facts.resource == "servers":
        twice = f"`--servers {2 * facts.now}` instead of {facts.now}"
    elif facts.now:
        twice = f"`num_workers={2 * facts.now}` instead of {facts.now}"
    else:
        twice = "a loader worker (`num_workers=1`)"
    return f"{twice}: {remedy.speedup:.1f} times the speed."


def _add_server(remedy: Remedy, finding: Finding, account: Account) -> str:
    if remedy.facts is not None:
        return f"add one: a higher `count:` of its role `{remedy.facts.role}`."
    servers = remedy.settings["plan.servers"]
    return f"add a server: `--servers {servers}`, or `servers: {servers}` below `plan:`."


def _end_program(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: ProgramFacts = remedy.facts
    ends = f"end {facts.program.command} (process {facts.program.pid})"
    if facts.renice:
        return f"{ends}, or lower its priority: `renice 19 -p {facts.program.pid}`."
    return f"{ends}, or run the job when that has ended."


def _decode_once(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"decode the data once and store it, or {_more_cores(remedy.facts.setting)}."


def _enlarge_steps(remedy: Remedy, finding: Finding, account: Account) -> str:
    cores = remedy.settings.get("limits.cores")
    frees = f"; `limits: {{cores: {cores}}}` frees them" if cores else ""
    compiles = "" if account.record.cost.compiled else " or `torch.compile`"
    return f"use a larger batch{compiles}. More cores do not help{frees}."


def _leave_node_out(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: NodesFacts = remedy.facts
    workers = remedy.settings.get("plan.workers")
    if facts.listed:
        batch = ", its part out of `batch_per_worker:`" if facts.parts else ""
        return (
            f"take it out of `worker_nodes:`{batch}, and have `workers: {workers}`, below `plan:`."
        )
    fewer = f" --workers {workers}" if workers else ""
    return f"`--nodes {','.join(facts.nodes)}{fewer}` leaves that node out."


def _leave_together(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: OrderFacts = remedy.facts
    stay = (
        "keep running them together. One after the other would be no faster on average: "
        f"{_brings(facts)}"
    )
    if not remedy.job:
        return stay
    first = facts.order[0]
    setting = f"give {remedy.job} `after: {first}`{_in_place(facts)}"
    return f"{stay} If {first} matters more: in a job file, {setting}."


def _run_in_turn(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: OrderFacts = remedy.facts
    brings = _brings(facts)
    then = f" Then {brings}" if brings else ""
    first, second, *others = facts.order
    if others:
        names = ", ".join(facts.order[:_NAMED])
        names += f" and {len(facts.order) - _NAMED} more" if len(facts.order) > _NAMED else ""
        chain = "In a job file, give each `after:` with the name of the one before it."
        shortest = ", the shortest first" if brings else ""
        return f"run them one after the other{shortest}: {names}. {chain}{then}"
    shorter = ", which is shorter" if facts.shorter else ""
    setting = f"in a job file, give it `after: {first}`{_in_place(facts)}"
    return f"run {second} after {first}{shorter}: {setting}.{then}"


def _in_place(facts: OrderFacts) -> str:
    return f", in place of `after: {facts.replaced}`" if facts.replaced else ""


def _brings(facts: OrderFacts) -> str:
    """The completion time of each job; empty: unknown, or too many jobs."""
    if not facts.ends or len(facts.ends) > _NAMED:
        return ""
    changes = [
        f"{end.job}{'' if index else ' would be done'} after {say_seconds(end.alone)} instead of "
        f"{say_seconds(end.elapsed)}"
        for index, end in enumerate(facts.ends)
    ]
    return f"{', '.join(changes[:-1])} and {changes[-1]}."


def _lower_learning_rate(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"{_stops(account, '. ')}A lower learning rate or clipped gradients may help."


def _stop(remedy: Remedy, finding: Finding, account: Account) -> str:
    goal = remedy.settings["progress.goal"]
    stated = f"{goal:.4g}" if isinstance(goal, float) else "..."
    return f"{_stops(account, '; ')}`progress: {{goal: {stated}}}` would have ended it there."


def _stops(account: Account, end: str) -> str:
    if account.record.ended is not None:
        return ""
    return f"`headgate stop {account.job}` ends it{end}"


def _raise_memory(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"raise it: {_memory_setting(remedy)} of the job."


def _memory_setting(remedy: Remedy) -> str:
    limit = remedy.settings.get("limits.memory")
    memory = say_bytes(limit).replace(" ", "") if isinstance(limit, float) else "..."
    return f"`limits: {{memory: {memory}}}`"


def _find_leak(remedy: Remedy, finding: Finding, account: Account) -> str:
    keeps = (
        "look for what the script keeps from step to step: a loss in a list or a sum holds its "
        "whole graph, which `loss.item()` does not."
    )
    if not remedy.settings:
        return keeps
    return f"{keeps} Until then, {_memory_setting(remedy)} of the job puts off its end."


def _raise_share(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"raise or drop {setting_in_words(remedy.facts.setting)} of {account.job}."


def _reduce_threads(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: ThreadSetting = remedy.facts
    count = facts.threads
    if not remedy.settings:
        limits = f"`torch.set_num_threads({count})`, or fewer loader workers"
        already = f"its `OMP_NUM_THREADS` is {facts.stated} already"
        return f"{already}, so the script starts more itself: {limits}."
    return (
        f'fewer threads: `env: {{OMP_NUM_THREADS: "{count}"}}` in its job, unless the script '
        "sets their number itself."
    )


def _reduce_workers(remedy: Remedy, finding: Finding, account: Account) -> str:
    count, job = remedy.settings["plan.workers"], account.record
    command = with_workers_command(job, count)
    run = f"`{command}`{location_hint(job)}, or " if command else ""
    return f"fewer workers: {run}`workers: {count}` below `plan:` of the job."


def _run_alone(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: AloneFacts = remedy.facts
    once = f"run {account.job} alone once"
    if not facts.threads:
        only = "If only jobs of Headgate are beside it"
        prove = f" {only}, `headgate explain --prove {account.job}` tells it."
        return f"{once}.{prove if facts.provable else ''}"
    rerun = rerun_command(account.record)
    command = f", `{rerun}`" if rerun else ""
    fixed = " No trial tells it while it runs, as its threads stay as they began."
    return (
        f"{once}{command}: Headgate then tells it, of this run too.{fixed if facts.fixed else ''}"
    )


def _see_logs(remedy: Remedy, finding: Finding, account: Account) -> str:
    failed = finding.kind is FindingKind.FAILED
    return f"`headgate logs {account.job}` shows {'its output' if failed else 'what happened'}."


def _see_plans(remedy: Remedy, finding: Finding, account: Account) -> str:
    command = f"`{plan_command(account.record)}`{location_hint(account.record)}"
    return f"{command} shows whether fewer workers, or other nodes, are faster."


def _see_stacks(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: StacksFacts = remedy.facts
    if not facts.every_thread:
        return f"`headgate stacks {account.job}` shows where it stands, while the job runs."
    stacks = f"`headgate stacks {account.job} --all` shows"
    if facts.libraries:
        libraries = "`headgate.torch`, `headgate.keras` or `headgate.jax`"
        return f"{stacks} where it stands, while it runs. With {libraries} its steps tell more."
    they = "they" if facts.readers is None else f"its {facts.readers} loader workers"
    return f"{stacks} for what {they} wait, while the job runs."


def _see_status(remedy: Remedy, finding: Finding, account: Account) -> str:
    priority = remedy.settings.get("priority")
    if not priority:
        return "`headgate status` shows what it waited for."
    if account.record.state == "waiting":
        return f"`headgate set JOB priority={priority:g}` lets a job go first."
    return f"`priority: {priority:g}` of the job lets it go first."


def _single_worker(remedy: Remedy, finding: Finding, account: Account) -> str:
    job, setting = account.record, "`strategy: single` below `plan:` of the job"
    command = single_worker_command(job)
    if remedy.speedup is None:
        return f"one worker needs no server: `{command}`, or {setting}."
    how = f"`{command}`{location_hint(job)}" if command else setting
    return f"one worker waits for no other: {how}, has {remedy.speedup:.1f} times the speed."


NEXT_STEPS: Mapping[RemedyKind, Advice | str] = {
    RemedyKind.ADD_CORES: _add_cores,
    RemedyKind.ADD_CORES_OR_REMOVE_TASKS: _add_cores_or_remove_tasks,
    RemedyKind.ADD_LOADER_WORKERS: _add_loader_workers,
    RemedyKind.ADD_RESOURCE: _add_resource,
    RemedyKind.ADD_SERVER: _add_server,
    RemedyKind.ASK_FOR_CORES: (
        "ask the owner of the machine for cores that are not oversubscribed."
    ),
    RemedyKind.ASK_OWNER: (
        "ask {facts.program.user}, whose {facts.program.command} it is (process "
        "{facts.program.pid}), or run the job when that has ended."
    ),
    RemedyKind.CACHE_DATA: (
        "read the data into memory beforehand: `cat DATA > /dev/null`. Or store it once in a "
        "smaller form."
    ),
    RemedyKind.CALIBRATE: (
        "`headgate calibrate` measures that rate: the next run then tells who was to blame."
    ),
    RemedyKind.COMPARE_EARLIER: (
        "`headgate compare {facts.run} RUN`, with this run, shows where the time went differently."
    ),
    RemedyKind.COMPARE_RUNS: "`headgate compare RUN RUN` shows which is faster.",
    RemedyKind.DECODE_ONCE: _decode_once,
    RemedyKind.END_OTHER_PROGRAMS: "`top` shows what else runs; end it.",
    RemedyKind.END_PROGRAM: _end_program,
    RemedyKind.ENLARGE_STEPS: _enlarge_steps,
    RemedyKind.EVALUATE_LESS: (
        "evaluate less often or on fewer samples, or in a job of its own that runs `after:` "
        "this one."
    ),
    RemedyKind.EXCHANGE_ROWS: (
        "set `sparse=True` in its `nn.Embedding` or `nn.EmbeddingBag`: then only the rows in "
        "use move."
    ),
    RemedyKind.FIND_LEAK: _find_leak,
    RemedyKind.FREEZE_GARBAGE: (
        "call `gc.freeze()` once the data is there, or `gc.disable()` while the job trains."
    ),
    RemedyKind.LEAVE_NODE_OUT: _leave_node_out,
    RemedyKind.LEAVE_TOGETHER: _leave_together,
    RemedyKind.LONGER_RUNS: (
        "start one longer run instead of several short ones, or prepare the data once and store it."
    ),
    RemedyKind.LOWER_LEARNING_RATE: _lower_learning_rate,
    RemedyKind.NAME_STEP: (
        "the `pattern` of its `progress` found no step: name the step in it, `(?P<step>\\d+)`. "
        "`headgate logs {job}` shows its lines."
    ),
    RemedyKind.NONE: "",
    RemedyKind.PIN_MEMORY: (
        "have its `DataLoader` pin memory (`pin_memory=True`) and copy with `non_blocking=True`; "
        "copy small types, and convert them on the GPU."
    ),
    RemedyKind.PREPARE_DATA: "prepare the data once and store it.",
    RemedyKind.PRINT_STEPS: (
        "print a line for each step, such as `step 5 loss 0.31`, or name the pattern of its own "
        "lines: `progress: {{pattern: ...}}` in its job."
    ),
    RemedyKind.RAISE_MEMORY: _raise_memory,
    RemedyKind.RAISE_SHARE: _raise_share,
    RemedyKind.REDUCE_SERVERS: "fewer servers: `servers: {settings[plan.servers]}` below `plan:`.",
    RemedyKind.REDUCE_THREADS: _reduce_threads,
    RemedyKind.REDUCE_WORKERS: _reduce_workers,
    RemedyKind.RUN_ALONE: _run_alone,
    RemedyKind.RUN_APART: "run {facts.run} went on beside it: start one after the other.",
    RemedyKind.RUN_FEWER: (
        "run fewer of these jobs at a time: in a job file, `after:` has one wait for another."
    ),
    RemedyKind.RUN_IN_TURN: _run_in_turn,
    RemedyKind.SAVE_LESS: "save less often.",
    RemedyKind.SEE_LOGS: _see_logs,
    RemedyKind.SEE_PLANS: _see_plans,
    RemedyKind.SEE_STACKS: _see_stacks,
    RemedyKind.SEE_STATUS: _see_status,
    RemedyKind.SINGLE_WORKER: _single_worker,
    RemedyKind.STOP: _stop,
    RemedyKind.TURN_ON_READINGS: "`headgate doctor` shows how to turn these readings on.",
    RemedyKind.USE_ONE_HUB: (
        "process {facts.program.pid} is the hub of another HEADGATE_HOME: submit its jobs to this "
        "one, or run this when they have ended."
    ),
    RemedyKind.WAIT_FOR_ENDS: (
        "once these jobs have ended, `headgate explain` says what it would bring to run them one "
        "after the other."
    ),
}
