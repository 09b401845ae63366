"""`notify:` in users' files: recipients of messages, each as text or by its keys."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler, TypeAdapter, model_validator
from pydantic_core import CoreSchema

from headgate.config.records import entry_of
from headgate.model.recipients import Recipient


class RecipientEntry(entry_of(Recipient)):  # type: ignore[misc]  # its keys are fields of Recipient
    """A recipient of messages: as text an address or a command, or by its keys."""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        recipient = Recipient.of(value)
        ways = {name: getattr(recipient, name) for name in ("command", "url", "apprise")}
        return {name: way for name, way in ways.items() if way is not None}

    @model_validator(mode="after")
    def _is_whole(self) -> RecipientEntry:
        self.record()
        return self


def _several(value: object) -> object:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


class _OneOrMore:
    """A schema of one or more, each also as text."""

    @staticmethod
    def __get_pydantic_json_schema__(
        schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        several = handler(schema)
        several["items"] = {"anyOf": [{"type": "string"}, several["items"]]}
        return {"anyOf": [*several["items"]["anyOf"], several]}


Recipients = Annotated[list[RecipientEntry], BeforeValidator(_several), _OneOrMore]


_OF_DATA: TypeAdapter[list[RecipientEntry]] = TypeAdapter(Recipients)


def recipients(data: object, of_run: bool = False) -> tuple[Recipient, ...]:
    """The recipients of a file's value, each once.

    Raises:
        ValidationError: The value is invalid.
    """
    entries = _OF_DATA.validate_python(data)
    return tuple(dict.fromkeys(entry.record(of_run=of_run) for entry in entries))
