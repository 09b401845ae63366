"""The arbiter's process: `python -m headgate.arbiter RULES SOCKET FOLDER json|text`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from headgate.arbiter.process import Places, serve
from headgate.model.errors import HeadgateError


def main() -> None:
    """Serve until a signal ends it."""
    rules, socket, folder, form = sys.argv[1:]

    def serves() -> None:
        facts = {"socket": socket, "pid": os.getpid()}
        text = f"serves the hubs of this machine at {socket}"
        print(json.dumps(facts) if form == "json" else text, flush=True)

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        serve(Places(Path(rules), Path(socket), Path(folder)), serves, tell)
    except HeadgateError as error:
        print(f"headgate: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


main()
