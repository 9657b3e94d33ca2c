"""Takes the reports about late tasks from the workers to the driver, over a socket of the driver.

On a local master the socket is a file that no other user may reach, and each worker keeps one
connection, to which ``faulthandler`` writes. On a cluster a worker connects to the driver's host
for each report. A worker that cannot connect prints
its report.

Runs on: driver (:class:`LateReports`) and executor (:class:`Line`).

Invariants: the driver has no thread for this, and never waits for a worker. The system accepts
connections and keeps their bytes until the driver looks. The driver reads no report without the
run's signature, and keeps a bounded number of connections, bytes and reports.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import re
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from txtopo.dataplane import outcome
from txtopo.dataplane.job import Run
from txtopo.dataplane.outcome import Failure
from txtopo.spark import sockets
from txtopo.state import directory

Address = str | tuple[str, int]
_BACKLOG = 128
_CONNECTIONS_MAX = 256
_BYTES_MAX = 256 * 1024
_JOBS_MAX = 100
_STACKS_MAX = 4
_SEND_S = 2.0
_STDERR = 2
_AWAKE = b"<txtopo-awake>"
_numbers = itertools.count(1)


class LateReports:
    """The driver's end, for one run. Any thread may call it."""

    def __init__(self, secret: bytes, bind: str | None = None, host: str = "") -> None:
        """``bind`` is the driver's address on a cluster, and ``host`` the name by which executors
        know the driver."""
        self._secret = secret
        self._lock = threading.Lock()
        self._connections: OrderedDict[socket.socket, bytearray] = OrderedDict()
        self._reports: OrderedDict[str, dict[tuple[int, int], Failure]] = OrderedDict()
        self.address: Address = ""
        """Where workers connect. Without a socket no report comes."""
        family = socket.AF_UNIX if bind is None else _family(bind)
        self._listener = socket.socket(family)
        directory.keep_from_forks(self._listener)
        self._listener.setblocking(False)
        with contextlib.suppress(OSError):
            path = str(sockets.directory() / f"late-{next(_numbers)}")
            self._listener.bind(path if bind is None else (bind.strip("[]"), 0))
            self._listener.listen(_BACKLOG)
            port = self._listener.getsockname()[1]
            self.address = path if bind is None else (host.strip("[]"), port)

    def close(self) -> None:
        """Close the socket and all connections."""
        with self._lock:
            for end in (self._listener, *self._connections):
                end.close()
            self._connections.clear()
            if isinstance(self.address, str):
                with contextlib.suppress(OSError):
                    os.unlink(self.address)

    def _take(self) -> None:
        """Take all reports that have arrived."""
        with contextlib.suppress(OSError):  # none waits, or no descriptor is left
            for _ in range(_CONNECTIONS_MAX):
                connection = self._listener.accept()[0]
                connection.setblocking(False)
                self._connections[connection] = bytearray()
                if len(self._connections) > _CONNECTIONS_MAX:
                    self._connections.popitem(last=False)[0].close()
        for connection, data in list(self._connections.items()):
            self._read(connection, data)

    def _read(self, connection: socket.socket, data: bytearray) -> None:
        """Take the bytes in ``connection``. ``data`` keeps bytes for the next time."""
        is_open = True
        try:
            while is_open and len(data) < 2 * _BYTES_MAX:
                received = connection.recv(_BYTES_MAX)
                data += received
                is_open = received != b""
        except BlockingIOError:
            pass  # there is no more yet
        except OSError:
            is_open = False
        for job, slot, failure in outcome.values_in(data.decode(errors="replace"), self._secret):
            self._reports.setdefault(job, {})[slot] = failure
            if len(self._reports) > _JOBS_MAX:
                self._reports.popitem(last=False)
        # Whole reports are taken. An unfinished report, and a stack of faulthandler, stay.
        rest = data.rpartition(b":>")[2].rpartition(_AWAKE)[2]
        data[:] = rest[-_BYTES_MAX:]
        if not is_open:
            connection.close()
            del self._connections[connection]

    def places(self, job: str, is_running: Callable[[], bool]) -> str:
        """Where the late tasks of ``job`` are, for the end of a message: on the first line the
        hooks, below the stacks. ``is_running``: Spark says that a task runs."""
        with self._lock:
            self._take()
            late = [failure for _, failure in sorted(self._reports.get(job, {}).items())]
            written = [data.decode(errors="replace") for data in self._connections.values()]
        locked = [
            stack
            for text in written
            if (stack := locked_stack(text)) and isinstance(self.address, str)
        ]
        names = [
            f"component {each.component!r}, task {each.task}, {each.hook}"
            if each.component
            else "between two hooks"
            for each in late
        ] + ["C code keeps Python's lock"] * len(locked)
        if not names:
            return f": {_SILENT if is_running() else _WAITING}"
        shown = [_shown(each) for each in late]
        shown += [f"  in a worker whose other threads cannot run\n{stack}" for stack in locked]
        if len(shown) > _STACKS_MAX:
            shown[_STACKS_MAX:] = [f"  and in {len(shown) - _STACKS_MAX} more tasks"]
        return "\n".join([f": {'; '.join(names)}", *(each.rstrip() for each in shown)])


