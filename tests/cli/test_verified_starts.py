"""Where Headgate would give a job several workers, a dry run says whether it is verified that they
train the same.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.planning.jobs import cluster, nodes, profile

from headgate.cli.dry_run import PlannedStart, planned
from headgate.hub.submission import Submission
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.profiling import store as profiles
from headgate.verification import folders, store
from headgate.verification.verdict import FirstDifference, Sameness, Verification, Why

SCRIPT = "import headgate.torch\nfrom part import scaled\n"
TWO = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
NODES = cluster(nodes("a", 2))


def test_a_plan_of_several_workers_stands_once_the_script_and_its_modules_are_verified(
    tmp_path: Path, home: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "part.py").write_text("scaled = abs\n")
    job = Job(name="train", script=str(tmp_path / "train.py"), workdir=str(tmp_path))
    key = profiles.key(job, NODES.nodes[0])
    home.mkdir()
    profiles.save(home / "profiles", key, profile())

    def begins(job: Job = job, **environment: str) -> PlannedStart:
        submission = Submission((job,), environment, str(tmp_path), ())
        return planned(submission, NODES, NODES.nodes[0], home)["train"]

    def knows(answer: Sameness, cause: Why | None = None) -> None:
        difference = (
            FirstDifference(1, 1, "gradient", ("weight",), 0.44)
            if answer is Sameness.DIFFERS
            else None
        )
        sources = {
            f"0/{name}": folders.digest_of(tmp_path / name) for name in ("train.py", "part.py")
        }
        verdict = Verification(
            answer, 2, steps=6, cause=cause, difference=difference, sources=sources
        )
        store.save(home / store.FOLDER, store.key(job, key, chosen, None), verdict)

    chosen = begins(replace(job, verify="off")).plan

    begin = begins()
    assert (begin.plan.workers, begin.kept_alone) == (1, True)
    assert begin.verdict is not None and begin.verdict.cause is Why.NOT_YET
    for off in (begins(replace(job, verify="off")), begins(HEADGATE_VERIFY="off")):
        assert (off.plan.workers, off.verdict) == (2, None)
    stated = begins(replace(job, plan=TWO))
    assert (stated.plan.workers, stated.kept_alone) == (2, False)

    knows(Sameness.SAME)
    begin = begins()
    assert (begin.plan.workers, begin.kept_alone) == (2, False)
    assert begin.verdict is not None and begin.verdict.answer is Sameness.SAME
    (tmp_path / "part.py").write_text("scaled = float\n")
    assert begins().plan.workers == 1  # what it imports is another

    knows(Sameness.DIFFERS, Why.LOSS)
    assert (begins().plan.workers, begins().kept_alone) == (1, True)
    knows(Sameness.DIFFERS, Why.NORMALISATION)
    assert begins().plan.workers == 2
    knows(Sameness.UNKNOWN, Why.WORKERS_FAILED)
    assert begins().plan.workers == 1
    knows(Sameness.UNKNOWN, Why.VARIES)
    assert begins().plan.workers == 2
