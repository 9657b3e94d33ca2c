"""A server with a replica that streams from it: asynchronous, behind by as much as a test wants,
and promoted when the primary is killed.

A soak does the same as an operator::

    with Replicated("postgresql") as servers:
        servers.primary              # a server as any other; clients know its port
        servers.stop_replica()       # the replica keeps what has arrived there, and gets no more until go_on()
        old = servers.fail_over()    # SIGKILL to the primary; the replica is promoted and takes over its port
        servers.renew()              # the next replica, of the server that serves now

Apart from the modules of the kinds of servers because a test rarely needs two of them. The replica
is connected by a wire (see ``wire``): bytes held there when the primary is killed have never left
the primary.

Invariants:
    - A replica holds whole transactions of its primary, the oldest ones: that is the servers' own
      doing, by write-ahead log, command stream or binary log.
    - All servers end with the ``with``, also after an error.
"""

from __future__ import annotations

import abc
import contextlib
from types import TracebackType
from typing import Self

from tests.servers.cut_wire import Wire
from tests.servers.mariadb import MariaServer
from tests.servers.owned import Server
from tests.servers.postgres import PostgresServer
from tests.servers.redis_server import RedisServer

AnyServer = PostgresServer | MariaServer | RedisServer


class Kind(abc.ABC):
    """Replication between servers of one kind."""

    @abc.abstractmethod
    def primary(self) -> AnyServer:
        """A server that can be followed."""

    @abc.abstractmethod
    def replica(self, of: Server, port: int) -> AnyServer:
        """A server that follows ``of`` through the port ``port``."""

    @abc.abstractmethod
    def has_caught_up(self, replica: Server, primary: Server) -> bool:
        """Whether ``replica`` has all that ``primary`` had when it was asked."""

    @abc.abstractmethod
    def promote(self, replica: Server) -> None:
        """Have the server follow no primary any more, and take writes."""


class _PostgresReplica(PostgresServer):
    def __init__(self, source: int, port: int) -> None:
        super().__init__({"primary_conninfo": f"host=127.0.0.1 port={port} user=postgres"})
        self._source = source

    def _fill(self) -> None:
        data = self._directory / "data"
        options = [
            "-h",
            "127.0.0.1",
            "-p",
            str(self._source),
            "-U",
            "postgres",
            "-D",
            str(data),
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        ]
        if self._complete(self._program("pg_basebackup"), *options) != 0:
            raise RuntimeError(f"pg_basebackup failed:\n{self.log}")
        (data / "standby.signal").touch()

    def _furnish(self) -> None:
        return


class _Postgres(Kind):
    def primary(self) -> PostgresServer:
        return PostgresServer()

    def replica(self, of: Server, port: int) -> PostgresServer:
        return _PostgresReplica(of.port, port)

    def has_caught_up(self, replica: Server, primary: Server) -> bool:
        assert isinstance(replica, PostgresServer)
        assert isinstance(primary, PostgresServer)
        ((written,),) = primary.execute("SELECT pg_current_wal_lsn()")
        return bool(
            replica.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [written])[0][0]
        )

    def promote(self, replica: Server) -> None:
        assert isinstance(replica, PostgresServer)
        replica.execute("SELECT pg_promote(false)")
        replica.wait_until(lambda: replica.execute("SELECT NOT pg_is_in_recovery()")[0][0])


class _MariaMember(MariaServer):
    """Keeps a binary log, of replayed changes too: a follower begins at the very first change."""

    def __init__(self, number: int, port: int | None) -> None:
        super().__init__(
            {
                "server-id": str(number),
                "log-bin": "log",
                "binlog-format": "ROW",
                "log-slave-updates": "ON",
                "skip-slave-start": "ON",
            }
        )
        del self._settings["skip-log-bin"]
        self._port_followed = port

    def _furnish(self) -> None:
        if self._port_followed is None:
            super()._furnish()
            return
        source = f"MASTER_HOST = '127.0.0.1', MASTER_PORT = {self._port_followed}, MASTER_USER = 'root', MASTER_CONNECT_RETRY = 1"
        self.execute(f"CHANGE MASTER TO {source}, MASTER_USE_GTID = slave_pos")
        self.execute("START SLAVE")


