"""Other optimizers of a Keras model than the one that it was compiled with, and what each trains. A
pair of networks with its own train step has some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

MAIN = ""
"""The name of the one that the model was compiled with, or that was prepared with it."""
_DEPTH = 6
_LAYERS = {"_layers", "_self_tracked_trackables"}
"""Attributes that hold the layers of a model, of Keras 3 and of Keras before."""


def held_by(model: Any, main: Any) -> dict[str, Any]:
    """The optimizers of a model by the name of the attribute that has them: `MAIN`,
    `critic.optimizer`, `steps[1]`.

    Args:
        model: A model, or what else has variables.
        main: Its main optimizer, if it has one yet.
    """
    by_name = {} if main is None else {MAIN: main}
    known = {
        id(owner) for owner in (main, getattr(main, "inner_optimizer", None)) if owner is not None
    }
    for name, optimizer in _attributes(model, "", set(), _DEPTH):
        if id(optimizer) not in known:
            known.add(id(optimizer))
            by_name[name] = optimizer
    return by_name


def trains(optimizer: Any, variables: Sequence[Any]) -> list[int] | None:
    """The indices, among these variables, of those that an optimizer was built for; None if
    unknown.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    places = getattr(inner, "_index_dict", None)
    if places:  # of Keras before version 3
        keys = {inner._var_key(variable): number for number, variable in enumerate(variables)}
        return (
            [keys[key] for key in sorted(places, key=places.get)]
            if places.keys() <= keys.keys()
            else None
        )
    trained = getattr(inner, "_trainable_variables", None)
    if not trained:
        return None
    numbers = {id(variable): number for number, variable in enumerate(variables)}
    indices = [numbers.get(id(variable)) for variable in trained]
    return None if None in indices else [number for number in indices if number is not None]


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make an optimizer's own variables, for the training of these, if it has none yet."""
    if getattr(optimizer, "built", False) is True:
        return
    make: Callable[[Any], Any] = getattr(optimizer, "build", None) or optimizer._create_all_weights
    make(list(variables))


def _attributes(owner: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Optimizers below an object, with where they are."""
    if id(owner) in seen or depth < 0:
        return
    seen.add(id(owner))
    for name, value in _parts(owner):
        place = f"{path}{name}" if name.startswith("[") or not path else f"{path}.{name}"
        if _is_optimizer(value):
            yield place, value
        elif isinstance(value, (Mapping, list, tuple)) or _has_parts(value):
            yield from _attributes(value, place, seen, depth - 1)


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, Mapping):
        for key in list(owner):
            yield f"[{key!r}]", owner[key]
    elif isinstance(owner, (list, tuple)):
        for number, value in enumerate(owner):
            yield f"[{number}]", value
    else:
        attributes = dict(getattr(owner, "__dict__", {}))
        for name in [name for name in attributes if not name.startswith("_")]:
            yield name, attributes.pop(name)
        for name in _LAYERS & attributes.keys():
            yield name, attributes[name]


def _is_optimizer(value: Any) -> bool:
    methods = ("apply_gradients", "get_config")
    return all(callable(getattr(type(value), name, None)) for name in methods) and hasattr(
        type(value), "variables"
    )


def _has_parts(value: Any) -> bool:
    """Whether a value is a layer, a model, or a module of TensorFlow, whose attributes may be
    optimizers.
    """
    kind = type(value)
    return (
        hasattr(kind, "trainable_variables")
        and hasattr(value, "__dict__")
        and not _is_optimizer(value)
    )
