"""Writes text or JSON, and copes with a standard output or standard error that takes no more: a
pipe without a reader (``txtopo … | head``), a full disk.

Runs on: driver.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from typing import Any

from txtopo import version

READ_NO_LONGER = 128 + signal.SIGPIPE
"""The exit code if the output has no reader any more. A shell reports the same number for a program
that SIGPIPE has ended."""


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def print_json(document: Mapping[str, Any]) -> None:
    """Print ``document`` as JSON. ``docs/command-line.md`` lists the fields."""
    document = {"schema_version": version.SCHEMA_VERSION, **document}
    print(json.dumps(document, indent=2, ensure_ascii=False))


def show(parsed: argparse.Namespace, document: Mapping[str, Any], text: str) -> int:
    """Print ``document`` with ``--json``, else ``text``. Returns the exit code 0."""
    if parsed.json:
        print_json(document)
    else:
        print(text)
    return 0


def counted(n: int, noun: str) -> str:
    """``n`` things, in words."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def has_no_reader() -> bool:
    """Whether standard output or standard error is a pipe whose reader has gone."""
    looked = select.poll()
    for descriptor in filter(None, map(_descriptor, (sys.stdout, sys.stderr))):
        looked.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in looked.poll(0))


def let_go() -> None:
    """Forget output that cannot be written. Otherwise Python would try again at its end, complain,
    and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        descriptor = _descriptor(stream)
        if descriptor is None:
            continue
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def _descriptor(stream: Any) -> int | None:
    """The descriptor of ``stream``, or ``None`` if a test or a notebook has replaced the stream
    with an object without descriptor."""
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None
