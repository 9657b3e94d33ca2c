"""Serves the page in a thread of its own.

Runs on: driver, or any process beside the journal.

Invariants: an error is answered with 500 and told in one warning, and never ends the run.
:meth:`Page.close` tells readers the last change, and returns within ``END_S``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import http
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from txtopo import errors, version
from txtopo.engine.observer import LOGGER
from txtopo.journal import documents, live, reader
from txtopo.page import access, feed, health, html, metrics

END_S = 5.0

LIMIT_MAX = 500
"""An answer has at most so many transactions."""

ATTEMPTS_MAX = 100
"""An answer has at most so many attempts of a transaction, the newest."""


class Page:
    """A page for the journal in ``path``, served where ``listening`` until :meth:`close`."""

    def __init__(self, path: Path, listening: access.Listening, token: str) -> None:
        self._path, self._listening = path, listening
        self._reading = asyncio.Lock()
        self._feed = feed.Feed(path, lambda: self._server.should_exit)
        routes = [
            Route("/", self._page),
            Route("/api/v1/view", self._part(lambda view: view)),
            Route("/api/v1/status", self._part(documents.status)),
            Route("/api/v1/plan", self._part(documents.plan)),
            Route("/api/v1/failures", self._part(lambda view: {"failures": view["failures"]})),
            Route("/api/v1/stores", self._part(lambda view: {"stores": view["stores"]})),
            Route("/api/v1/transactions", self._transactions),
            Route("/api/v1/transactions/{txid}", self._transaction),
            Route("/api/v1/events", self._events),
            Route("/metrics", self._metrics),
            Route("/healthz", self._probe(health.doubt_about_work)),
            Route("/readyz", self._probe(health.Readiness(time.time()).doubt)),
        ]
        hosts = (listening.host, socket.gethostname())
        self._guard = access.Guard(Starlette(routes=routes), token, hosts, listening.place)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                interface="asgi3",
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level=logging.CRITICAL,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )
        self.error: BaseException | None = None
        """The error that has ended the page."""
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="txtopo-page", daemon=True)
        self._thread.start()

    @property
    def is_served(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Tell readers the last change, and end."""
        self._server.should_exit = True
        self._thread.join(END_S)
        self._listening.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[*self._listening.sockets])
        except BaseException as error:
            self.error = error
            LOGGER.warning(
                "the page is not served any more, but the run goes on: %s: %s\n"
                "  `txtopo page` serves the page from the journal.",
                type(error).__name__,
                error,
            )

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._guard(scope, receive, send)
        except Exception as error:  # starlette, or else uvicorn, has answered or will
            if not self._has_warned:
                self._has_warned = True
                LOGGER.warning(
                    "the page cannot answer a request, but the run goes on: %s: %s\n"
                    "  Load the page again. Further errors of the page are not logged.",
                    type(error).__name__,
                    error,
                )

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(html.live(self._guard.key))

    def _part(
        self, part: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            view = self._feed.view()
            return _json({"topology_id": view["topology_id"], **part(view)})

        return answer

    async def _transactions(self, request: Request) -> Response:
        query = request.query_params
        try:
            for name in query:
                if name not in ("from", "limit") or len(query.getlist(name)) > 1:
                    raise ValueError(f"{name!r} is no parameter\n  Give from and limit, each once.")
            first = _number("from", query["from"]) if "from" in query else None
            last = _number("limit", query.get("limit", str(documents.LAST)), LIMIT_MAX)
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", http.HTTPStatus.BAD_REQUEST)
        topology_id = self._feed.view()["topology_id"]

        def answer() -> Response:
            journal = reader.Reader(self._path)
            view = documents.view_of(journal, lambda: documents.read(journal, last, first))
            shown = documents.listed(view, last, first)
            document = documents.history(topology_id, journal, view, shown)
            transactions = [_bounded(each) for each in document["transactions"]]
            return _json({**document, "transactions": transactions})

        return await self._read(answer)

    async def _transaction(self, request: Request) -> Response:
        try:
            txid = _number("the transaction", request.path_params["txid"])
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", http.HTTPStatus.BAD_REQUEST)
        topology_id = self._feed.view()["topology_id"]

        def answer() -> Response:
            journal = reader.Reader(self._path)
            view = documents.view_of(journal, lambda: journal.about([txid]))
            if txid not in view.transactions:
                text = f"the journal has no attempt of transaction {txid} that ended\n"
                return PlainTextResponse(text, http.HTTPStatus.NOT_FOUND)
            return _json(_bounded(documents.why(topology_id, journal, view, txid)))

        return await self._read(answer)

    async def _read(self, answer: Callable[[], Response]) -> Response:
        """The ``answer`` that reads the journal, on a thread of its own: probes do not wait for it.
        One reads at a time. The thread is a daemon, as the page's own."""
        read: concurrent.futures.Future[Response] = concurrent.futures.Future()

        def work() -> None:
            try:
                read.set_result(answer())
            except BaseException as error:
                read.set_exception(error)

        async with self._reading:
            read.set_running_or_notify_cancel()
            threading.Thread(target=work, name="txtopo-page-reads").start()
            return await asyncio.wrap_future(read)

    async def _events(self, request: Request) -> Response:
        return feed.Events(self._feed)

    async def _metrics(self, request: Request) -> Response:
        try:
            return PlainTextResponse(metrics.metrics(live.read(self._path)))
        except errors.SetupError as error:
            return PlainTextResponse(f"{error}\n", http.HTTPStatus.NOT_IMPLEMENTED)

    def _probe(
        self, judge: Callable[[Mapping[str, Any], float], str | None]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def probe(request: Request) -> Response:
            doubt = judge(self._feed.view(), time.time())
            status = http.HTTPStatus.OK if doubt is None else http.HTTPStatus.SERVICE_UNAVAILABLE
            return PlainTextResponse(f"{doubt or 'ok'}\n", status)

        return probe


def _bounded(transaction: Mapping[str, Any]) -> Mapping[str, Any]:
    """``transaction`` with at most ``ATTEMPTS_MAX`` records in each of its lists, the last ones.
    ``left_out`` counts the others."""
    lists = {name: each for name, each in transaction.items() if isinstance(each, list)}
    left_out = sum(max(0, len(each) - ATTEMPTS_MAX) for each in lists.values())
    bounded = {name: each[-ATTEMPTS_MAX:] for name, each in lists.items()}
    return {**transaction, **bounded, "left_out": left_out}


def _json(document: Mapping[str, Any]) -> Response:
    # JSONResponse raises for characters without a form in UTF-8.
    data = json.dumps({"schema_version": version.SCHEMA_VERSION, **document})
    return Response(data, media_type="application/json")


def _number(name: str, text: str, most: int = 10**15) -> int:
    """``text`` as a number.

    :raises ValueError: with the cure.
    """
    if re.fullmatch("[0-9]{1,16}", text) is None or not 1 <= int(text) <= most:
        raise ValueError(f"{name} is {text[:20]!r}\n  Give a whole number from 1 to {most}.")
    return int(text)
