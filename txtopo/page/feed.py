"""Tells a journal's changes to many readers.

Runs on: the page's loop, which also waits for the disk: if the disk hangs, probes notice. Each
change is read and encoded once.

Invariants: the journal is read only while readers ask. At most ``READERS_MAX`` readers follow it,
and a reader that takes nothing for ``SLOW_S`` is dropped: the reader comes again, and gets the
whole view.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from txtopo.journal import watch

READERS_MAX = 16

SLOW_S = 10.0

PAUSE_S = 0.3
"""How long a change may wait."""

BEAT_S = 3.0
"""How often a reader hears from the server, also without a change."""

CHANGES_MAX = 40
"""How many changes are kept for slower readers. A reader that missed more gets the whole view."""

FORGET_S = 60.0
"""After so long without a reader, the journal is opened anew, and its middle is not read."""


class Feed:
    """The view of the journal in ``path``, and its newest changes as events. Readers end when
    ``is_closing`` is true."""

    def __init__(self, path: Path, is_closing: Callable[[], bool]) -> None:
        self._path, self._is_closing = path, is_closing
        self._watch: watch.Watch | None = None
        self._changes: deque[bytes] = deque(maxlen=CHANGES_MAX)
        self._version = 0
        self._read_at = 0.0
        self.readers = 0

    def view(self) -> Mapping[str, Any]:
        """The whole view, at most ``PAUSE_S`` old."""
        return self._refreshed().view()

    def news(self, version: int | None) -> tuple[int, list[bytes]]:
        """The view's version, and the events since ``version``, or the whole view."""
        watching = self._refreshed()
        missed = CHANGES_MAX + 1 if version is None else self._version - version
        if missed > len(self._changes):
            return self._version, [_event("view", watching.view())]
        return self._version, [*self._changes][len(self._changes) - missed :]

    def _refreshed(self) -> watch.Watch:
        age_s = time.monotonic() - self._read_at
        if self._watch is None or age_s > FORGET_S:
            self._watch = watch.Watch(self._path)
            self._changes.clear()
        elif age_s < PAUSE_S and not self._is_closing():  # the last change is told, too
            return self._watch
        change = self._watch.refresh()
        self._read_at = time.monotonic()
        if change:
            self._version += 1
            self._changes.append(_event("change", change))
        return self._watch

    async def follow(self, receive: Receive, send: Send) -> None:
        """Send events until the reader is gone, or too slow, or the page ends."""
        gone = asyncio.ensure_future(_until_gone(receive))
        version, heard_at = None, time.monotonic()
        try:
            await send(_START)
            is_last = False
            while not is_last and not gone.done():
                is_last = self._is_closing()
                version, events = self.news(version)
                if not events and time.monotonic() - heard_at >= BEAT_S:
                    events = [_event("beat", {})]
                for event in events:
                    heard_at = time.monotonic()
                    async with asyncio.timeout(SLOW_S):
                        await send({"type": "http.response.body", "body": event, "more_body": True})
                if not is_last:
                    await asyncio.wait([gone], timeout=PAUSE_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()


class Events(Response):
    """An answer with the events from ``feed``."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._feed.readers >= READERS_MAX:
            refusal = PlainTextResponse(
                f"The page has {READERS_MAX} readers already.\n",
                http.HTTPStatus.SERVICE_UNAVAILABLE,
            )
            return await refusal(scope, receive, send)
        self._feed.readers += 1
        try:
            with contextlib.suppress(TimeoutError):
                await self._feed.follow(receive, send)
        finally:
            self._feed.readers -= 1


_START = {
    "type": "http.response.start",
    "status": http.HTTPStatus.OK,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    """A server-sent event. Characters without a form in UTF-8 are escaped by JSON."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
