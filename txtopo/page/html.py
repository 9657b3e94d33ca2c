"""Makes the page's HTML: one file with one script and one style. The browser runs no other script,
because it compares hashes.

No text becomes markup: the view is JSON, and the script makes text nodes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

_PAGE = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
_PLACE = "<!-- data -->"
_CHARSET = '<meta charset="utf-8">'


def _hash_of(tag: str) -> str:
    text = _PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_hash_of('script')}",
        f"style-src {_hash_of('style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
"""The content security policy."""


def live(key: str) -> str:
    """The page that asks its server for the view. ``key`` is :attr:`access.Guard.key`."""
    return _PAGE.replace(_PLACE, f'<meta name="key" content="{key}">')


def whole(view: Mapping[str, Any]) -> str:
    """The page with ``view`` in it, which needs no server."""
    data = json.dumps(view).replace("<", "\\u003c")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    script = f'<script type="application/json" id="data">{data}</script>'
    return _PAGE.replace(_CHARSET, f"{_CHARSET}\n{policy}").replace(_PLACE, script)
