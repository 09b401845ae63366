"""A user's YAML file: values, line numbers, and problems."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from headgate.model.errors import InvalidFileError, Problem, UsageError
from headgate.model.paths import opened

Place = tuple[str | int, ...]
"""Keys and indices that lead to a value."""


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


Number = Annotated[float, BeforeValidator(_no_bool)]
Whole = Annotated[int, BeforeValidator(_no_bool)]


class Entry(BaseModel):
    """A mapping that refuses unknown keys. The docstring below a field becomes its description in
    the schema.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def models(whole: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The models in a file by the last key on the way to them; the whole file's model by "".

    Args:
        whole: Model of the whole file.
    """
    known = {"": whole}
    for key, field in whole.model_fields.items():
        for model in filter(_is_model, _types(field.annotation)):
            known |= {**models(model), key: model}
    return {**known, "": whole}


def _is_text(whole: type[BaseModel], place: Place) -> bool:
    """Whether the value at a place of a file is text or lies within text."""
    model: type[BaseModel] | None = whole
    for key in place:
        if isinstance(key, int):
            continue
        if model is None or key not in model.model_fields:
            return False
        types = _types(model.model_fields[key].annotation)
        if str in types:
            return True
        model = next(filter(_is_model, types), None)
    return False


def _types(hint: Any) -> tuple[Any, ...]:
    """The plain types within a type; a literal gives the types of its values."""
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return tuple({type(value) for value in parts})
    if get_origin(hint) is Annotated:
        parts = parts[:1]
    return tuple(kind for part in parts for kind in _types(part)) if parts else (hint,)


def _is_list(hint: Any) -> bool:
    """Whether values of a type are lists."""
    if get_origin(hint) in (list, tuple):
        return True
    return any(map(_is_list, get_args(hint)))


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def json_schema(model: type[Entry], title: str) -> dict[str, Any]:
    """The JSON schema of a file, each description on one line.

    Args:
        model: Model of the file.
        title: Title of the schema, such as `Headgate job file`.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
        "title": title,
    }
    for entry in (schema, *schema.get("$defs", {}).values()):
        for described in (entry, *entry.get("properties", {}).values()):
            if "description" in described:
                described["description"] = " ".join(described["description"].split())
    return schema


MOST_LETTERS = 1_000_000
MOST_VALUES = 50_000
"""Most values of a file with aliases, or one for each letter of a longer file. Values behind an
alias count at each use.
"""
_DEEPEST = 40
_SURROGATE = re.compile("[\\ud800-\\udfff]")
_NO_TEXT = "leave out the half of a surrogate pair: it is no text"
_TAG = "tag:yaml.org,2002:"
_FOUND_LETTERS = 80
_EXPECTED = {
    "bool_parsing": "true or false",
    "dict_type": "keys with values",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "keys with values",
    "string_type": "text",
    "too_short": "at least one",
}


_READ_OTHERWISE = re.compile(r".*:.*|[-+]?0[0-7_]+")
"""Numbers that YAML reads in an unexpected base: 14:30 in base 60 (870), 010 in base 8 (8)."""


