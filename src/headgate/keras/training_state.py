"""The contents of a checkpoint, as arrays: what a script trains, and its random states."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

import numpy as np

from headgate.keras import backends, optimizers
from headgate.keras.checkpoints import CheckpointContents
from headgate.task.saving import ResumeError

_COMPARED = 16
"""Number of a model's variables that workers compare."""
_SMALL = 1 << 16
"""Elements of the largest variable that is checked for changes, if there are variables this
small.
"""


def array_of(value: Any) -> np.ndarray[Any, Any]:
    """A variable or tensor of any back end as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    numpy = getattr(value, "numpy", None)
    return np.asarray(numpy() if callable(numpy) else value)


def variables(owner: Any) -> list[Any]:
    """The variables of a model or an optimizer; with Keras 3, those of its random generators are
    among them.
    """
    if owner is None:
        return []
    members = owner.variables
    return list(members() if callable(members) else members)


def rate(optimizer: Any) -> list[Any]:
    """The learning rate of an optimizer, if it is a variable that `variables` lacks, as before
    Keras 3.
    """
    value = getattr(optimizer, "learning_rate", None)
    return (
        [value]
        if hasattr(value, "assign") and all(v is not value for v in variables(optimizer))
        else []
    )


def bytes_of(arrays: Iterable[Any]) -> int:
    """Bytes of these variables."""
    return sum(_elements(v.shape) * np.dtype(_numpy_type(v.dtype)).itemsize for v in arrays)


class TrainingState:
    """Models and their optimizers, in the order in which they were prepared.

    A model may be built, and get its optimizer, long after `prepare`. `load` loads each as soon as
    it is there.

    Args:
        resume: The checkpoint to load from; None: start afresh.
        note: Tells the user something.
    """

    def __init__(
        self, resume: CheckpointContents | None, note: Callable[[str], None] = lambda text: None
    ) -> None:
        self._resume = resume
        self._note = note
        self._told = False
        self._loaded: set[str] = set()
        self.models: list[Any] = []
        self._optimizers: list[Any] = []

    def add(self, model: Any, optimizer: Any) -> tuple[int, bool]:
        """Take a model, and the optimizer that its script steps itself; None: the one it was
        compiled with.

        Returns:
            The model's number, and whether it was not there before.
        """
        number = next(
            (n for n, known in enumerate(self.models) if known is model), len(self.models)
        )
        if number < len(self.models):
            self._optimizers[number] = self._optimizers[number] if optimizer is None else optimizer
            return number, False
        self.models.append(model)
        self._optimizers.append(optimizer)
        if self._resume is not None and not self._resume.of(f"models/{number}"):
            self._loaded |= {f"models/{number}", f"optimizers/{number}"}
            self._tell(
                f"the model that the script prepares now (number {number + 1}) came after the "
                "checkpoint was taken: it starts afresh, and so does what comes later"
            )
        return number, True

    def gpus(self, computed: Any) -> set[int]:
        """Indices of the GPUs that hold its models, as this process numbers them.

        Args:
            computed: What the last step returned. Over JAX it tells the GPUs, because Keras'
                variables have no values while it trains. If it is no array of JAX, a model over JAX
                counts as being on all GPUs.
        """
        numbers = set[int]()
        for model in self.models:
            if backends.backend_of(backends.keras_of(model)) == "jax":
                numbers |= _gpus_of_jax(computed)
                continue
            for variable in variables(model):
                value = getattr(variable, "value", variable)
                numbers |= _gpus_of(variable if callable(value) else value)
        return numbers

    @property
    def optimizers(self) -> list[Any]:
        """One for each model; None where it has none yet."""
        return [
            optimizer if optimizer is not None else getattr(model, "optimizer", None)
            for model, optimizer in zip(self.models, self._optimizers)
        ]

    def settings(self) -> list[dict[str, Any]]:
        """The settings of the optimizers, and the mean absolute values of the models' smallest
        variables, by name.
        """
        settings: list[dict[str, Any]] = []
        for optimizer in self.optimizers:
            # one of the user's own class
            with suppress(AttributeError, NotImplementedError, TypeError, ValueError):
                set_to = optimizer.get_config().items()
                settings.append(
                    {name: float(value) for name, value in set_to if isinstance(value, Real)}
                )
        for model in self.models:
            trained = list(getattr(model, "trainable_variables", ()))
            smallest = sorted(enumerate(trained), key=lambda entry: _elements(entry[1].shape))[
                :_COMPARED
            ]
            settings.append({f"mean |{getattr(v, 'path', v.name)}|": _size(v) for _, v in smallest})
        return settings

    def pending(self, index: int) -> bool:
        """Whether there is something to load into model `index` or its optimizer."""
        return (
            self._resume is not None
            and not {f"models/{index}", f"optimizers/{index}"} <= self._loaded
        )

    def load(self, index: int) -> None:
        """Load the checkpoint, if there is one, into model `index` and its optimizers; the model is
        built.

        Raises:
            ResumeError: It does not fit.
        """
        if self._resume is None or not self.pending(index):
            return
        model, section = self.models[index], f"models/{index}"
        if section not in self._loaded:
            self._loaded.add(section)
            assign(variables(model), self._resume.of(section), section)
        section = f"optimizers/{index}"
        if section not in self._loaded:
            self._loaded.add(section)
            self._load_optimizers(index, self._resume)

    def _load_optimizers(self, index: int, resume: CheckpointContents) -> None:
        model, main = self.models[index], self.optimizers[index]
        trained = resume.place.get("trains", {}).get(str(index), {})
        saved = {optimizers.MAIN: f"optimizers/{index}"}
        saved.update(
            (name, f"held/{index}/{k}")
            for k, name in enumerate(n for n in trained if n != optimizers.MAIN)
        )
        held = optimizers.held_by(model, main)
        for name, optimizer in held.items():
            arrays = resume.of(saved[name]) if name in saved else []
            if not arrays and name != optimizers.MAIN:
                self._tell(
                    f"the checkpoint has nothing of the model's optimizer {name}: it starts afresh"
                )
                continue
            if len(arrays) != len(variables(optimizer)):
                every, numbers = variables(model), trained.get(name)
                optimizers.build(
                    optimizer,
                    model.trainable_variables if numbers is None else [every[n] for n in numbers],
                )
            assign(variables(optimizer), arrays, saved[name])
            rates = (
                f"rates/{index}"
                if name == optimizers.MAIN
                else saved[name].replace("held", "held_rates", 1)
            )
            if owned := resume.of(rates):
                assign(rate(optimizer), owned, rates)
        missing = [name for name in saved if name not in held and resume.of(saved[name])]
        if missing:
            raise ResumeError(
                "the checkpoint has an optimizer "
                f"{missing[0] or 'that the model was compiled with'}, which the "
                "script's model does not; undo the change to the script, or start over with: "
                "headgate resume --from-scratch"
            )

    def load_metrics(self, index: int) -> None:
        """Load the state of the metrics of model `index`; if not all of them are made yet, they
        start anew, which is told.
        """
        saved = self._resume.of(f"metrics/{index}") if self._resume is not None else []
        metrics = self._metrics(self.models[index])
        if len(metrics) == len(saved):
            assign(metrics, saved, f"metrics/{index}")
        elif saved:
            self._tell(
                "the metrics of a model are not made before its first step: those of the epoch in "
                "which it goes on count what is left of it alone"
            )

    def arrays(self, metrics: bool) -> dict[str, np.ndarray[Any, Any]]:
        """Everything that a checkpoint holds of them; with the metrics in the middle of an
        epoch.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for index, (model, main) in enumerate(zip(self.models, self.optimizers)):
            sections = [(f"models/{index}", variables(model))]
            sections += [(f"optimizers/{index}", variables(main)), (f"rates/{index}", rate(main))]
            for k, held in enumerate(
                other for n, other in optimizers.held_by(model, main).items() if n
            ):
                sections += [
                    (f"held/{index}/{k}", variables(held)),
                    (f"held_rates/{index}/{k}", rate(held)),
                ]
            if metrics:
                sections.append((f"metrics/{index}", self._metrics(model)))
            for section, owned in sections:
                arrays.update((f"{section}/{j}", array_of(v)) for j, v in enumerate(owned))
        return arrays

    def trains(self) -> dict[str, dict[str, list[int] | None]]:
        """For each model, its optimizers by name, in the order of `arrays`, and the variables that
        each was built for.
        """
        return {
            str(index): {
                name: optimizers.trains(optimizer, variables(model))
                for name, optimizer in optimizers.held_by(model, main).items()
            }
            for index, (model, main) in enumerate(zip(self.models, self.optimizers))
        }

    def sample(self, index: int) -> list[np.ndarray[Any, Any]]:
        """Some values of what model `index` trains, by which changes are detected."""
        trained = [
            v for v in getattr(self.models[index], "trainable_variables", ()) if _elements(v.shape)
        ]
        smallest = sorted(trained, key=lambda variable: _elements(variable.shape))
        small = [v for v in trained if _elements(v.shape) <= _SMALL] or smallest[:1]
        last = len(small) - 1
        places = {0, last // 3, 2 * last // 3, last} if small else set()
        return [np.array(array_of(small[place])) for place in sorted(places)]

    def metrics(self) -> list[np.ndarray[Any, Any]]:
        """The state of the metrics of all models, in the order in which `arrays` reads it."""
        return [array_of(v) for model in self.models for v in self._metrics(model)]

    def bytes(self) -> int:
        """Bytes of the variables of all models."""
        return sum(bytes_of(variables(model)) for model in self.models)

    def _tell(self, text: str) -> None:
        """Tell the user, once, that something starts afresh."""
        if not self._told:
            self._told = True
            self._note(text)

    @staticmethod
    def _metrics(model: Any) -> list[Any]:
        return [v for metric in getattr(model, "metrics", ()) for v in metric.variables]


def assign(owned: Sequence[Any], saved: Sequence[np.ndarray[Any, Any]], what: str) -> None:
    """Set variables to saved values.

    Raises:
        ResumeError: Their number or their shapes differ.
    """
    shapes = [tuple(v.shape) for v in owned]
    wanted = [array.shape for array in saved]
    if shapes != wanted:
        different = next(
            (i for i, (a, b) in enumerate(zip(shapes, wanted)) if a != b),
            min(len(shapes), len(wanted)),
        )
        given, own = (
            shape[different] if different < len(shape) else "none" for shape in (wanted, shapes)
        )
        raise ResumeError(
            f"{what}: the checkpoint has {len(wanted)} variables, the script {len(shapes)}; the "
            f"first that differs, number {different}, has the shape {given} in the checkpoint and "
            f"{own} in the script; undo the change to the script, or start over with: headgate "
            "resume --from-scratch"
        )
    for variable, array in zip(owned, saved):
        variable.assign(array)


def random_states() -> dict[str, np.ndarray[Any, Any]]:
    """The states of Python's and NumPy's generators, and of torch's where it is imported."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    states = {
        "python": np.array([version, *words], np.int64),
        "python_gauss": np.array([] if gauss is None else [gauss], np.float64),
        "numpy": np.asarray(keys),
        "numpy_more": np.array([position, has_gauss, cached], np.float64),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy()
    return states


def restore_random(states: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Restore the states of `random_states`."""
    version, *words = states["python"].tolist()
    gauss = states["python_gauss"].tolist()
    random.setstate((version, tuple(words), gauss[0] if gauss else None))
    position, has_gauss, cached = states["numpy_more"].tolist()
    np.random.set_state(("MT19937", states["numpy"], int(position), int(has_gauss), cached))
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in states:
        torch.set_rng_state(torch.from_numpy(states["torch"].copy()))


def _size(variable: Any) -> float | None:
    """The mean absolute value of a variable; None if no single worker has all of it."""
    try:
        return float(np.abs(array_of(variable).astype(np.float64)).mean())
    except (RuntimeError, TypeError, ValueError):
        return None


def _elements(shape: Any) -> int:
    return int(np.prod([int(n) for n in shape], dtype=np.int64))


def _numpy_type(dtype: Any) -> Any:
    name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(f"u{ {'bfloat16': 2}.get(name, 4 if name == 'string' else 1) }")


def _gpus_of(value: Any) -> set[int]:
    if hasattr(value, "is_cuda"):
        return {value.device.index} if value.is_cuda else set()
    tensorflow = sys.modules["tensorflow"]
    specs = [
        tensorflow.DeviceSpec.from_string(part.device)
        for part in getattr(value, "values", (value,))
    ]
    if any(spec.job == "ps" for spec in specs):  # what computes is not where the variables are
        return set(range(len(tensorflow.config.list_logical_devices("GPU"))))
    return {int(spec.device_index) for spec in specs if spec.device_type == "GPU"}


def _gpus_of_jax(computed: Any) -> set[int]:
    import jax

    devices = (
        computed.devices() if callable(getattr(computed, "devices", None)) else jax.local_devices()
    )
    local = [
        device
        for device in devices
        if device.platform != "cpu" and device.process_index == jax.process_index()
    ]
    return {int(device.local_hardware_id) for device in local}