class _Maria(Kind):
    def __init__(self) -> None:
        self._count = 1

    def primary(self) -> MariaServer:
        return _MariaMember(self._count, None)

    def replica(self, of: Server, port: int) -> MariaServer:
        self._count += 1
        return _MariaMember(self._count, port)

    def has_caught_up(self, replica: Server, primary: Server) -> bool:
        assert isinstance(replica, MariaServer)
        assert isinstance(primary, MariaServer)
        ((written,),) = primary.execute("SELECT @@gtid_current_pos")
        return bool(replica.execute("SELECT MASTER_GTID_WAIT(%s, 0)", [written])[0][0] == 0)

    def promote(self, replica: Server) -> None:
        assert isinstance(replica, MariaServer)
        replica.execute("STOP SLAVE")
        replica.execute("RESET SLAVE ALL")


class _RedisReplica(RedisServer):
    def __init__(self, port: int) -> None:
        super().__init__({"replicaof": f"127.0.0.1 {port}"})

    def promote(self) -> None:
        self.ask("REPLICAOF", "NO", "ONE")
        # A server that writes its first file of appends refuses to stop.
        self.wait_until(
            lambda: all(
                f"aof_rewrite_{state}:0" in self.told("INFO", "persistence")
                for state in ("in_progress", "scheduled")
            )
        )
        del self._settings["replicaof"]


class _Redis(Kind):
    def primary(self) -> RedisServer:
        return RedisServer()

    def replica(self, of: Server, port: int) -> RedisServer:
        assert isinstance(of, RedisServer)
        # Or it waits for a second replica to come.
        of.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        return _RedisReplica(port)

    def has_caught_up(self, replica: Server, primary: Server) -> bool:
        assert isinstance(replica, RedisServer)
        assert isinstance(primary, RedisServer)
        written = _told(primary)["master_repl_offset"]
        told = _told(replica)
        return told["master_link_status"] == "up" and int(told["slave_repl_offset"]) >= int(written)

    def promote(self, replica: Server) -> None:
        assert isinstance(replica, _RedisReplica)
        replica.promote()


def _told(server: RedisServer) -> dict[str, str]:
    lines = server.told("INFO", "replication").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


KINDS: dict[str, type[Kind]] = {"postgresql": _Postgres, "mariadb": _Maria, "redis": _Redis}
"""Servers with replication, by name."""


class Replicated:
    """A primary and its replica; lives inside a ``with``."""

    primary: AnyServer
    """The server that takes writes; always at the same port."""
    replica: AnyServer

    def __init__(self, kind: str) -> None:
        self._kind = KINDS[kind]()
        self._all = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as servers:
            self._all = servers
            self.primary = self._kind.primary()
            servers.enter_context(self.primary)
            self.renew()
            self._all = servers.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._all.close()

    def renew(self) -> None:
        """Have a new replica of the primary, which has all that this has by now."""
        self._wire = self._all.enter_context(Wire(self.primary.port))
        self.replica = self._kind.replica(self.primary, self._wire.port)
        self._all.enter_context(self.replica)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the replica has all that the primary has."""
        self.replica.wait_until(lambda: self._kind.has_caught_up(self.replica, self.primary))

    def new_url(self) -> str:
        """The address of an empty database of the primary, or of the Redis server, which has but
        one."""
        return (
            self.primary.url() if isinstance(self.primary, RedisServer) else self.primary.new_url()
        )

    def stop_replica(self) -> None:
        """Let nothing more arrive at the replica until :meth:`go_on`."""
        self._wire.hold()

    def go_on(self) -> None:
        """Let the replica catch up."""
        self._wire.let_go()

    def fail_over(self) -> AnyServer:
        """Kill the primary, and promote the replica at its port; returns the old primary, which
        does not run and has another port."""
        old, new = self.primary, self.replica
        old.kill()
        self._wire.close()
        self._kind.promote(new)
        new.stop()
        new.port, old.port = old.port, 0
        new.start()
        self.primary = new
        return old
