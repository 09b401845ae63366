from __future__ import annotations

from headgate.cli.profile import describe
from headgate.model.profiles import Profile, StepTime, TimeFit


def test_what_was_not_counted_is_not_said_to_be_nothing() -> None:
    said = describe(
        Profile("jax", "0.10", "run", parameters_dense=96, optimizer="Adam", flops_per_sample=640.0)
    )
    assert "parameters    96 dense, – sparse, –" in said
    assert "optimizer     Adam, – of state" in said
    assert "FLOPs         640 a sample" in said
    assert "computes" not in said
    counted = describe(
        Profile("jax", "0.10", "run", parameters_dense=2, parameters_sparse=0, dense_bytes=8)
    )
    assert "parameters    2 dense, 0 sparse, 8 B" in counted


def test_steps_are_told_as_in_every_other_table() -> None:
    times, fit = StepTime("cpu", 1, 32, 0.000135, 61, 0.4), TimeFit("cpu", 1, 2e-3, 3e-6, 0.1)
    said = describe(
        Profile("torch", "2.6", "run", step_times=(times,), fits=(fit,), autocast="bfloat16")
    )
    assert "computes      autocast to bfloat16" in said
    assert "batch 32 on cpu, 1 thread: 135 µs, 237,037 samples/s" in said
    assert "fit           cpu, 1 thread: 2 ms + 3 µs a sample" in said
