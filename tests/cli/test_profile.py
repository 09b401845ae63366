from __future__ import annotations

from headgate.cli.profile import describe
from headgate.profiles import Profile


def test_what_was_not_counted_is_not_said_to_be_nothing() -> None:
    said = describe(Profile("jax", "0.10", "run", parameters_dense=96, optimizer="Adam", flops_per_sample=640.0))
    assert "parameters    96 dense, – sparse, –" in said
    assert "optimizer     Adam, – of state" in said
    assert "FLOPs         640 a sample" in said
    counted = describe(Profile("jax", "0.10", "run", parameters_dense=2, parameters_sparse=0, dense_bytes=8))
    assert "parameters    2 dense, 0 sparse, 8 B" in counted
