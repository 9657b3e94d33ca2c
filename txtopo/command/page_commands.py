"""``txtopo page``, and ``--page`` of ``txtopo run``: show a run in a browser.

The page reads the journal, in the run's process or in any process beside the journal.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txtopo import config, errors
from txtopo.command import options, signals, whereabouts
from txtopo.journal import recording
from txtopo.runtime import cluster

if TYPE_CHECKING:
    from txtopo.page import server

_POLL_S = 0.1


def add(commands: Any) -> None:
    """Add the command ``page``."""
    page = commands.add_parser(
        "page",
        help="show a run in a browser, while it runs or not",
        description="Serve a page that shows the newest run of a topology, from the journal in the runs' data directory, until Ctrl-C.",
    )
    whereabouts.add_journal(page)
    options.add_page(page, default="0")
    page.set_defaults(do=_page)


@contextlib.contextmanager
def of_run(
    parsed: argparse.Namespace, conf: config.Config, topology_id: str, say: Callable[[str], None]
) -> Iterator[None]:
    """The context of a run, with its page if one was asked for. ``say`` tells the address."""
    if parsed.page is None:
        if parsed.page_token_file is not None:
            raise errors.UsageError("--page-token-file is for a page\n  Give --page, too.")
        yield
        return
    if conf.journal == "off":
        raise errors.UsageError(
            "the page shows the journal, but journal=off keeps none\n  Set journal=full or journal=lean, or leave --page out."
        )
    data_dir = Path(conf.data_dir or cluster.DEFAULT_DATA_DIR)
    with _served(parsed, recording.place(data_dir, topology_id), say):
        yield


@contextlib.contextmanager
def _served(
    parsed: argparse.Namespace, journal: Path, say: Callable[[str], None]
) -> Iterator[server.Page]:
    try:
        from txtopo.page import access, server
    except ImportError as error:
        raise errors.SetupError(
            f"the page needs packages that cannot be imported: {error}\n  Type: pip install 'txtopo[page]'"
        ) from error
    file = parsed.page_token_file
    token = None if file is None else access.token_in(file)
    listening = access.listen(parsed.page, is_open_allowed=token is not None)
    with contextlib.closing(listening):
        token = token or access.kept_token(journal)
        address = f"http://{_url_host(listening.host)}:{listening.place[1]}/"
        secret = token if file is None else f"$(cat {file})"
        say(f"page: {address}?token={secret}")
        with contextlib.closing(server.Page(journal, listening, token)) as page:
            yield page


def _url_host(host: str) -> str:
    """``host`` in an address for a browser."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            return socket.gethostname()
        return f"[{host}]" if address.version == 6 else host
    return host


def _page(parsed: argparse.Namespace) -> int:
    def say(text: str) -> None:
        print(f"txtopo: {text}", file=sys.stderr, flush=True)

    with signals.StopSignals() as stop:
        stop.watch()
        with _served(parsed, whereabouts.journal(parsed), say) as page:
            while page.is_served and not stop.is_requested:
                time.sleep(_POLL_S)
    if page.error is not None:
        raise errors.TxtopoError("the page has ended\n  Start it again.") from page.error
    return 0
