"""What of the user's environment goes to the nodes of a cluster."""

from __future__ import annotations

from headgate.engines.remote.environment import sent


def test_what_jobs_need_goes_and_what_is_the_user_s_own_stays() -> None:
    goes = {
        "PATH": "/bin",
        "HOME": "/home/a",
        "LC_ALL": "C",
        "PYTHONPATH": "/lib",
        "OMP_NUM_THREADS": "2",
        "NCCL_DEBUG": "INFO",
        "XLA_FLAGS": "--x",
        "TORCH_HOME": "/t",
        "PYTORCH_ALLOC_CONF": "",
        "CONDA_PREFIX": "/c",
        "TF_CONFIG": "{}",
        "TOKENIZERS_PARALLELISM": "false",
    }
    stays = {
        "AWS_SECRET_ACCESS_KEY": "x",
        "HF_TOKEN": "x",
        "SSH_AUTH_SOCK": "/s",
        "GITHUB_TOKEN": "x",
        "PGPASSWORD": "x",
        "CONDA_TOKEN": "x",
        "TF_API_KEY": "x",
        "JAX_ACCESS_KEY": "x",
        "WANDB_API_KEY": "x",
        "EDITOR": "vi",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "PATHS": "",
    }
    assert sent(goes | stays, "ray") == goes


def test_what_the_user_names_goes_as_well_secrets_too() -> None:
    environment = {
        "HEADGATE_RAY_ENV": "HF_TOKEN, WANDB_*",
        "HF_TOKEN": "x",
        "WANDB_API_KEY": "y",
        "AWS_KEY": "z",
    }
    assert sent(environment, "ray") == {"HF_TOKEN": "x", "WANDB_API_KEY": "y"}
