"""Scripts and styles: small on the way, and not asked for twice."""

from __future__ import annotations

import re
import zlib
from http.client import HTTPConnection

from tests.hub.user import SECONDS
from tests.web.conftest import Pages


def encoding(pages: Pages, path: str) -> str | None:
    """How the server encodes what a browser asks for."""
    connection = HTTPConnection("127.0.0.1", pages.port, timeout=SECONDS)
    headers = {"Authorization": f"Bearer {pages.tokens['look']}", "Accept-Encoding": "gzip"}
    connection.request("GET", path, headers=headers)
    encoded = connection.getresponse().getheader("content-encoding")
    connection.close()
    return encoded


def test_a_browser_keeps_a_file_until_it_changes(pages: Pages) -> None:
    script = re.search(r'"(/assets/web\.js\?[^"]+)"', pages.asks("/").text)
    assert script is not None
    assert "immutable" in pages.asks(script[1]).headers["cache-control"]
    for other in ("/assets/web.js", "/assets/web.js?of-an-earlier-version"):
        assert pages.asks(other).headers["cache-control"] == "no-cache"


def test_a_browser_that_looks_for_an_icon_gets_it(pages: Pages) -> None:
    assert pages.asks("/favicon.ico").headers["content-type"] == "image/svg+xml"


def test_what_is_long_is_compressed_and_what_follows_is_sent_at_once(pages: Pages) -> None:
    assert [encoding(pages, path) for path in ("/", "/assets/web.js")] == ["gzip", "gzip"]
    connection = HTTPConnection("127.0.0.1", pages.port, timeout=SECONDS)
    headers = {"Authorization": f"Bearer {pages.tokens['look']}", "Accept-Encoding": "gzip"}
    connection.request("GET", "/live", headers=headers)
    answer, gzip, text = connection.getresponse(), zlib.decompressobj(wbits=31), b""
    while b"\n\n" not in text:
        text += gzip.decompress(answer.read1())
    connection.close()
    assert text.startswith(b"event: all")
