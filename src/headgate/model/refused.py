"""The error of a refusal."""

from __future__ import annotations

from headgate.model.errors import UsageError
from headgate.model.reasons import Refusal, RefusalKind
from headgate.model.refusal_text import refusal_in_words


class RefusedError(UsageError):
    """Something was refused. `refusal` has kind and facts; the message is made of them."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal_in_words(refusal))
        self.refusal = refusal

    @classmethod
    def of(cls, kind: RefusalKind, **facts: object) -> RefusedError:
        """The error of a refusal with these facts."""
        return cls(Refusal(kind, facts))
