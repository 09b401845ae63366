"""Traces as they are written, and what is said of those that make no sense."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.errors import InvalidFileError, NotFoundError, UsageError
from headgate.planning.interference import read_pairs
from headgate.recorded.store import Recorder
from headgate.simulation import fitting, simulate
from headgate.simulation.speeds import read_speeds
from headgate.simulation.trace_files import read
from headgate.simulation.traces import TraceJob, made

HEADER = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_of_elasticflow_begins_at_its_first_job(tmp_path: Path) -> None:
    trace = read(written(tmp_path, HEADER, "b,110,9,bert,9,64,8,60", "a,100,7,vgg16,9,64,1,30"))
    assert trace.jobs == (
        TraceJob("a", 0.0, 30.0, gpus=1, model="vgg16"),
        TraceJob("b", 10.0, 60.0, gpus=8, model="bert"),
    )


def test_a_trace_of_philly_has_dates_and_jobs_that_never_ran(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "jobid,user,gpu_num,cpu_num,submit_time,start_time,end_time",
        "x,u,2,8,2017-10-03 08:15:00,2017-10-03 08:16:00,2017-10-03 09:16:00",
        "y,u,1,8,2017-10-03 08:20:00,None,2017-10-03 09:16:00",
        "z,u,0,4,2017-10-03 08:15:30,2017-10-03 08:15:30,2017-10-03 08:15:40",
    )
    assert read(path).jobs == (
        TraceJob("x", 0.0, 3600.0, gpus=2, cores=8.0, user="u"),
        TraceJob("z", 30.0, 10.0, gpus=0, cores=4.0, user="u"),
    )


def test_a_trace_may_say_what_profile_a_job_has_and_how_many_workers(tmp_path: Path) -> None:
    path = written(
        tmp_path, "job,at,seconds,cores,workers,profile", "a,0,10,4,2,1f3a", "b,0,10,4,,"
    )
    assert read(path).jobs == (
        TraceJob("a", 0.0, 10.0, cores=4.0, workers=2, profile="1f3a"),
        TraceJob("b", 0.0, 10.0, cores=4.0),
    )
    with pytest.raises(
        InvalidFileError, match="line 2: workers: found '0'; expected 1 to 1000 workers"
    ):
        read(written(tmp_path, "at,seconds,cores,workers", "0,10,4,0"))
    with pytest.raises(InvalidFileError, match="line 2: workers: found '1000000000'"):
        read(written(tmp_path, "at,seconds,cores,workers", "0,10,4,1000000000"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "a,-5,9,bert,9,64,1,60",
            "line 3: submission_time: found '-5'; expected a time: seconds, or 2017-10-03 08:15:00",
        ),
        ("a,5,9,bert,9,64,1,-60", "line 3: duration: found '-60'; expected 0 or more seconds"),
        ("a,5,9,bert,9,64,1,nan", "line 3: duration: found 'nan'; expected 0 or more seconds"),
        ("a,5,9,bert,9,64,1.5,60", "line 3: num_gpu: found '1.5'; expected 0 or more GPUs"),
        ("a,5,9,bert,9,64,1", "line 3: duration: it is empty; expected 0 or more seconds"),
        ("a,soon,9,bert,9,64,1,60", "line 3: submission_time: found 'soon'; expected a time"),
        (
            "first,5,9,bert,9,64,1,60",
            "line 3: job_id: found 'first', as on line 2; give each job its own",
        ),
    ],
)
def test_a_line_that_makes_no_sense_is_said_with_its_number(
    tmp_path: Path, line: str, message: str
) -> None:
    path = written(tmp_path, HEADER, "first,0,9,bert,9,64,1,60", line)
    with pytest.raises(InvalidFileError, match=re.escape(message)) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: 1 problem\n")


def test_all_problems_are_said_at_once_but_not_thousands(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError) as raised:
        read(written(tmp_path, HEADER, *(f"j{i},-1,9,bert,9,64,1,60" for i in range(500))))
    *first, last = raised.value.problems
    assert [problem.line for problem in first] == list(range(2, 12))
    assert str(last) == "lines: 500 of 500 make no sense; expected less than half of them"


def test_few_lines_that_make_no_sense_are_left_out_and_the_first_is_told(tmp_path: Path) -> None:
    good = [f"j{i},{i},9,bert,9,64,1,60" for i in range(8)]
    bad = [
        "a,soon,9,bert,9,64,1,60",
        "b,1,9,bert,9,64,1,60,7,8",
        "j3,9,9,bert,9,64,1,60",
        "c,1,9,ber\udcfft,9,64,-1,60",
    ]
    path = tmp_path / "trace.csv"
    lines = [HEADER, *good[:2], bad[0], *good[2:6], *bad[1:], "", *good[6:]]
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    trace = read(path)
    assert [job.name for job in trace.jobs] == [f"j{i}" for i in range(8)]
    reason = (
        "line 4: submission_time: found 'soon'; expected a time: seconds, or 2017-10-03 08:15:00"
    )
    left_out, unused = trace.notes
    assert left_out == f"4 of 12 lines make no sense and are left out: {reason} (and 3 more)"
    assert unused == "columns that count for nothing: num_iteration, deadline, batch_size"
    assert read(written(tmp_path, "at,seconds,cores", "0,1,1")).notes == ()


def test_a_line_that_is_no_csv_costs_only_itself(tmp_path: Path) -> None:
    long = "x" * 200_000  # more than a cell may have
    trace = read(
        written(
            tmp_path, HEADER, "a,0,9,m,9,64,1,60", f"{long},0,9,m,9,64,1,60", "b,0,9,m,9,64,1,60"
        )
    )
    assert [job.name for job in trace.jobs] == ["a", "b"]
    assert trace.notes[0].startswith(
        "1 of 3 lines make no sense and are left out: line 3: line: it is no CSV"
    )


def test_a_trace_of_alibaba_says_that_parts_of_gpus_are_taken_for_whole_ones(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path,
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time",
        "pod-0,6000,12000,1,460,LS,0,100,10",
        "pod-1,500,1000,0,0,BE,5,90,30",
        "pod-2,500,1000,1,1000,BE,5,90,",
    )
    trace = read(path)
    assert trace.jobs == (
        TraceJob("pod-0", 0.0, 90.0, gpus=1, cores=6.0),
        TraceJob("pod-1", 5.0, 60.0, cores=0.5),
    )
    assert trace.notes == (
        "columns that count for nothing: memory_mib, gpu_milli, qos",
        "a job that asks for a part of a GPU (gpu_milli) is taken to ask for a whole one",
    )


def test_jobs_that_a_cluster_cannot_hold_are_left_out_unless_they_are_most(tmp_path: Path) -> None:
    cluster = Cluster((Node("a", 8.0, 1 << 34, gpus=(Gpu(0, "V100", 1 << 34),) * 4),))
    rows = [f"j{i},{i},9,m,9,64,{gpus},60" for i, gpus in enumerate((1, 8, 2, 64, 4))]
    trace = fitting(read(written(tmp_path, HEADER, *rows)), cluster)
    assert [job.name for job in trace.jobs] == ["j0", "j2", "j4"]
    assert trace.notes[-1] == (
        "2 of 5 jobs cannot run there and are left out: job 'j1' asks for too many GPUs: 8; the "
        "cluster has 4, at most 4 on a node (and 1 more)"
    )
    assert len(simulate(trace, cluster, "fifo").jobs) == 3
    with pytest.raises(
        UsageError, match="2 of 4 jobs cannot run there: job 'j1' asks for too many GPUs: 8"
    ):
        fitting(read(written(tmp_path, HEADER, *rows[:4])), cluster)
    late = fitting(read(written(tmp_path, HEADER, *rows[::2], "late,1e300,9,m,9,64,1,60")), cluster)
    assert "job 'late' lasts 60 s and comes 1e+300 s after the first" in late.notes[-1]


@pytest.mark.parametrize("others", [1.5e9, 1.5e12, 3e9])
@pytest.mark.parametrize(
    ("wrong", "way"), [("0", "before"), ("1970-01-01", "before"), ("1e300", "after")]
)
def test_a_time_far_from_those_of_most_jobs_costs_only_its_own_job(
    tmp_path: Path, others: float, wrong: str, way: str
) -> None:
    cluster = Cluster((Node("a", 8.0, 1 << 34, gpus=(Gpu(0, "V100", 1 << 34),) * 4),))
    rows = [f"j{i},{others + 60 * i:.0f},9,m,9,64,1,60" for i in range(5)]
    wrongs = [f"{name},{wrong},9,m,9,64,1,60" for name in "xy"]
    trace = fitting(read(written(tmp_path, HEADER, *rows[:3], *wrongs, *rows[3:])), cluster)
    assert [(job.name, job.submitted) for job in trace.jobs] == [
        (f"j{i}", 60.0 * i) for i in range(5)
    ]
    assert trace.notes[-1].startswith(
        "2 of 7 jobs cannot run there and are left out: job 'x' lasts 60 s and comes "
    )
    assert f" s {way} the first" in trace.notes[-1]
    assert [job.ended for job in simulate(trace, cluster, "fifo").jobs] == [
        60.0 * i for i in range(1, 6)
    ]
    with pytest.raises(UsageError, match="3 of 6 jobs cannot run there"):
        fitting(
            read(written(tmp_path, HEADER, *rows[:3], *wrongs, f"z,{wrong},9,m,9,64,1,60")), cluster
        )


def test_times_far_from_all_others_that_a_simulation_can_hold_are_told(tmp_path: Path) -> None:
    cluster = Cluster((Node("a", 8.0, 1 << 34, gpus=(Gpu(0, "V100", 1 << 34),) * 4),))
    rows = [f"j{i},2017-10-03 08:{i:02}:00,9,m,9,64,1,60" for i in range(40)]
    early = ["e,2007-10-03 08:00:00,9,m,9,64,1,60", "f,2008-01-01,9,m,9,64,1,60"]
    late = "l,2027-10-03 08:00:00,9,m,9,64,1,60"

    def notes(*lines: str) -> list[str]:
        trace = fitting(read(written(tmp_path, HEADER, *lines)), cluster)
        assert len(trace.jobs) == len(lines)
        return [note for note in trace.notes if "may be wrong" in note]

    assert notes(*rows) == []
    assert notes(*rows, late) == [
        (
            "1 of 41 jobs come 87647 h 24 min or more before or after most others ('l'); their "
            "times may be wrong"
        )
    ]
    assert notes(late, *early, *rows) == [
        (
            "3 of 43 jobs come 85520 h 0 min or more before or after most others ('e', 'f', "
            "'l'); their times may be wrong"
        )
    ]
    assert notes(*rows[:8], *early) == []  # too many to be mistakes


def test_missing_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError) as raised:
        read(written(tmp_path, "job_id,model_name", "a,bert"))
    assert [problem.where for problem in raised.value.problems] == [
        "submission_time",
        "duration (or start_time and end_time)",
        "num_gpu (or cores)",
    ]
    assert "line 1: submission_time: found the columns job_id, model_name; add it" in str(
        raised.value
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected a line with the names of the columns"),
        (f"{HEADER}\n".encode(), "has no jobs"),
        (b"\xff\xfe\x00job", "is no CSV file"),
    ],
)
def test_a_file_without_jobs_is_no_trace(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(f"{path} {message}")):
        read(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.csv: No such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(NotFoundError, match="no recorded data"):
        read(tmp_path)


def test_at_a_load_the_jobs_ask_for_that_part_of_the_cluster(tmp_path: Path) -> None:
    trace = read(
        written(tmp_path, HEADER, "a,0,1,m,1,1,2,100", "b,50,1,m,1,1,1,200", "c,100,1,m,1,1,4,50")
    )
    assert trace.capacity_at(1.0) == 6.0  # 600 GPU-seconds over 100 s
    slower = trace.at_load(0.5, 8.0)
    assert [job.submitted for job in slower.jobs] == [0.0, 75.0, 150.0]
    assert slower.capacity_at(0.5) == pytest.approx(8.0)


def test_what_jobs_do_before_their_work_is_asked_for_too() -> None:
    jobs = [
        TraceJob("a", 0.0, 10.0, cores=2.0, startup_core_seconds=5.0),
        TraceJob("b", 10.0, 15.0),
    ]
    assert made("t", jobs).capacity_at(1.0) == 4.0  # 20 + 5 and 15 core-seconds over 10 s
    # 10 more, of the one of which it is not known
    assert made("t", jobs).capacity_at(1.0, 10.0) == 5.0


def spec_of(**fields: object) -> str:
    """A job as a store keeps it."""
    return json.dumps({"name": "a", "run": "train", **fields})


def profile_of(**fields: object) -> str:
    """A profile as a store keeps it."""
    return json.dumps({"framework_version": "", "source": "run", **fields})


def test_a_run_is_a_trace_of_the_cpu_time_that_its_jobs_used(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    spec = spec_of(priority=2.0, limits={"memory_bytes": 2**30, "gpus": None})
    recorder.add(
        "jobs",
        name="a",
        position=0,
        spec=spec,
        state="done",
        submitted=0.0,
        started=5.0,
        ended=25.0,
    )
    recorder.add(
        "jobs",
        name="b",
        position=1,
        spec="{}",
        state="failed",
        submitted=0.0,
        started=5.0,
        ended=6.0,
    )
    recorder.add(
        "tasks",
        id="a/worker-0",
        job="a",
        started=5.0,
        ended=25.0,
        exit='{"code": 0, "cpu_seconds": 30.0}',
    )
    for t, used in ((10.0, None), (15.0, 2.0), (20.0, 1.0), (25.0, 2.0)):
        recorder.add("usage", t=t, target="a/worker-0", cpu_cores=used)
    for t, loss, step in ((15.0, 0.5, 10), (25.0, 0.25, 20)):
        recorder.add("progress", t=t, task="a/worker-0", step=step, epochs=3, loss=loss, count=1)
    recorder.close()
    [job] = read(tmp_path).jobs
    # 30 CPU seconds, of which 5 passed before the first reading stands for any: it began with the
    # second core at 10 s. What is left it did at the 5/3 cores that it used on average; 10 of those
    # 25 core-seconds by 15 s.
    assert job.startup_core_seconds == 5.0
    assert (job.name, job.submitted, job.seconds, job.cores, job.priority) == (
        "a",
        0.0,
        15.0,
        5 / 3,
        2.0,
    )
    assert (job.memory_bytes, job.steps, job.epochs) == (2**30, 20, 3)
    assert job.losses == ((0.4, 0.5), (1.0, 0.25))


def test_a_job_of_several_tasks_is_as_many_as_at_last_in_a_simulation(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    limits = spec_of(limits={"gpus": 1, "memory_bytes": 2**30, "gpu_memory_bytes": 2**31})
    for name, spec, roles in (
        ("cores", "{}", ("worker-0", "worker-1")),
        ("gpus", limits, ("worker-0", "server-0")),
    ):
        recorder.add(
            "jobs", name=name, spec=spec, state="done", submitted=0.0, started=0.0, ended=8.0
        )
        recorder.add("tasks", id=f"{name}/worker-2", job=name, attempt=1, started=0.0, ended=0.0)
        for role in roles:
            task = f"{name}/{role}"
            recorder.add(
                "tasks",
                id=task,
                job=name,
                attempt=2,
                started=0.0,
                ended=8.0,
                exit='{"cpu_seconds": 8.0}',
            )
            for t in (4.0, 8.0):
                recorder.add("usage", t=t, target=task, cpu_cores=1.0)
    recorder.close()
    on_cores, on_gpus = read(tmp_path).jobs
    assert (on_cores.workers, on_cores.cores, on_cores.seconds) == (2, 2.0, 8.0)
    # a server has none
    assert (on_gpus.gpus, on_gpus.memory_bytes, on_gpus.gpu_memory_bytes) == (1, 2**30, 2**31)
    cluster = Cluster(tuple(Node(name, cores=1.0, memory_bytes=2**34) for name in "ab"))
    [outcome] = simulate(made("t", [on_cores]), cluster, "equal").jobs
    assert outcome.ended == pytest.approx(8.0)


def test_a_job_of_a_run_came_when_its_time_had_come_also_where_it_waited_for_room(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    for name, spec, started, ended in (
        ("a", {}, 1, 10),
        ("b", {"at": 2}, 9, 15),
        ("c", {"after": "b", "at": 1}, 20, 25),
    ):
        times = {"submitted": 0.0, "started": float(started), "ended": float(ended)}
        recorder.add("jobs", name=name, spec=spec_of(**spec), state="done", **times)
    recorder.close()
    assert {job.name: job.submitted for job in read(tmp_path).jobs} == {
        "a": 0.0,
        "b": 2.0,
        "c": 16.0,
    }


def test_what_a_job_of_a_run_did_on_one_core_before_it_told_anything_is_not_its_work(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    for name, usage in (
        ("one", (1.0,) * 4),
        ("late", (1.0, 1.0, 1.0, 2.0)),
        ("wide", (1.0, 2.0, 2.0, 2.0)),
    ):
        task = f"{name}/worker-0"
        recorder.add(
            "jobs", name=name, spec="{}", state="done", submitted=0.0, started=0.0, ended=8.0
        )
        seconds = 2 * sum(usage)
        recorder.add(
            "tasks", id=task, job=name, started=0.0, ended=8.0, exit=f'{{"cpu_seconds": {seconds}}}'
        )
        for place, used in enumerate(usage, 1):
            recorder.add("usage", t=2.0 * place, target=task, cpu_cores=used)
        for t, loss in ((5.0, 0.5), (8.0, 0.25)):
            recorder.add("progress", t=t, task=task, loss=loss, count=1)
    recorder.close()
    one, late, wide = read(tmp_path).jobs
    # Two until their first loss at 5 s, the third until it used a second core at 2 s.
    assert (one.startup_core_seconds, one.seconds, one.losses) == (
        5.0,
        3.0,
        ((0.0, 0.5), (1.0, 0.25)),
    )
    assert (late.startup_core_seconds, late.seconds, late.losses) == (
        5.0,
        2.5,
        ((0.0, 0.5), (1.0, 0.25)),
    )
    assert (wide.startup_core_seconds, wide.seconds, wide.losses) == (
        2.0,
        6.0,
        ((0.5, 0.5), (1.0, 0.25)),
    )


def test_what_no_reading_stands_for_does_not_say_that_a_job_used_a_second_core(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("jobs", name="a", spec="{}", state="done", submitted=0.0, started=0.0, ended=8.0)
    recorder.add(
        "tasks", id="a/worker-0", job="a", started=0.0, ended=8.0, exit='{"cpu_seconds": 11.0}'
    )
    for t, used in ((2.0, None), (4.0, 1.0), (6.0, 2.0)):
        recorder.add("usage", t=t, target="a/worker-0", cpu_cores=used)
    recorder.add("progress", t=7.0, task="a/worker-0", loss=0.5, count=1)
    recorder.close()
    [job] = read(tmp_path).jobs
    # 2.5 of the 5 core-seconds that were not read in its first 2 s, and 2 until it used a second
    # core at 4 s.
    assert job.startup_core_seconds == 4.5


_NODE = json.dumps([{"name": "n", "cores": 2.0}])
_Share = tuple[float, float | None, float, int]
"""When, CPU weight, entitled cores, threads."""


def recorded(
    folder: Path,
    used: Sequence[float],
    shares: Sequence[_Share] = (),
    beside: float = 0.0,
    unread: float = 0.0,
    **row: str,
) -> TraceJob:
    """A job that was read each second, with another on its node for so many seconds, and with CPU
    seconds in no reading.
    """
    recorder = Recorder(folder / "run.sqlite")
    recorder.add("meta", key="node", value=_NODE)
    row = {"spec": spec_of(), "profile": profile_of(framework="torch")} | row
    recorder.add(
        "jobs", name="a", state="done", submitted=0.0, started=0.0, ended=float(len(used)), **row
    )
    given = json.dumps({"cpu_seconds": sum(used) + unread})
    recorder.add(
        "tasks", id="a/worker-0", job="a", node="n", started=0.0, ended=float(len(used)), exit=given
    )
    recorder.add(
        "tasks", id="b/worker-0", job="b", node="n" if beside else "m", started=0.0, ended=beside
    )
    for second, cores in enumerate(used, 1):
        recorder.add("usage", t=float(second), target="a/worker-0", cpu_cores=cores)
    for t, weight, entitled, threads in shares:
        recorder.add(
            "shares",
            t=t,
            task="a/worker-0",
            cpu_weight=weight,
            entitled_cores=entitled,
            threads=threads,
        )
    recorder.close()
    [job] = read(folder).jobs
    return job


_BOTH: _Share = (0.0, 100.0, 2.0, 2)
_HALF: _Share = (0.0, 100.0, 1.0, 1)


@pytest.mark.parametrize(
    ("used", "shares", "beside", "cores"),
    [
        ([1.1] * 59 + [1.9], [_BOTH], 0.0, 66.8 / 60),  # one reading that is far off
        # what it used while it was alone
        ([1.0] * 30 + [1.8] * 10, [_HALF, (30.0, 100.0, 2.0, 2)], 30.0, 1.8),
        ([0.5] * 20, [_HALF], 20.0, 0.5),  # it could have had more
        # held back half of the time: at best, but for what is off
        ([0.9, 0.5] * 10 + [1.3] * 2, [_HALF], 22.0, 0.9),
        # without weights the other has as much as it gets
        ([1.0] * 20, [(0.0, None, 2.0, 2)], 20.0, 1.0),
        ([1.0] * 20, [_HALF], 0.0, 1.0),  # a job of another run was there
        ([1.0] * 20, [], 20.0, 1.0),
    ],
)
def test_a_job_of_a_run_can_use_the_cores_that_it_used_while_nothing_held_it_back(
    tmp_path: Path, used: list[float], shares: list[_Share], beside: float, cores: float
) -> None:
    job = recorded(tmp_path, used, shares, beside)
    assert job.cores == pytest.approx(cores)
    assert job.seconds == pytest.approx(sum(used) / cores)


def test_a_job_of_a_run_that_mostly_waited_takes_as_long_in_a_simulation(tmp_path: Path) -> None:
    assert recorded(tmp_path, [0.001] * 6, unread=0.3).seconds == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("profile", "follows", "parts"),
    [
        ({"framework": "torch", "framework_version": "2.9.0"}, True, True),
        ({"framework": "keras", "framework_version": "3.12.0 on torch 2.9.0"}, True, False),
        ({"framework": "keras", "framework_version": "3.12.0 on tensorflow 2.20.0"}, False, False),
        ({"framework": "jax", "framework_version": "0.8.0"}, False, False),
        (None, False, False),  # none of Headgate's libraries was there to change its threads
    ],
)
def test_threads_of_a_job_of_a_run_follow_its_share_where_torch_and_headgate_see_to_it(
    tmp_path: Path, profile: dict[str, str] | None, follows: bool, parts: bool
) -> None:
    # It started with one thread beside another, and was alone for ten seconds, where only one more
    # tells its use.
    shares = [_HALF, (10.0, 100.0, 2.0, 2)]
    job = recorded(
        tmp_path,
        [0.95] * 10 + [1.05] * 5 + [0.55] * 5,
        shares,
        10.0,
        profile=profile_of(**profile) if profile is not None else "",
    )
    assert (job.threads_follow, job.tells_parts) == (follows, parts)
    assert job.cores == pytest.approx(0.8 if follows else 1.05)


def test_what_its_user_left_a_job_of_a_run_and_how_it_ends_are_kept(tmp_path: Path) -> None:
    spec = spec_of(share="1/4", limits={"cores": 0.5}, progress={"metric": "loss"})
    job = recorded(tmp_path, [0.5] * 10, spec=spec)
    assert (job.share, job.cores_limit, job.foretold) == ("1/4", 0.5, False)  # it told no losses


@pytest.mark.parametrize(
    ("rule", "foretold"), [({}, True), ({"goal": 0.1}, False), ({"metric": "accuracy"}, False)]
)
def test_a_job_of_a_run_is_foretold_by_its_losses_where_nothing_else_ends_it(
    tmp_path: Path, rule: dict[str, object], foretold: bool
) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    spec = spec_of(progress=rule)
    recorder.add("jobs", name="a", state="done", submitted=0.0, started=0.0, ended=10.0, spec=spec)
    recorder.add("progress", t=4.0, task="a/worker-0", step=1, count=1)
    recorder.add("progress", t=5.0, task="a/worker-0", step=3, epoch=2, loss=0.5, count=1)
    recorder.add("progress", t=6.0, task="a/worker-1", step=2, epoch=2, loss=0.7, count=1)
    recorder.close()
    [job] = read(tmp_path).jobs
    assert (job.foretold, job.losses) == (foretold, ((0.5, 0.5),))
    assert job.told == (((3, 2),) if foretold else ())


def test_speeds_and_pairs_are_read_and_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    speeds = tmp_path / "speeds.csv"
    speeds.write_text("model,cores,throughput\nm,4,32\nm,1,10\n")
    assert read_speeds(speeds) == {"m": ((1.0, 10.0), (4.0, 32.0))}
    speeds.write_text("model,cores,throughput\nm,4,fast\n")
    with pytest.raises(
        InvalidFileError, match="line 2: line: found m,4,fast; expected model,cores,throughput"
    ):
        read_speeds(speeds)
    speeds.write_text("model,cores,throughput\nm,1,inf\nm,inf,1\nm,nan,1\n")
    with pytest.raises(InvalidFileError, match=r"(?s)found m,1,inf.*found m,inf,1.*found m,nan,1"):
        read_speeds(speeds)
    pairs = tmp_path / "pairs.json"
    pairs.write_text(
        '{"V100": {"a": {"null": 8.0, "b": [6.0, 1.0], "c": [0, 0]}, "b": {"null": 2.0, "a": '
        "[1.0, 6.0]}}}"
    )
    found = read_pairs(pairs)
    assert (found.kept("v100", "a", "b"), found.kept("v100", "b", "a")) == (0.75, 0.5)
    assert found.kept("v100", "a", "c") is None
    # what was measured, of equal time with what was not
    assert found.on_gpu("v100", "a", ["b", "c"]) == 0.375
    pairs.write_text('{"V100": {"a": {"null": Infinity, "b": [6.0, 1.0]}}}')
    assert read_pairs(pairs).kept("v100", "a", "b") is None
    pairs.write_text("[1]")
    with pytest.raises(UsageError, match="has no measured pairs; expected JSON such as"):
        read_pairs(pairs)