_SILENT = (
    "no task says where it is\n"
    "  Its worker is dead, suspended or cut off from the driver, or runs C code that keeps Python's lock.\n"
    "  On a cluster the standard error of its executor may have the stack."
)
_WAITING = (
    "none of its tasks runs\n  Spark has no free slot, is slow to begin, or has lost an executor."
)


def _shown(late: Failure) -> str:
    return late.place if late.component else f"  between two hooks\n{late.traceback}"


def locked_stack(text: str) -> str:
    """The stack of the task in ``text``, which ``faulthandler`` wrote: the threads of a process, each
    with its innermost call first. ``""`` without a stack."""
    for thread in reversed(re.split(r"^(?=Thread 0x)", text, flags=re.MULTILINE)):
        calls = re.findall(r'^ +(File ".*", line \d+ in .*)$', thread, flags=re.MULTILINE)
        inside = list(itertools.takewhile(lambda call: "/txtopo/dataplane/" not in call, calls))
        if len(inside) < len(calls):
            lines = [re.sub(r" in (?=\S+$)", ", in ", call) for call in reversed(inside)]
            return outcome.with_source("".join(f"  {line}\n" for line in lines)).rstrip()
    return ""


def of(context: Any, run: Run) -> LateReports:
    """The driver's end for ``run`` in ``context``."""
    if run.local_master:
        return LateReports(run.secret)
    conf = context.getConf()
    host = conf.get("spark.driver.host")
    return LateReports(run.secret, conf.get("spark.driver.bindAddress", host), host)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Line:
    """A worker's way to the driver at ``address``, or to standard error if there is no driver."""

    def __init__(self, address: Address, secret: bytes) -> None:
        self._address, self._secret = address, secret
        self._connection: socket.socket | None = None

    def fileno(self) -> int:
        """A descriptor for ``faulthandler``, which cannot connect."""
        if isinstance(self._address, str):
            with contextlib.suppress(OSError):
                return self._connected().fileno()
        return _STDERR

    def report(self, job: str, slot: tuple[int, int], failure: Failure) -> None:
        """Tell the driver where the task in ``slot`` is. On a cluster, print the place if the
        driver cannot be reached. A local run without a socket has ended."""
        is_sent = self._send(outcome.signed((job, slot, failure), self._secret).encode())
        if not is_sent and (isinstance(self._address, tuple) or not self._address):
            print(f"{job} is late\n{_shown(failure)}", file=sys.stderr, flush=True)

    def awake(self) -> None:
        """Tell the driver that stacks written until now are old."""
        if self._connection is not None:
            self._send(_AWAKE)

    def _send(self, data: bytes) -> bool:
        try:
            self._connected().sendall(data)
        except OSError:
            self.close()
            return False
        if not isinstance(self._address, str):
            self.close()
        return True

    def _connected(self) -> socket.socket:
        if self._connection is None:
            is_local = isinstance(self._address, str)
            self._connection = socket.socket(
                socket.AF_UNIX if is_local else _family(self._address[0])
            )
            # With a time-out the descriptor does not block, so faulthandler never waits.
            self._connection.settimeout(_SEND_S)
            try:
                self._connection.connect(self._address)
            except OSError:
                self.close()
                raise
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            if isinstance(self._address, str):
                # The system may give the descriptor's number to another file.
                faulthandler.cancel_dump_traceback_later()
            self._connection.close()
            self._connection = None
