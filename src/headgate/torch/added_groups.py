"""Parameter groups added to an optimizer during training, for example when a part of the model is
unfrozen.

A resumed script may add them again, or may be past the code that does. In the first case they load
their saved state when they are added. In the second case this module adds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headgate.task.saving import ResumeError


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, so that state dicts fit with and without
    compilation.
    """
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def names(optimizer: Any, models: Sequence[nn.Module]) -> list[Any]:
    """The parameters of each group, as pairs of model number and name. None for a group with a
    parameter that no model has.
    """
    known = {
        id(p): [number, name] for number, model in enumerate(models) for name, p in _named(model)
    }
    groups = []
    for group in getattr(optimizer, "param_groups", ()):
        named = [known.get(id(parameter)) for parameter in group["params"]]
        groups.append(None if None in named else named)
    return groups


def load(
    optimizer: Any, saved: Mapping[str, Any], named: Sequence[Any], models: Sequence[nn.Module]
) -> AddedGroups | None:
    """Load an optimizer's state from a checkpoint.

    Args:
        optimizer: The optimizer.
        saved: Its state dict in the checkpoint.
        named: The saved result of `names`; empty in checkpoints of earlier versions.
        models: The models; may grow.

    Returns:
        The groups of the checkpoint that the optimizer does not have yet; None if it has all.
    """
    groups = getattr(optimizer, "param_groups", None)
    more = groups is not None and len(saved.get("param_groups", ())) > len(groups)
    if not more or not hasattr(optimizer, "add_param_group"):
        optimizer.load_state_dict(saved)
        return None
    assert groups is not None
    first = saved["param_groups"][: len(groups)]
    known = {number for group in first for number in group["params"]}
    states = {number: state for number, state in saved["state"].items() if number in known}
    optimizer.load_state_dict({**saved, "state": states, "param_groups": first})
    return AddedGroups(optimizer, saved, named, models)


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(unwrapped(model).named_parameters())


def _same(saved: Any, added: Sequence[Any]) -> bool:
    """Whether these are the names of a group in a checkpoint. Unknown names match any group."""
    return saved is None or [list(names) for names in saved] == added


class AddedGroups:
    """The groups that a checkpoint's optimizer has and the script's optimizer does not have yet.

    Args:
        optimizer: The script's optimizer.
        saved: The checkpoint's state dict.
        named: The result of `names` when it was saved.
        models: The models; may grow.
    """

    def __init__(
        self,
        optimizer: Any,
        saved: Mapping[str, Any],
        named: Sequence[Any],
        models: Sequence[nn.Module],
    ) -> None:
        self._optimizer = optimizer
        self._saved = saved
        self._named = named
        self._models = models
        self._add = optimizer.add_param_group
        self._ours: list[set[int]] = []
        optimizer.add_param_group = self._added

    def complete(self, before: int | None = None) -> int:
        """Add the groups that are still missing where the checkpoint was saved. Returns their
        number.

        Args:
            before: Only add groups before this one.

        Raises:
            ResumeError: Their parameters are not known.
        """
        begun = len(self._optimizer.param_groups)
        for number in range(begun, len(self._saved["param_groups"]) if before is None else before):
            parameters = self._parameters(number)
            self._ours.append({id(parameter) for parameter in parameters})
            # the optimizer was made with parameter names
            given = self._saved["param_groups"][number].get("param_names")
            self._add({"params": parameters if given is None else list(zip(given, parameters))})
            self._load(number)
        return len(self._optimizer.param_groups) - begun

    def _parameters(self, number: int) -> list[torch.Tensor]:
        tables = [dict(_named(model)) for model in self._models]
        wanted = self._named[number] if number < len(self._named) else None
        try:
            parameters = [tables[model][name] for model, name in wanted or ()]
        except (IndexError, KeyError):
            parameters = []
        if not parameters:
            raise ResumeError(
                f"the checkpoint's optimizer has {len(self._saved['param_groups'])} parameter "
                f"groups, the script's {len(self._optimizer.param_groups)}; expected the script to "
                "add the others before it trains; undo the change to the script, or start over "
                "with: headgate resume --from-scratch"
            )
        return parameters

    def _added(self, group: dict[str, Any]) -> None:
        given = group["params"]
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        parameters = [entry[1] if isinstance(entry, tuple) else entry for entry in given]
        if {id(parameter) for parameter in parameters} in self._ours:
            return  # by what it did before the checkpoint was taken, which is done already
        known = {
            id(p): [number, name]
            for number, model in enumerate(self._models)
            for name, p in _named(model)
        }
        added = [known.get(id(parameter)) for parameter in parameters]
        missing = range(len(self._optimizer.param_groups), len(self._saved["param_groups"]))
        place = next(
            (n for n in missing if n >= len(self._named) or _same(self._named[n], added)), None
        )
        # the earlier groups; or all groups, if this is one more
        self.complete(before=place)
        self._add({**group, "params": given})
        if place is not None:
            self._load(place)

    def _load(self, number: int) -> None:
        """Load the saved state of a group that the optimizer has now."""
        state = self._optimizer.state_dict()
        group, saved = state["param_groups"][number], self._saved["param_groups"][number]
        if len(group["params"]) != len(saved["params"]):
            raise ResumeError(
                f"parameter group {number} has {len(group['params'])} parameters, in the "
                f"checkpoint {len(saved['params'])}; undo the change to the script, or "
                "start over with: headgate resume --from-scratch"
            )
        groups = [*state["param_groups"]]
        groups[number] = {**saved, "params": group["params"]}
        states = dict(state["state"])
        for place, former in zip(group["params"], saved["params"]):
            if former in self._saved["state"]:
                states[place] = self._saved["state"][former]
        self._optimizer.load_state_dict({**state, "state": states, "param_groups": groups})