class Loader(yaml.SafeLoader):
    """A YAML loader that refuses deep nesting early and keeps numbers as written."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        is_number = tag in (f"{_TAG}int", f"{_TAG}float")
        return f"{_TAG}str" if is_number and _READ_OTHERWISE.fullmatch(value) else tag

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth > _DEEPEST:
            raise yaml.composer.ComposerError(None, None, "it is nested too deep", self.get_mark())
        self._depth += 1
        try:
            child: yaml.Node | None = super().compose_node(parent, index)
            return child
        finally:
            self._depth -= 1


class UserFile:
    """A file as it was read.

    Args:
        path: The file.
        whole: Model of its content. Text is kept as typed: YAML would turn 010 into 8, 1.10 into
            1.1, and yes into true.

    Raises:
        UsageError: The file cannot be read.
        InvalidFileError: The file is not YAML.
    """

    def __init__(self, path: str, whole: type[BaseModel]) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self._whole = whole
        self._lines: dict[Place, int] = {}
        self._values = 0
        try:
            with opened(path) as file:
                text = file.read(MOST_LETTERS + 1)
        except (OSError, ValueError) as error:  # not UTF-8, or a NUL in the path
            why = getattr(error, "strerror", None) or str(error)
            if isinstance(error, UnicodeDecodeError):
                why = f"byte {error.start} is no UTF-8; save the file in this encoding"
            raise UsageError(f"cannot read {path}: {why}") from error
        if len(text) > MOST_LETTERS:
            raise UsageError(
                f"cannot read {path}: it has more than {MOST_LETTERS:,} characters; divide it"
            )
        self._most_values = max(MOST_VALUES, len(text))
        try:
            loader = Loader(text)
            root = loader.get_single_node()
            if root is not None:
                self._walk(root, (), ())
            self.data: Any = loader.construct_document(root) if root is not None else {}
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            fault = getattr(error, "problem", None) or "this is not YAML"
            line = mark.line + 1 if mark else None
            raise InvalidFileError(
                path, [Problem("file", line, fault, "correct the YAML there")]
            ) from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # An impossible date, or a tag (`!!timestamp x`) whose value PyYAML cannot read.
            fault = (
                str(error)
                if isinstance(error, ValueError)
                else "a value is not of the kind that its tag says"
            )
            raise InvalidFileError(
                path, [Problem("file", None, fault, 'put text into "quotes"')]
            ) from error

    def line(self, place: Sequence[str | int]) -> int | None:
        """Line of a value, or of the nearest value around it."""
        for end in range(len(place), -1, -1):
            if (line := self._lines.get(tuple(place[:end]))) is not None:
                return line
        return None

    def problem(self, place: Sequence[str | int], text: str, cure: str) -> None:
        """Record a problem."""
        self.problems.append(Problem(where(place), self.line(place), text, cure))

    def record_error(self, error: Mapping[str, Any]) -> Place:
        """Record an error of pydantic. Returns its place.

        Args:
            error: One of `ValidationError.errors()`.
        """
        place = tuple(part for part in error["loc"] if part != "[key]")
        if error["type"] == "extra_forbidden":
            known_models = models(self._whole)
            names = ["", *(part for part in place[:-1] if isinstance(part, str))]
            known = sorted(known_models[names[-1]].model_fields)
            key = str(place[-1])
            called = OTHER_NAMES.get(key, key)
            elsewhere = (
                "" if called in known else _elsewhere(called, error["input"], names, known_models)
            )
            if not elsewhere and called not in known:
                elsewhere = _misspelt(called, error["input"], names, known_models)
            cure = elsewhere or suggestion(key, known)
            self.problems.append(
                Problem(where(place[:-1]), self.line(place), f"unknown key {place[-1]!r}", cure)
            )
        elif error["type"] == "missing":
            self.problem(place, "it is missing", "add it")
        else:
            value = error["input"]
            message = error["msg"].removeprefix("Value error, ")
            cure = (message[0].lower() + message[1:]).replace(
                "input should be", "expected a value" if " than " in message else "expected"
            )
            if error["type"] in _EXPECTED:
                cure = f"expected {_EXPECTED[error['type']]}"
                if error["type"] == "list_type" and isinstance(value, Mapping):
                    cure += "; begin each entry with `- `"
            self.problem(place, "it is empty" if value is None else f"found {_short(value)}", cure)
        return place

    def valid_entries(self, listed: str) -> tuple[dict[int, dict[str, Any]], set[Place]]:
        """Record all errors of a file that is a list of entries.

        Args:
            listed: Key of the list.

        Returns:
            The valid values of each entry, by its index, and the places of invalid values. Valid
            values are checked further even if the entry has an error.
        """
        places: set[Place] = set()
        try:
            self._whole.model_validate(self.data)
        except ValidationError as error:
            places = {self.record_error(dict(details)) for details in error.errors()}
        bad = {place[:3] for place in places}
        listing = self.data.get(listed) if isinstance(self.data, dict) else None
        entries = {
            i: {key: value for key, value in entry.items() if (listed, i, key) not in bad}
            for i, entry in enumerate(listing if isinstance(listing, list) else ())
            if isinstance(entry, dict)
        }
        return entries, places

    def check(self) -> None:
        """Raise the recorded problems, if any.

        Raises:
            InvalidFileError: There are problems.
        """
        if self.problems:
            unique = dict.fromkeys(self.problems)
            raise InvalidFileError(
                self.path, sorted(unique, key=lambda problem: (problem.line or 0, problem.where))
            )

    def _walk(self, node: yaml.Node, place: Place, around: tuple[yaml.Node, ...]) -> None:
        line = node.start_mark.line + 1
        self._values += 1
        if self._values > self._most_values:
            fault = f"its aliases make more than {self._most_values:,} values of it"
            raise InvalidFileError(
                self.path, [Problem(where(place), line, fault, "write out what is meant")]
            )
        if len(around) > _DEEPEST:
            raise InvalidFileError(
                self.path, [Problem("file", line, "it is nested too deep", "write it flat")]
            )
        if isinstance(node, yaml.ScalarNode) and _SURROGATE.search(node.value):
            raise InvalidFileError(
                self.path, [Problem(where(place), line, f"found {_short(node.value)}", _NO_TEXT)]
            )
        if any(node is outer for outer in around):
            raise InvalidFileError(
                self.path, [Problem(where(place), line, "an alias of what it is in", "remove it")]
            )
        around = (*around, node)
        self._lines.setdefault(place, line)
        if isinstance(node, yaml.MappingNode):
            self._walk_keys(node, place, around)
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                self._walk(value, (*place, i), around)
        elif node.tag.startswith(_TAG):
            means_text = _is_text(self._whole, place) and node.tag != f"{_TAG}null"
            # Headgate has no dates: a timestamp is kept as text.
            node.tag = f"{_TAG}str" if means_text or node.tag == f"{_TAG}timestamp" else node.tag

    def _walk_keys(
        self, node: yaml.MappingNode, place: Place, around: tuple[yaml.Node, ...]
    ) -> None:
        seen = set()
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    self._walk(merged, place, around)
                continue
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            line = key.start_mark.line + 1
            if _SURROGATE.search(name):
                raise InvalidFileError(
                    self.path, [Problem(where(place), line, f"found {_short(name)}", _NO_TEXT)]
                )
            if name in seen:
                self.problems.append(
                    Problem(where(place), line, f"{name!r} is given twice", "keep one")
                )
            seen.add(name)
            if isinstance(key, yaml.ScalarNode) and key.tag.startswith(_TAG):
                key.tag = f"{_TAG}str"
            self._lines[*place, name] = line
            self._walk(value, (*place, name), around)


def where(place: Sequence[str | int]) -> str:
    """A place as people read it: `jobs[0].limits.cores`."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "top level"


