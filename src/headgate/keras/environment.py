"""Which Keras and which back end a script uses, found before anything is trained."""

from __future__ import annotations

import importlib
import os
import sys
from importlib import metadata


def legacy() -> bool:
    """Whether `tf.keras` is Keras as it was before version 3."""
    asked = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    return asked or ("tf_keras" in sys.modules and "keras" not in sys.modules)


def backend() -> str:
    """What computes in this script: `tensorflow`, `jax` or `torch`."""
    plain = (
        "tensorflow" in sys.modules
        and "keras" not in sys.modules
        and "KERAS_BACKEND" not in os.environ
    )
    if legacy() or plain:
        return "tensorflow"
    keras = importlib.import_module("keras")
    return "tensorflow" if keras.__version__.startswith("2.") else str(keras.backend.backend())


def version() -> str:
    """Version of the Keras in use; empty where there is none."""
    for name in ("tf_keras", "keras") if legacy() else ("keras", "tf_keras"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def seed() -> int | None:
    """The seed last given to `keras.utils.set_random_seed` or `tf.random.set_seed`; None if neither
    was called.
    """
    kept = sys.modules.get("keras.src.utils.rng_utils")
    value = getattr(kept, "get_random_seed", lambda: None)()
    context = sys.modules.get("tensorflow.python.eager.context")
    if value is None and context is not None:
        value = context.global_seed()
    return None if value is None else int(value)
