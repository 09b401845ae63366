"""What the buttons of the pages do: what the command line can do to a live job."""

from __future__ import annotations

from typing import Any

from headgate.client.run import Run
from headgate.model.errors import NotFoundError, UsageError


def act(run: Run, name: str, request: Any) -> str:
    """Do what was asked for, and say what came of it.

    Args:
        run: The run.
        name: `stop`, `kill`, `checkpoint`, `resize` or `prove`.
        request: The body: `job`, its name, or null for all; and `workers` to resize it.

    Raises:
        UsageError: The request makes no sense, or the job cannot do that.
        NotFoundError: Nothing is so called, or runs any more.
    """
    if not isinstance(request, dict):
        raise UsageError(f"found {request!r:.80}; expected an object")
    job = request.get("job")
    if job is not None and not isinstance(job, str):
        raise UsageError(f"found job {job!r:.80}; expected a name, or null for all")
    jobs = [] if job is None else [job]
    match name:
        case "stop" | "kill":
            run.ask_to_stop(*jobs, kill=name == "kill")
            return "it is being stopped" if name == "stop" else "it is being killed"
        case "checkpoint":
            return f"asked to save: {', '.join(run.checkpoint(*jobs))}"
        case "resize":
            workers = request.get("workers")
            if not isinstance(workers, int) or workers < 1:
                raise UsageError(f"found workers {workers!r:.80}; expected a whole number from 1")
            run.set(job, workers=workers)
            return f"it goes on with {workers} workers"
        case "prove":
            proved = run.prove(job)
            return " ".join([*(str(proof["text"]) for proof in proved.proofs), *proved.reasons])
        case _:
            raise NotFoundError(f"a page cannot do {name!r}")