OTHER_NAMES = {
    **dict.fromkeys(("cpu", "cpus", "ncpus", "num_cpus", "cpus_per_task"), "cores"),
    **dict.fromkeys(("mem", "ram", "max_memory", "memory_limit"), "memory"),
    **dict.fromkeys(("gpu", "ngpus", "num_gpus", "n_gpus", "gres"), "gpus"),
    **dict.fromkeys(("vram", "gpu_mem", "gpu_ram"), "gpu_memory"),
    **dict.fromkeys(("cmd", "command", "entrypoint"), "run"),
    **dict.fromkeys(("depends_on", "dependency", "needs"), "after"),
    **dict.fromkeys(("environment", "envs", "env_vars"), "env"),
    **dict.fromkeys(("cwd", "chdir", "working_dir"), "workdir"),
    **dict.fromkeys(
        ("nworkers", "n_workers", "nproc", "nproc_per_node", "nprocs", "world_size", "replicas"),
        "workers",
    ),
    **dict.fromkeys(("start", "start_at", "start_time", "begin", "delay"), "at"),
    **dict.fromkeys(("time_limit", "walltime", "max_time"), "timeout"),
    **dict.fromkeys(("retry", "max_retries", "restarts", "max_restarts"), "retries"),
    "arguments": "args",
    "job_name": "name",
}
"""Other schedulers' names for Headgate's keys, which spelling alone would not lead to."""


def suggestion(text: str, known: Sequence[str]) -> str:
    """The likely replacement for an unknown name, as part of a message."""
    other = OTHER_NAMES.get(text)
    near = [other] if other in known else difflib.get_close_matches(text, known, 1)
    return f"did you mean {near[0]!r}?" if near else "expected one of " + ", ".join(known)


def _elsewhere(
    key: str, value: object, names: Sequence[str], models: Mapping[str, type[BaseModel]]
) -> str:
    """Where an unknown key belongs: below a sibling key, or further up; empty: nowhere near.

    Args:
        value: The key's value.
        names: Names on the way to the key, the nearest last; empty: the whole file.
        models: Models with the known keys, by the last name on the way to them.
    """
    model_fields = models[names[-1]].model_fields
    sections = [
        name for name in model_fields if name in models and key in models[name].model_fields
    ]
    for name in sections:
        lacks = any(
            field.is_required()
            for other, field in models[name].model_fields.items()
            if other != key
        )
        if not lacks and not _is_list(model_fields[name].annotation):
            text = "..." if isinstance(value, Mapping | list) or value is None else str(value)
            return f"write `{name}: {{{key}: {text}}}`"
    if sections:
        is_listed = _is_list(model_fields[sections[0]].annotation)
        return f"it belongs {'in an entry of the list' if is_listed else 'below'} `{sections[0]}:`"
    for name, outer in zip(reversed(names[:-1]), reversed(names[1:]), strict=True):
        if key in models[name].model_fields:
            return f"it belongs beside `{outer}:`, not below it"
    return ""


def _misspelt(
    key: str, value: object, names: Sequence[str], models: Mapping[str, type[BaseModel]]
) -> str:
    """The name that an unknown key is most like, and where it belongs, if that is below a sibling
    key; empty: it is not. Arguments as of `_elsewhere`.
    """
    fields_here = models[names[-1]].model_fields
    below = [field for name in fields_here if name in models for field in models[name].model_fields]
    near = difflib.get_close_matches(key, [*fields_here, *below], 1)
    if not near or near[0] in fields_here:
        return ""
    return f"did you mean {near[0]!r}? {_elsewhere(near[0], value, names, models)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _FOUND_LETTERS else text[: _FOUND_LETTERS - 3] + "..."
