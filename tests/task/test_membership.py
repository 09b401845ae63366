"""Which variables of a task's environment tell of another cluster than its job's tasks."""

from __future__ import annotations

import pytest

from headgate.task import cluster_variables


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, ""),
        ({"WORLD_SIZE": "", "OMP_NUM_THREADS": "1"}, ""),
        # one process, and nowhere to meet another
        ({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, ""),
        (
            {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "here"},
            "MASTER_ADDR=here, WORLD_SIZE=1, RANK=0",
        ),
        ({"WORLD_SIZE": "1", "RANK": "1"}, "WORLD_SIZE=1, RANK=1"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE=2, RANK=0"),
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK=0"),
        ({"WORLD_SIZE": "1", "TF_CONFIG": "{" * 99}, f"TF_CONFIG={'{' * 60}, WORLD_SIZE=1"),
        (
            {"JAX_PROCESS_ID": "0", "RANK": "0", "WORLD_SIZE": "1"},
            "WORLD_SIZE=1, RANK=0, JAX_PROCESS_ID=0",
        ),
    ],
)
def test_a_group_of_one_process_that_has_no_address_is_no_other_cluster(
    variables: dict[str, str], said: str
) -> None:
    assert cluster_variables(variables) == said
