"""Why a script ended, by its last lines: the exception is quoted, not what comes after it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from headgate.output.failures import FailureReader


def quoted(text: str, *, signalled: bool = False) -> str | None:
    reader = FailureReader()
    reader.feed(text.split("\n"))
    return reader.quote(signalled=signalled)


SCRIPTS: dict[str, tuple[str, str | None]] = {
    "chained": (
        """
        try:
            {}["lr"]
        except KeyError as error:
            raise ValueError("no learning rate") from error
        """,
        "ValueError: no learning rate (from KeyError: 'lr')",
    ),
    "while handling another": (
        """
        try:
            {}["lr"]
        except KeyError:
            int("ten")
        """,
        "ValueError: invalid literal for int() with base 10: 'ten' (while handling KeyError: 'lr')",
    ),
    "without a message": ("def f(x):\n    assert x\nf(0)", "AssertionError, at script.py, line 2"),
    "no Python": ("x = = 1", "SyntaxError: invalid syntax"),
    "a class of its own": (
        (
            "class Full(Exception): pass\ndef f():\n    class Own(Full): pass\n    raise Own('no "
            "room')\nf()"
        ),
        "Own: no room",
    ),
    "a group": (
        """
        def raised(error):
            try:
                raise error
            except Exception as caught:
                return caught
        inner = ExceptionGroup("in", [TypeError("t")])
        raise ExceptionGroup("many", [raised(OSError("disk")), KeyError("k"), inner])
        """,
        "ExceptionGroup: many (3 sub-exceptions): OSError: disk; KeyError: 'k'; TypeError: t",
    ),
    "tasks of asyncio": (
        """
        import asyncio
        async def fails():
            raise RuntimeError("no socket")
        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        asyncio.run(main())
        """,
        (
            "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): "
            "RuntimeError: no socket"
        ),
    ),
    "a pool": (
        """
        import multiprocessing
        def f(shard):
            raise RuntimeError(f"bad shard {shard}")
        if __name__ == "__main__":
            with multiprocessing.Pool(1) as pool:
                pool.map(f, [3])
        """,
        "RuntimeError: bad shard 3",
    ),
    "a pool of futures": (
        """
        from concurrent.futures import ProcessPoolExecutor
        def f(shard):
            raise RuntimeError(f"bad shard {shard}")
        if __name__ == "__main__":
            with ProcessPoolExecutor(1) as pool:
                pool.submit(f, 3).result()
        """,
        "RuntimeError: bad shard 3",
    ),
    "a message of the script": ("import sys\nprint('starts')\nsys.exit('no such data set')", None),
    "one that it got over": (
        """
        import logging, sys
        try:
            1 / 0
        except ZeroDivisionError:
            logging.exception("an optional part failed")
        for epoch in range(5):
            print(f"epoch {epoch}: loss {1 / (epoch + 1):.3f}", file=sys.stderr)
        sys.exit("no space left for the model")
        """,
        None,
    ),
    "a thread's": (
        """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        raise SystemExit("gave up")
        """,
        None,
    ),
    "a destructor's after it": (
        """
        class Loader:
            def __del__(self):
                raise AttributeError("no workers")
        loader = Loader()
        raise ValueError("shapes differ")
        """,
        "ValueError: shapes differ",
    ),
    "a crash in C": (
        "import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)",
        "Fatal Python error: Segmentation fault, at __init__.py, line",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_really_ended_a_script_is_quoted(name: str, tmp_path: Path) -> None:
    source, expected = SCRIPTS[name]
    script = tmp_path / "script.py"
    script.write_text(dedent(source))
    command = [sys.executable, str(script)]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert ended.returncode
    found = quoted(ended.stdout, signalled=ended.returncode < 0)
    assert found == expected or (
        ended.returncode < 0 and found is not None and found.startswith(str(expected))
    )


LOGS: dict[str, tuple[str, str]] = {
    "JAX's trailer": (
        """
        Traceback (most recent call last):
          File "/home/ada/net.py", line 4, in <module>
            step(jnp.zeros((3,)))
        TypeError: dot_general requires contracting dimensions of the same shape, got (3,), (4,).
        --------------------
        For simplicity, JAX has removed its internal frames from the traceback of the \
