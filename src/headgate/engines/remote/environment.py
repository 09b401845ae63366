"""Which variables of the user's environment go to the nodes of a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from headgate.scripts.variables import is_secret

SENT = (
    *(
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "LC_*",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
    ),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*"),
    *(
        "OMP_*",
        "GOMP_*",
        "KMP_*",
        "MKL_*",
        "OPENBLAS_*",
        "BLIS_*",
        "NUMEXPR_*",
        "TBB_*",
        "NPROC",
        "PJRT_*",
    ),
    *("NUMBA_*", "RAYON_*", "POLARS_*"),
    *(
        "CUDA_*",
        "CUDNN_*",
        "CUBLAS_*",
        "NVIDIA_*",
        "NCCL_*",
        "GLOO_*",
        "UCX_*",
        "OMPI_MCA_*",
        "HIP_*",
        "ROCR_*",
        "HSA_*",
    ),
    *("TORCH*", "PYTORCH_*", "TRITON_*", "TF_*", "XLA_*", "JAX_*", "KERAS_*"),
    *("HF_HOME", "HF_HUB_CACHE", "TOKENIZERS_PARALLELISM"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"),
    "HEADGATE_REPORT",
)
"""Names and patterns of variables that find programs and libraries, set up frameworks and their
threads, or are for Headgate wherever jobs run.
"""

_HERE = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
    }
)
"""They name devices of this machine. On a node, its engine sets them."""


def more(engine: str) -> str:
    """The variable that lists further variables for the nodes of an engine, separated by commas
    (`HF_TOKEN,WANDB_*`). For an engine `slurm` it is `HEADGATE_SLURM_ENV`.
    """
    return f"HEADGATE_{re.sub('[^A-Z0-9]', '_', engine.upper())}_ENV"


def sent(environment: Mapping[str, str], engine: str) -> dict[str, str]:
    """The part of the user's environment that goes to the nodes of an engine: the variables in
    `SENT` and in the list of `more`. A variable whose name tells a secret, or that names devices of
    this machine, goes only if that list names it. A job's own `env:` is always added.
    """
    wanted = [name.strip() for name in environment.get(more(engine), "").split(",")]
    return {
        name: value
        for name, value in environment.items()
        if _is_one(name, wanted)
        or (_is_one(name, SENT) and name not in _HERE and not is_secret(name))
    }


def _is_one(name: str, patterns: list[str] | tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
