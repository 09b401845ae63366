"""Who may use the page: tokens, and what a browser may do with it.

The first address carries a token, as Jupyter's does. The page keeps it in a cookie, so that the
address that stays in the history and in logs has none. A second token, made from the first, allows
to look and not to act. A browser sends the cookie only where a page of the same site leads: an
answer that leads on by itself (`Refresh`) does, and a redirect would not after a link in a mail.

- A page of another site can neither read nor act: the cookie is `SameSite=Strict`, and a request
  that acts needs an `Origin` that is this page's own, and a header that no form can send.
- Another site's name that was made to mean this machine (DNS rebinding) is refused by its `Host`.
- The page cannot be framed, and runs no script but its own, whatever a job prints.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from enum import Enum
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PARAMETER = "token"
ACTS = "x-headgate"
"""A header that a request that acts has to carry; its value is `act`."""
_SECONDS = 90 * 86_400
_POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'"),
        *("style-src 'self'", "style-src-attr 'unsafe-inline'"),  # widths of bars
        *("img-src 'self' data:", "connect-src 'self'", "manifest-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Right(Enum):
    """What the bearer of a token may do."""

    LOOK = "look"
    ACT = "act"


class Tokens:
    """The two tokens of a server.

    Args:
        secret: The token that allows to act.
    """

    def __init__(self, secret: str) -> None:
        self.act = secret
        self.look = hmac.new(secret.encode(), b"look", hashlib.sha256).hexdigest()[:43]

    def right(self, token: str) -> Right | None:
        """What a token allows; None: it is none of this server's."""
        given = token.encode()
        if hmac.compare_digest(given, self.act.encode()):
            return Right.ACT
        return Right.LOOK if hmac.compare_digest(given, self.look.encode()) else None


class Access:
    """Lets those in who have a token, and adds to each answer what a browser has to obey.

    Args:
        app: What answers them.
        tokens: This server's.
        hosts: Names that `Host` may have besides those of this machine's own addresses.
        port: The port that it listens at; a part of the cookie's name.
        secure: Whether it is reached by TLS.
    """

    def __init__(
        self, app: ASGIApp, tokens: Tokens, hosts: tuple[str, ...], port: int, secure: bool
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._hosts = {name.lower() for name in hosts} | {"localhost"}
        self._cookie = f"headgate-{port}"
        self._secure = secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = self._refused(scope, headers)
        if answer is None:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            token = query.pop(PARAMETER, None)
            right = self._tokens.right(token or self._given(headers))
            if right is None:
                answer = _plain(
                    403, "This page needs the address that `headgate web` printed, with its token."
                )
            elif right is Right.LOOK and scope["method"] not in ("GET", "HEAD"):
                answer = _plain(403, "This link is for looking only.")
            elif token is not None and scope["method"] == "GET":
                answer = self._entered(scope["path"], query, token)
            else:
                scope.setdefault("state", {})["right"] = right
        await (answer or self._app)(scope, receive, _adding(send))

    def _refused(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that may be another site's doing; None: it is not."""
        if not self._is_own(headers.get("host", "")):
            return _plain(
                421, "This name is not known here; start `headgate web` with --name to allow it."
            )
        if scope["method"] in ("GET", "HEAD"):
            return None
        origin = urlsplit(headers.get("origin", ""))
        if origin.netloc != headers.get("host") or headers.get(ACTS) != Right.ACT.value:
            return _plain(403, "Only this page itself may ask for that.")
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # an address is no name that somebody else could have made to mean this machine

    def _given(self, headers: Headers) -> str:
        """The token of a request, from its cookie or as a bearer's."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
        # of other programs of this host, too, whatever characters they have
        return cookie_parser(headers.get("cookie", "")).get(self._cookie, "")

    def _entered(self, path: str, query: dict[str, str], token: str) -> Response:
        """The same address without the token, which a cookie has from now on."""
        # one slash: two would be another host's name
        to = "/" + quote(path.lstrip("/")) + (f"?{urlencode(query)}" if query else "")
        answer = HTMLResponse("", headers={"refresh": f"0; url={to}"})
        answer.set_cookie(
            self._cookie,
            token,
            max_age=_SECONDS,
            httponly=True,
            samesite="strict",
            secure=self._secure,
        )
        return answer


def _plain(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)


def _adding(send: Send) -> Send:
    """Sends what it is given, with the headers that a browser has to obey."""

    async def added(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return added
