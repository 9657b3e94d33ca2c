"""The kernel says whose process has accepted a connection."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from txtopo.errors import SetupError
from txtopo.state import peer

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
CONNECTION = (
    "   0: {local} {remote} 01 00000000:00000000 00:00000000 00000000 {uid:5}        0 {inode} 1\n"
)
IPV4 = "0100007F:{:04X}"
IPV6 = "0000000000000000FFFF00000100007F:{:04X}"
"""A JVM's socket of both families."""


def test_a_connection_belongs_to_the_user_who_accepted_it() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connection,
    ):
        with pytest.raises(TimeoutError, match="no process of this machine has accepted"):
            peer.user_of_peer(connection, 0.0)
        with listening.accept()[0]:
            assert peer.user_of_peer(connection, 0.0) == os.getuid()


@pytest.mark.parametrize("written", [IPV4, IPV6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize(
    ("uid", "inode", "user"),
    [(1000, 4711, 1000), (0, 4711, 0), (0, 0, None)],
    ids=["ann", "root", "in the queue"],
)
def test_an_entry_of_the_kernels_table_is_that_of_its_two_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: str,
    uid: int,
    inode: int,
    user: int | None,
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connection,
    ):
        theirs, ours = (
            written.format(listening.getsockname()[1]),
            written.format(connection.getsockname()[1]),
        )
        other = written.format(1)
        ends = [
            (ours, theirs, 7, 7),
            (theirs, other, 7, 7),
            (other, ours, 7, 7),
            (theirs, ours, uid, inode),
        ]
        lines = [
            CONNECTION.format(local=local, remote=remote, uid=owner, inode=number)
            for local, remote, owner, number in ends
        ]
        (tmp_path / "tcp").write_text(HEAD + "".join(lines))
        monkeypatch.setattr(peer, "TABLES", (tmp_path / "tcp",))
        if user is None:
            with pytest.raises(TimeoutError):
                peer.user_of_peer(connection, 0.0)
        else:
            assert peer.user_of_peer(connection, 0.0) == user


def test_a_machine_that_does_not_tell_the_user_of_a_connection_is_an_error_with_a_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = next(table for table in peer.TABLES if table.exists())
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connection,
        listening.accept()[0],
    ):
        monkeypatch.setattr(peer, "TABLES", (known, tmp_path / "no IPv6"))
        assert peer.user_of_peer(connection, 0.0) == os.getuid()
        monkeypatch.setattr(peer, "TABLES", (tmp_path / "no proc",))
        with pytest.raises(SetupError, match=r"no proc cannot be read\n.*\n.*--zookeeper"):
            peer.user_of_peer(connection, 0.0)