following exception.
        """,
        "TypeError: dot_general requires contracting dimensions of the same shape, got (3,), (4,).",
    ),
    "JAX's own link before it": (
        """
        jax.errors.SimplifiedTraceback: For simplicity, JAX has removed its internal frames \
from the traceback.

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "net.py", line 4, in <module>
            step(x)
        ValueError: Incompatible shapes for broadcasting: (3,) and (4,)
        """,
        "ValueError: Incompatible shapes for broadcasting: (3,) and (4,)",
    ),
    "TensorFlow's graph": (
        """
        Traceback (most recent call last):
          File "net.py", line 9, in <module>
            model.fit(x, y)
        tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:

        Detected at node 'Equal' defined at (most recent call last):
            File "net.py", line 9, in <module>
              model.fit(x, y)
            File "/opt/keras/engine/training.py", line 1050, in train_step
              y_pred = self(x, training=True)
        Node: 'Equal'
        Incompatible shapes: [32] vs. [32,10]
        \t [[{{node Equal}}]] [Op:__inference_train_function_763]
        2026-03-01 12:00:01.25: W tensorflow/core/kernels/data/generator_dataset_op.cc:108] \
Error when finalizing
        """,
        "InvalidArgumentError: Graph execution error: Incompatible shapes: [32] vs. [32,10]",
    ),
    "a layer of Keras": (
        """
        Traceback (most recent call last):
          File "net.py", line 3, in <module>
            model(x)
        ValueError: Exception encountered when calling Dense.call().

        \x1b[1mMatrix size-incompatible: [32,784], [100,10]\x1b[0m

        Arguments received by Dense.call():
          • inputs=tf.Tensor(shape=(32, 784), dtype=float32)
        """,
        (
            "ValueError: Exception encountered when calling Dense.call(). Matrix "
            "size-incompatible: [32,784], [100,10]"
        ),
    ),
    "a loader's worker": (
        """
        Traceback (most recent call last):
          File "net.py", line 30, in <module>
            for batch in loader:
        OSError: Caught OSError in DataLoader worker process 3.
        Original Traceback (most recent call last):
          File "/opt/torch/utils/data/_utils/worker.py", line 308, in _worker_loop
            data = fetcher.fetch(index)
        OSError: cannot decode 17.jpg

        """,
        "OSError: cannot decode 17.jpg, in DataLoader worker process 3",
    ),
    "a replica": (
        """
        Traceback (most recent call last):
          File "net.py", line 30, in <module>
            model(x)
        RuntimeError: Caught RuntimeError in replica 1 on device 1.
        Original Traceback (most recent call last):
          File "/opt/torch/nn/parallel/parallel_apply.py", line 64, in _worker
            output = module(*input)
        RuntimeError: shape '[4, 3]' is invalid for input of size 11
        """,
        "RuntimeError: shape '[4, 3]' is invalid for input of size 11, in replica 1 on device 1",
    ),
    "ranks with prefixes, in a tangle": (
        """
        [rank1]: Traceback (most recent call last):
        [rank0]: Traceback (most recent call last):
        [rank1]:   File "net.py", line 5, in <module>
        [rank0]:   File "net.py", line 7, in <module>
        [rank1]:     loss = f(x)
        [rank1]: IndexError: Target 7 is out of bounds.
        [rank0]:     dist.all_reduce(x)
        [rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:3412
        E0301 12:00:00.100 140 torch/distributed/elastic/multiprocessing/api.py:874] failed \
(exitcode: 1) local_rank: 1
        Traceback (most recent call last):
          File "/usr/bin/torchrun", line 8, in <module>
            sys.exit(main())
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
        ============================================================
        net.py FAILED
        ------------------------------------------------------------
        Root Cause (first observed failure):
        [0]:
          rank      : 1 (local_rank: 1)
          exitcode  : 1 (pid: 140)
          traceback : To enable traceback see: the documents
        ============================================================
        """,
        "IndexError: Target 7 is out of bounds.",
    ),
    "torchrun's own record": (
        """
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
        Root Cause (first observed failure):
        [0]:
          rank      : 0 (local_rank: 0)
          traceback : Traceback (most recent call last):
            File "/opt/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 346, \
in wrapper
              return f(*args, **kwargs)
            File "net.py", line 3, in main
              raise ValueError("no data")
          ValueError: no data

        ============================================================
        """,
        "ValueError: no data",
    ),
    "a rank that was killed": (
        """
        Traceback (most recent call last):
          File "/usr/bin/torchrun", line 8, in <module>
            sys.exit(main())
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
        Root Cause (first observed failure):
        [0]:
          exitcode  : -9 (pid: 14750)
          traceback : Signal 9 (SIGKILL) received by PID 14750
        ============================================================
        """,
        "Signal 9 (SIGKILL) received by PID 14750",
    ),
    "accelerate": (
        """
        Traceback (most recent call last):
          File "net.py", line 5, in <module>
            main()
        torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
        Traceback (most recent call last):
          File "/usr/bin/accelerate", line 8, in <module>
            sys.exit(main())
        subprocess.CalledProcessError: Command '['python', 'net.py']' returned non-zero exit \
status 1.
        """,
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    "spawned processes": (
        """
        Traceback (most recent call last):
          File "net.py", line 9, in <module>
            mp.spawn(train, nprocs=2)
        torch.multiprocessing.spawn.ProcessRaisedException:

        -- Process 1 terminated with the following error:
        Traceback (most recent call last):
          File "/opt/torch/multiprocessing/spawn.py", line 90, in _wrap
            fn(i, *args)
        FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'

        """,
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'",
    ),
    "Ray's": (
        """
        (train pid=321) Traceback (most recent call last):
        (train pid=321)   File "net.py", line 3, in train
        (train pid=321) ValueError: batch of 0 samples
        2026-03-01 12:00:00,418 ERROR tune_controller.py:1331 -- Trial task failed for trial \
train_3517d
        Traceback (most recent call last):
          File "/opt/ray/_private/worker.py", line 930, in get_objects
            raise value.as_instanceof_cause()
        ray.exceptions.RayTaskError(ValueError): ray::train() (pid=321, ip=127.0.0.1)
          File "net.py", line 3, in train
            raise ValueError("batch of 0 samples")
        ValueError: batch of 0 samples
        """,
        "ValueError: batch of 0 samples",
    ),
    "rich": (
        """
        ╭───────────────────── Traceback (most recent call last) ──────────────────────╮
        │ /home/ada/net.py:5 in <module>                                               │
        │ ❱ 5 main()                                                                   │
        ╰──────────────────────────────────────────────────────────────────────────────╯
        ValueError: expected 3 channels, got 1; the images are grey and the model was
        built for colours
        Saved the log to out/log.txt
        """,
        (
            "ValueError: expected 3 channels, got 1; the images are grey and the model was built "
            "for colours"
        ),
    ),
    "Hydra": (
        """
        Error executing job with overrides: ['lr=1']
        Traceback (most recent call last):
          File "net.py", line 4, in main
            fit(cfg)
        KeyError: 'lr'

        Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
        """,
        "KeyError: 'lr'",
    ),
    "a bar before it": (
        """
          0%|          | 0/487 [00:00<?, ?it/s]Traceback (most recent call last):
          File "net.py", line 4, in <module>
            fit()
        RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x2)
          0%|          | 0/487 [00:03<?, ?it/s]
        """,
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x2)",
    ),
    "a state_dict": (
        """
        Traceback (most recent call last):
          File "net.py", line 4, in <module>
            model.load_state_dict(state)
        RuntimeError: Error(s) in loading state_dict for Net:
        \tMissing key(s) in state_dict: "fc.weight".
        \tsize mismatch for conv.bias: copying a param with shape [3]
        wandb: View run at somewhere
        """,
        (
            "RuntimeError: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "
            '"fc.weight".'
        ),
    ),
    "a loader's worker that was killed": (
        """
        Traceback (most recent call last):
          File "/opt/torch/utils/data/dataloader.py", line 1243, in _try_get_data
            data = self._data_queue.get(timeout=timeout)
        RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. Memory is full.

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "net.py", line 8, in <module>
            for batch in loader:
        RuntimeError: DataLoader worker (pid(s) 99) exited unexpectedly
        """,
        (
            "RuntimeError: DataLoader worker (pid(s) 99) exited unexpectedly (from RuntimeError: "
            "DataLoader worker (pid 99) is killed by signal: Bus error. Memory is full.)"
        ),
    ),
    "a shell's": ("run.sh: line 3:  4711 Killed                  python net.py", "Killed"),
    "a shell's crash": ("Segmentation fault (core dumped)", "Segmentation fault"),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_exception_is_found_among_what_frameworks_print(name: str) -> None:
    log, expected = LOGS[name]
    assert quoted(dedent(log).strip("\n")) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            (
                "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA "
                "error: invalid device"
            ),
            "c10::Error: CUDA error: invalid device",
        ),
        (
            "terminate called without an active exception",
            "terminate called without an active exception",
        ),
        ("free(): invalid pointer", "free(): invalid pointer"),
        ("double free or corruption (out)", "double free or corruption (out)"),
        (
            "net: a.cpp:12: f(int): Assertion `x > 0' failed.",
            "net: a.cpp:12: f(int): Assertion `x > 0' failed.",
        ),
        (
            "F0301 12:00:00.123456 42 net.cc:12] Check failed: n == 3 (2 vs. 3)",
            "Check failed: n == 3 (2 vs. 3)",
        ),
        (
            "2026-03-01 12:00:00.123456: F tensorflow/core/cuda.cc:12] Failed to make stream",
            "Failed to make stream",
        ),
        ("libc++abi: terminating due to uncaught exception of type E: no", None),
        ("thread '<unnamed>' panicked at src/lib.rs:1: no room", None),
        (
            (
                'Traceback (most recent call last):\n  File "a", line 1, in f\nValueError: told '
                "before the signal"
            ),
            "-",
        ),
    ],
)
def test_what_a_process_prints_as_a_signal_ends_it(log: str, expected: str | None) -> None:
    assert quoted(log, signalled=True) == (None if expected == "-" else expected or log)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("Error: no file conf.yaml\nusage: train.py [-h]", "Error: no file conf.yaml"),
        ("train: fatal error: out of space\nbye", "train: fatal error: out of space"),
        ("[main] ERROR: no data\nuploading logs", "[main] ERROR: no data"),
        ("Error: 0.25\nbye", "bye"),  # a metric
        ("Test Error: 12.3%\nbye", "bye"),
        ("Error: it will try again\n" + "step 3 loss 0.5\n" * 4 + "bye", "bye"),
        ("a\nb\n\n", "b"),
    ],
)
def test_where_no_exception_tells_the_line_that_calls_itself_an_error_is_quoted(
    log: str, expected: str
) -> None:
    reader = FailureReader()
    reader.feed(log.split("\n"))
    assert reader.quote() is None
    assert reader.line == expected


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last): " * 90,
        "[rank0]: Traceback (most recent call last):\n" + "[rank1]: x\n" * 400,
        "Traceback (most recent call last):\nA: " + "b:" * 1900,
        '  File "a", line 1\n' * 300,
        "x: " * 1300 + "Assertion `",
        "12" * 1900 + ": Traceback (most recent call last):\n" + "9" * 4000,
        "  " * 2000 + "| x",
        "a: " * 1300 + "error",
        "[" + "a " * 2000 + "]: error:",
    ],
    ids=range(9),
)
def test_odd_lines_cost_little(line: str) -> None:
    lines = line.split("\n")
    started = time.process_time()
    reader = FailureReader()
    reader.feed(lines)
    assert (time.process_time() - started) / len(lines) < 0.02


CRASH = [
    "Traceback (most recent call last):",
    '  File "a.py", line 2, in <module>',
    "ValueError: boom",
]


@pytest.mark.parametrize(
    ("lines", "alone", "in_a_shell"),
    [
        (["loss 0.5", *CRASH], "ValueError: boom", "ValueError: boom"),
        ([*CRASH, "finished"], "", "ValueError: boom"),
        ([*CRASH, "epoch 2 loss 0.4"], "", ""),
        (["Exception ignored in: <function f>", *CRASH], "", ""),
        (["sh: 1: pythn: not found"], "", "sh: 1: pythn: not found"),
        (
            ["train.py: error: unrecognized arguments: --x"],
            "",
            "train.py: error: unrecognized arguments: --x",
        ),
        (["./run.sh: line 3:  4711 Killed                  python a.py"], "Killed", "Killed"),
        (["loss 0.5", "all files were found"], "", ""),
        ([], "", ""),
    ],
)
def test_the_failure_that_an_output_ends_with(
    lines: list[str], alone: str, in_a_shell: str
) -> None:
    reader = FailureReader()
    reader.feed(lines)
    assert (reader.last(shell=False), reader.last(shell=True)) == (alone, in_a_shell)
