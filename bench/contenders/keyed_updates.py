"""Keyed updates, batch by batch, in one process without Spark: by a store, as a committer's task
makes them, and by hand."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

from bench import backends, counting
from bench.contenders import bare_loop
from bench.line import WrongResultError
from bench.process import Sample
from txtopo import TransactionAttempt
from txtopo.stores import ADD


class Server:
    """A database server, for as long as this contender lives."""

    def __init__(self, directory: str, name: str) -> None:
        command = [sys.executable, "-m", "tests.servers.serve", name]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._child.stdout is not None
        self._address = self._child.stdout.readline().strip()

    def block(self) -> Sample:
        """Where it is."""
        if not self._address:
            raise RuntimeError("the server did not start")
        return {"seconds": 0.0, "address": self._address}

    def close(self) -> None:
        """Stop it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(30)


class Updates:
    """Either kind, over one database."""

    def __init__(self, directory: str, backend: str, address: str = "") -> None:
        self._directory, self._backend, self._address, self._made = (
            Path(directory),
            backends.BACKENDS[backend],
            address,
            0,
        )

    def block(self, how: str, batches: int, keys: int, of: int) -> Sample:
        """Updates per second; ``how`` is add or update (by hand), or of a store, merge or update,
        and its kind of value. The first batches, which make all keys and change each of them once,
        are not timed."""
        self._made += 1
        address = self._address or str(self._directory / f"{self._made}.db")
        prepared = [backends.batch(number, keys, of) for number in range(batches)]
        first = 2 * of // keys
        if how in ("add", "update"):
            counts, seconds = self._by_hand(address, how, prepared, first)
        else:
            counts, seconds = self._by_store(address, how, prepared, first)
        if counts != backends.expected(batches, keys, of):
            raise WrongResultError(
                f"{self._backend.name}, {how}: {len(counts)} keys, not what a plain loop counts"
            )
        return {"seconds": seconds, "updates_per_second": keys * (batches - first) / seconds}

    def _by_hand(
        self, address: str, how: str, prepared: list[dict[str, Any]], first: int
    ) -> tuple[dict[Any, Any], float]:
        table = self._backend.by_hand(address)
        change = getattr(table, how)
        try:
            for more in prepared[:first]:
                change(more)
            began = time.perf_counter()
            for more in prepared[first:]:
                change(more)
            seconds = time.perf_counter() - began
            return table.counts(), seconds
        finally:
            table.close()

    def _by_store(
        self, address: str, how: str, prepared: list[dict[str, Any]], first: int
    ) -> tuple[dict[Any, Any], float]:
        call, kind = how.split()
        store = self._backend.store(address, f"{backends.TABLE}_{self._made}", kind == "opaque")
        resources: dict[str, Any] = {}
        began = 0.0
        try:
            for number, more in enumerate(prepared):
                if number == first:
                    began = time.perf_counter()
                context = bare_loop.context("committer", "commit", resources)
                with store.transaction(context, TransactionAttempt(number + 1, 0)) as transaction:
                    if call == "merge":
                        transaction.merge_many(more, ADD)
                    else:
                        transaction.update_many(more, _added)
            seconds = time.perf_counter() - began
        finally:
            for resource in resources.values():
                resource.close()
        return dict(store.items()), seconds

    def close(self) -> None:
        """Nothing is left open."""


class RoundTrips:
    """How often a store asks its server, and over how many connections."""

    def __init__(self, directory: str, backend: str, address: str) -> None:
        self._backend, self._address, self._made = backends.BACKENDS[backend], address, 0

    def block(self, call: str, kind: str, keys: int, transactions: int) -> Sample:
        """Round trips of the last of so many transactions; and the connections of all of them."""
        self._made += 1
        resources: dict[str, Any] = {}
        at = urllib.parse.urlsplit(self._address)
        began = time.perf_counter()
        with counting.CountingProxy(at.hostname or "", at.port or 0) as proxy:
            address = self._address.replace(f"{at.hostname}:{at.port}", f"127.0.0.1:{proxy.port}")
            store = self._backend.store(address, f"trips_{self._made}", kind == "opaque")
            try:
                for number in range(transactions):
                    before = proxy.round_trips
                    context = bare_loop.context("committer", "commit", resources)
                    more = backends.batch(number % 2, keys, 2 * keys)
                    with store.transaction(
                        context, TransactionAttempt(number + 1, 0)
                    ) as transaction:
                        if call == "merge":
                            transaction.merge_many(more, ADD)
                        else:
                            transaction.update_many(more, _added)
                return {
                    "seconds": time.perf_counter() - began,
                    "round_trips": float(proxy.round_trips - before),
                    "connections": float(proxy.connections),
                }
            finally:
                for resource in resources.values():
                    resource.close()

    def close(self) -> None:
        """Nothing is left open."""


def _added(count: int | None, more: int) -> int:
    return (count or 0) + more
