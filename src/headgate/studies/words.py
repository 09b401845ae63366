"""The sentences of a study's page and of its tables."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.model.units import counted, say_percent
from headgate.studies.cell_sharing import CellSharing, Priorities
from headgate.studies.cells import METRICS
from headgate.studies.findings import Effect, Findings
from headgate.studies.statistics import LEAST_REPETITIONS, change, say, say_ratio


def sentences(study: Findings) -> list[str]:
    """Findings of a study: differences first, then what shows none."""
    ranks = {"slower": 0, "faster": 0, "unsure": 1, "none": 2}
    steps = sorted(
        (effect for effect in study.effects if effect.metric == "step"),
        key=lambda effect: ranks[effect.change],
    )
    lines = [f"{title(effect)}: {comparison(effect)}." for effect in steps]
    lines += [
        f"{title(effect)}: {METRICS[effect.metric]}{comparison(effect)}."
        for effect in study.effects
        if effect.metric != "step" and effect.change in ("slower", "faster")
    ]
    plain = {shared.without: shared for shared in study.sharing if shared.mitigation is None}
    for shared in study.sharing:
        mitigated = shared.mitigation is not None and shared.without in plain
        lines += _gain(shared, plain[shared.without]) if mitigated else _sharing(shared)
    return lines


def title(effect: Effect) -> str:
    """What is compared: `small solo, isolation container against process`."""
    settings = "".join(f", {axis} {value}" for axis, value in effect.rest)
    scenario = "" if effect.what == "scenario" else f" {effect.scenario}"
    return f"{effect.job}{scenario}{settings}, {effect.what} {effect.value} against {effect.base}"


def comparison(effect: Effect) -> str:
    """How it compares."""
    return say(effect.ratio, effect.floor)


def cause_in_words(cause: Priorities | str | None) -> str:
    """Why one job got more than another; empty: not known."""
    if isinstance(cause, Priorities):
        return f"priority {cause.most:g} against {cause.least:g}"
    return cause or ""


def _gain(sharing: CellSharing, plain: CellSharing) -> Iterator[str]:
    """What a mitigation changed for the job that got least without it."""
    job, way = plain.least, sharing.mitigation or ""
    suffix = "" if way.startswith("policy") else " each"
    values = "".join(f", {axis} {value}" for axis, value in sharing.without)
    yield (
        f"With {way}{suffix}{values}, {job} got {say_ratio(sharing.phi[job])} of its due instead "
        f"of {say_ratio(plain.phi[job])}; S = {say_ratio(sharing.total)} instead of "
        f"{say_ratio(plain.total)}, "
        f"D = {say_ratio(sharing.dominance)} instead of {say_ratio(plain.dominance)}."
    )


def _sharing(sharing: CellSharing) -> Iterator[str]:
    values = "".join(f", {axis} {value}" for axis, value in sharing.without)
    at_once = f"{' + '.join(sharing.phi)} at once{values}"
    total, dominance = say_ratio(sharing.total), say_ratio(sharing.dominance)
    if not sharing.total.has_interval:
        yield (
            f"{at_once}: S = {total}, D = {dominance}; no finding with fewer than "
            f"{LEAST_REPETITIONS} repetitions."
        )
        return
    pays = {"slower": "running at once pays", "faster": "running at once costs"}
    pay = pays.get(
        change(sharing.total, sharing.floor),
        f"no difference from one after the other seen (floor {say_percent(sharing.floor)})",
    )
    yield f"{at_once}: S = {total}: {pay}."
    due = ", ".join(f"{job} {say_ratio(phi)}" for job, phi in sharing.phi.items())
    yield f"Of its due each got{values}: {due}."
    if sharing.dominates:
        cause = cause_in_words(sharing.cause)
        by = f", by {cause}" if cause else ""
        yield f"{sharing.most} dominates {sharing.least}{values}: D = {dominance}{by}."
    else:
        yield f"No job dominates{values}: D = {dominance}, floor {say_percent(sharing.floor)}."


def notes(study: Findings) -> Iterator[str]:
    """How the study was measured, where that matters."""
    changed = [
        f"{fact} {was} → {study.machine.get(fact, '')}"
        for fact, was in study.about["machine"].items()
        if study.machine.get(fact) != was
    ]
    if changed:
        yield f"This machine has changed since the study began: {'; '.join(changed)}."
    if study.apart:
        yield (
            f"{counted(study.apart, 'measurement')} kept apart: of another machine, or of scripts "
            "that have changed since."
        )
    disturbed = sum(cell.disturbed for cell in study.cells)
    if disturbed:
        count = sum(len(cell.figures) for cell in study.cells)
        yield (
            f"Others used more than a tenth of the cores during {disturbed} of {count} "
            "measurements that count."
        )
    lacking: dict[tuple[str, str], list[str]] = {}
    for cell in study.cells:
        if not cell.figures:
            lacking.setdefault((cell.state, cell.reason), []).append(cell.name)
    for (state, reason), names in lacking.items():
        more = f" and {counted(len(names) - 1, 'other cell')}" if len(names) > 1 else ""
        yield f"{names[0]}{more}: {state}: {reason}."
