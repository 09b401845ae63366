"""Deliver one message to a recipient: by a command, by HTTP, or by Apprise."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
import uuid
from contextlib import suppress

from headgate.exports import addresses
from headgate.model.errors import HeadgateError, MissingExtraError
from headgate.model.recipients import Notice, Recipient
from headgate.reports.notices import message, payload

SIGNATURE = "X-Headgate-Signature"
"""Header with `sha256=` and the HMAC of the body in hexadecimal digits."""
_AGAIN_LATER = frozenset({408, 425, 429, *range(500, 600)})
_LETTERS = 300


class DeliveryError(HeadgateError):
    """A message was not delivered.

    Args:
        is_final: Whether another attempt would not help.
    """

    def __init__(self, text: str, is_final: bool = False) -> None:
        super().__init__(text[:_LETTERS])
        self.is_final = is_final


def deliver(recipient: Recipient, notice: Notice, id: str) -> None:
    """Deliver a message.

    Args:
        id: The same at each attempt.

    Raises:
        DeliveryError: It was not delivered.
    """
    if recipient.url is not None:
        _post(recipient, notice, id)
    elif recipient.apprise is not None:
        _by_apprise(recipient.apprise, notice)
    else:
        _run(recipient, notice)


def new_id() -> str:
    """An id of a message."""
    return str(uuid.uuid4())


def _variable(name: str) -> str:
    if not os.environ.get(name):
        raise DeliveryError(f"the variable {name} is not set", is_final=True)
    return os.environ[name]


def _expanded(address: str) -> str:
    """An address with the values of its variables."""
    return addresses.VARIABLE.sub(lambda match: _variable(match[1]), address)


def _post(recipient: Recipient, notice: Notice, id: str) -> None:
    body = json.dumps(payload(notice)).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "headgate",
        "X-Headgate-Event": notice.occasion,
        "X-Headgate-Delivery": id,
    }
    if recipient.secret is not None:
        secret = os.fsencode(_variable(recipient.secret))
        headers[SIGNATURE] = f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"
    try:
        request = urllib.request.Request(_expanded(recipient.url or ""), body, headers)
        with urllib.request.urlopen(request, timeout=recipient.timeout):
            pass
    except urllib.error.HTTPError as error:
        is_final = error.code not in _AGAIN_LATER
        error.close()
        raise DeliveryError(f"HTTP {error.code} {error.reason}", is_final) from None
    except OSError as error:
        raise DeliveryError(_in_words(getattr(error, "reason", error))) from error
    except ValueError as error:  # a variable has made no address of it
        raise DeliveryError("its address makes no sense", is_final=True) from error


def _by_apprise(address: str, notice: Notice) -> None:
    try:
        import apprise
    except ImportError:
        needs = str(MissingExtraError("notify", "an address of Apprise"))
        raise DeliveryError(needs, is_final=True) from None
    words, service = message(notice), apprise.Apprise()
    with apprise.LogCapture(level=apprise.logging.WARNING) as log:
        if not service.add(_expanded(address)):
            raise DeliveryError("Apprise does not know such an address", is_final=True)
        if not service.notify(title=words.title, body=words.text or words.title):
            lines = log.getvalue().strip().splitlines()
            raise DeliveryError(lines[-1] if lines else "Apprise could not deliver it")


def _run(recipient: Recipient, notice: Notice) -> None:
    words = message(notice)
    facts = {
        "EVENT": notice.occasion,
        "RUN": notice.run,
        "JOB": notice.job or "",
        "STATE": notice.state or "",
        "TITLE": words.title,
        "TEXT": words.text,
    }
    variables = {f"HEADGATE_{name}": value for name, value in facts.items()}
    command = recipient.command or ()
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as body:
        body.write(json.dumps(payload(notice)).encode() + b"\n")
        body.seek(0)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command] if isinstance(command, str) else command,
                stdin=body,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise DeliveryError(_in_words(error), is_final=True) from error
        try:
            code = process.wait(recipient.timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            text = f"it ran for more than {recipient.timeout:g} s and was killed"
            raise DeliveryError(text, is_final=True) from None
        if code:
            errors.seek(0)
            lines = errors.read(65536).decode(errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            raise DeliveryError(f"exit code {code}{last}", is_final=True)


def _in_words(error: object) -> str:
    return getattr(error, "strerror", None) or str(error) or repr(error)
