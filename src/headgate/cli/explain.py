"""`headgate explain`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.cli.live_view import wide_console
from headgate.cli.patience import telling
from headgate.client.running_jobs import running_jobs
from headgate.model.errors import HeadgateError, NotFoundError, UsageError
from headgate.recorded import runs

if TYPE_CHECKING:
    from headgate.client.proving import ProofNews

_PAUSES_TOLD = 20
"""Most lines of a proof's progress, which may have a thousand pauses."""


def _fraction(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Parse a fraction of time: `10%` or `0.1`."""
    if text is None:
        return None
    try:
        return float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise click.BadParameter(f"found {text!r}; expected a part such as 10%") from None


@click.command("explain")
@click.argument("run", required=False)
@click.argument("job", required=False)
@click.option(
    "--prove",
    is_flag=True,
    help="Prove who slows whom: hold neighbours for short random moments while the jobs run.",
)
@click.option("--neighbour", help="With --prove: the job to hold. Default: each other job in turn.")
@click.option(
    "--pause-at-most",
    metavar="PART",
    callback=_fraction,
    help="With --prove: the part of its time that a job may be held, up to 25%.  [default: 2%]",
)
@click.option("--full", is_flag=True, help="Print the account of each job, also of very many.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(
    run: str | None,
    job: str | None,
    full: bool,
    prove: bool,
    neighbour: str | None,
    pause_at_most: float | None,
    as_json: bool,
) -> None:
    """Say what held each job back, where its time went, how much each neighbour cost it, and what
    more of each resource would buy.

    If jobs ran at the same time, also say whether each got its share of the machines, and whether
    one took most. Of more than 24 jobs, the accounts of those that lost most are printed.

    RUN is a run's id or part of it; by default the latest. A job's name alone means the latest run
    with that job. You can explain a run that still goes on.

    \b
    Example: headgate explain
             headgate explain cnn
             headgate explain 20260314 cnn
             headgate explain --prove cnn --neighbour vae
             headgate explain --prove cnn --pause-at-most 10%
             headgate explain --json
    """
    if not prove and (neighbour is not None or pause_at_most is not None):
        raise UsageError("--neighbour and --pause-at-most are for a proof: add --prove")
    if prove:
        _prove(run, job, neighbour, pause_at_most, as_json)
        return
    from headgate.client.explaining import explain
    from headgate.model.job_states import ENDED
    from headgate.reports import explained, sharing
    from headgate.reports.at_stake import sentence

    folder, job = _run_and_job(run, job)
    with telling(lambda: f"explaining {job or folder.name}"):
        explanation = explain(folder, job)
    if as_json:
        click.echo(json.dumps(explanation.as_json(), indent=2))
        return
    console = wide_console()
    explained.tell(list(explanation.accounts), console, full=full)
    states = {summary.name: summary.state for summary in runs.summary(folder).jobs}
    stakes = list(explanation.at_stake.items())
    shown = stakes if full else stakes[: explained.MOST_IN_FULL]
    for name, stake in shown:
        console.print(sentence(stake, states[name] not in ENDED), soft_wrap=True)
    if len(shown) < len(stakes):
        console.print(f"{len(stakes) - len(shown)} more jobs save checkpoints of their own.")
    if job is None and explanation.sharing is not None:
        console.print()
        sharing.tell(explanation.sharing, console, full=full)


def _prove(
    run: str | None, job: str | None, neighbour: str | None, most: float | None, as_json: bool
) -> None:
    """Have the hub prove which jobs slow the jobs of a running run, and print the result."""
    from headgate.client.proving import prove

    folder, job = _run_and_job(run, job) if run is not None else (None, None)
    (chosen,) = running_jobs([], folder.name if folder is not None else None)
    shown: dict[tuple[str, str], int] = {}

    def show(news: ProofNews) -> None:
        if _is_to_show(news, shown):
            click.echo(news.text, err=as_json)

    try:
        proved = prove(chosen, job, neighbour, most, show)
    except KeyboardInterrupt:
        click.echo("the proof was ended; no job is held any more", err=True)
        raise
    if as_json:
        click.echo(json.dumps(asdict(proved), indent=2))
    texts = [] if as_json else [proof["text"] for proof in proved.proofs]
    for text in (*texts, *proved.reasons):
        click.echo(text, err=as_json)
    if not proved.proofs:
        raise HeadgateError("nothing was proved")


def _is_to_show(news: ProofNews, shown: dict[tuple[str, str], int]) -> bool:
    """Whether to print news: the first pause of a pair, and about `_PAUSES_TOLD` pauses in all."""
    if not news.needed:
        return True
    pair, part = (news.culprit, news.victim), news.pauses * _PAUSES_TOLD // news.needed
    if shown.get(pair) == part:
        return False
    shown[pair] = part
    return True


def _run_and_job(run: str | None, job: str | None) -> tuple[Path, str | None]:
    """The folder of the run, and the job. A single name is a job's if any run has a job of that
    name.
    """
    if run is None or job is not None:
        return runs.find(run), job
    try:
        return runs.find_job(run)
    except NotFoundError:
        pass
    try:
        return runs.find(run), None
    except NotFoundError:
        begun = runs.begun_with(run, runs.listing())
        cure = f"{begun}: name one" if begun else "`headgate ps` lists the runs there are"
        raise NotFoundError(f"no run and no job {run!r}; {cure}") from None
