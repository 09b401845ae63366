"""What the buttons of the pages do: what the command line can do to a live job."""

from __future__ import annotations

from typing import Any

from headgate.client.run import Run
from headgate.hub.changes import Changes
from headgate.model.errors import NotFoundError, UsageError
from headgate.model.units import counted


def act(run: Run, name: str, request: Any) -> str:
    """Do what was asked for, and say what came of it.

    Args:
        run: The run.
        name: `stop`, `kill`, `pause`, `unpause`, `checkpoint`, `resize`, `set` or `prove`.
        request: The body: `job`, its name, or null for all. `resize` has `workers` too, `set`
            has `priority`, `cores`, `memory`, `timeout` or `at_once`; `pause` may have
            `release`; `prove` may have `neighbour` and `pause_at_most`.

    Raises:
        UsageError: The request makes no sense, or the job cannot do that.
        NotFoundError: Nothing is so called, or runs any more.
    """
    if not isinstance(request, dict):
        raise UsageError(f"found {request!r:.80}; expected an object")
    job = _name(request, "job")
    jobs = [] if job is None else [job]
    subject = job or f"run {run.id}"
    match name:
        case "stop":
            run.ask_to_stop(*jobs)
            return f"{subject} is being stopped"
        case "kill":
            run.ask_to_stop(*jobs, kill=True)
            return f"{subject} is being killed"
        case "pause":
            release = bool(request.get("release"))
            how = "with a checkpoint, to give back memory" if release else "with their memory"
            return f"paused, {how}: {', '.join(run.pause(*jobs, release=release))}"
        case "unpause":
            return f"unpaused: {', '.join(run.unpause(*jobs))}"
        case "checkpoint":
            return f"asked to save: {', '.join(run.checkpoint(*jobs))}"
        case "resize":
            workers = request.get("workers", 0)
            run.set(job, workers=workers)
            return f"{subject} is being resized to {counted(workers, 'worker')}"
        case "set":
            changes = {
                field: request[field]
                for field in ("priority", "cores", "memory", "timeout", "at_once")
                if request.get(field) is not None
            }
            run.set(job, **changes)
            return f"{subject} has from now on {Changes.of(changes)}"
        case "prove":
            neighbour, most = _name(request, "neighbour"), request.get("pause_at_most")
            if most is not None and not isinstance(most, int | float):
                raise UsageError(f"found pause_at_most {most!r:.80}; expected a part of time")
            proofs = run.prove(job, neighbour=neighbour, pause_at_most=most)
            return " ".join([*(str(proof["text"]) for proof in proofs.proofs), *proofs.reasons])
        case _:
            raise NotFoundError(f"a page cannot do {name!r}")


def _name(request: dict[str, Any], field: str) -> str | None:
    value = request.get(field)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"found {field} {value!r:.80}; expected a name, or null for all")
    return value
