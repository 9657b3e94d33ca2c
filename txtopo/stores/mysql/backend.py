"""Runs :class:`~txtopo.stores.servers.store.SqlStore` in MySQL and MariaDB: one connection per
worker process, which reads and writes rows in bulk.

Statements for any SQL database are in ``servers``. Needs SQLAlchemy and PyMySQL. Transactions are
READ COMMITTED, not the server's default. A statement must see rows that other transactions
committed while the statement waited, and InnoDB then locks rows without the gaps between them.

Rows travel as one JSON parameter, which the server takes apart (JSON_TABLE): the statement count
does not depend on the key count. Reading rows for writing locks them, in key order. So two writers
with several common keys meet at the first common key: the second writer waits, and then sees whose
row it is. An absent key cannot be locked: if two writers add the key, the second writer finds the
first writer's row. If writers block each other nevertheless, the server ends one writer, and this
writer reads the rows again. Every statement that locks begins at the given keys (STRAIGHT_JOIN),
never at the table: InnoDB locks the rows that a statement passes, and would wait for unrelated
rows.

Invariants:
    - After a statement failed, its transaction ends. Only a deadlock, a duplicate key and a refusal
      to combine are looked into before. The last two have changed nothing.
    - Before a row is written, this transaction has read and locked the row, or has found no row.
      The only exception is the statement that combines integers, which judges the row itself.
    - The round trips in a transaction do not depend on how many keys ``update_many`` gets, up to
      ``ROWS_HELD_MAX`` keys with ``PORTION_CHARACTERS`` of text.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from txtopo import errors
from txtopo.stores import direct, sessions, stamps
from txtopo.stores import place as places
from txtopo.stores import rows as layout
from txtopo.stores.mysql import connection as connections
from txtopo.stores.mysql import errors as faults
from txtopo.stores.mysql import layout as tables
from txtopo.stores.mysql import merge as merging
from txtopo.stores.servers import connection as relational_connection
from txtopo.stores.servers import layout as server_layout
from txtopo.stores.servers import session
from txtopo.topology import merge

PORTION_CHARACTERS = 2_000_000
"""How many characters of JSON a statement carries: with four bytes each at most, they fill half a
packet of the server's default size."""

PORTION_ROWS = 1000
"""How many rows ``items`` and ``scan`` fetch at a time."""

UNDONE_ROWS = 10_000
"""How many rows a statement takes back or sweeps."""

_TEXT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_KEY = f"`key` VARCHAR({tables.KEY_CHARACTERS_MAX}) {_TEXT}"
_GIVEN_KEYS = f"JSON_TABLE({merging.GIVEN}, '$[*]' COLUMNS ({_KEY} PATH '$')) AS given"
_GIVEN_ROWS = (
    f"JSON_TABLE({merging.GIVEN}, '$[*]' COLUMNS ({_KEY} PATH '$[0]', curr LONGTEXT {_TEXT} PATH '$[1]', prev LONGTEXT {_TEXT} PATH '$[2]',"
    f" prev_txid BIGINT PATH '$[3]', steps LONGTEXT {_TEXT} PATH '$[4]')) AS given"
)
_GIVEN_CHANGES = (
    f"JSON_TABLE({merging.GIVEN}, '$[*]' COLUMNS ({_KEY} PATH '$[0]', curr LONGTEXT {_TEXT} PATH '$[1]', steps LONGTEXT {_TEXT} PATH '$[2]'))"
    " AS given"
)
_IS_SETTLED = "kept.topology = :topology AND kept.generation = :generation AND kept.component = :component AND kept.txid <= :settled"
_COLUMNS = ", ".join(f"kept.`{name}`" for name in layout.COLUMNS)
_BEFORE = "kept.`key`, kept.prev, kept.prev_txid"
_VALUES = {
    name: f":{name}" if name in layout.STAMP else f"given.`{name}`" for name in layout.COLUMNS
}
_HERE = "generation = :of_generation AND txid = :of_txid AND attempt = :of_attempt"
# Each task has its own row, so that an attempt's tasks need not wait for each other's commit.
# Assignments are made from left to right.
_COUNTED = (
    "INSERT INTO txtopo_count(store, topology, component, task, generation, txid, attempt, transactions)"
    " SELECT :of_store, :of_topology, :of_component, :of_task, :of_generation, :of_txid, :of_attempt, 1 {given} ON DUPLICATE KEY UPDATE"
    " transactions = IF(txtopo_count.generation = :of_generation AND txtopo_count.txid = :of_txid AND txtopo_count.attempt = :of_attempt,"
    " transactions + (transactions < :number), 1), generation = :of_generation, txid = :of_txid, attempt = :of_attempt"
)
_COUNT = sa.text(_COUNTED.format(given="FROM DUAL"))
_STAND = sa.text(
    _COUNTED.format(
        given="FROM txtopo_fence WHERE store = :of_store AND topology = :of_topology AND component = :of_component"
        f" AND {_HERE} AND (:lists OR NOT listed) LOCK IN SHARE MODE"
    )
)
_STAND_ALONE = sa.text(
    "UPDATE txtopo_fence SET counted = counted + (counted < :number) WHERE store = :of_store AND topology = :of_topology"
    f" AND component = :of_component AND {_HERE} AND (:lists OR NOT listed)"
)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_LOCK = sa.text("INSERT INTO txtopo_lock(name) VALUES (:name) ON DUPLICATE KEY UPDATE name = name")


class Session(session.Session):
    """Reads and writes rows in bulk. Tasks that raise a fence take turns by a lock."""

    def __init__(
        self,
        raw: sa.Connection,
        tables_: server_layout.Tables,
        store: places.Place,
        stamp: stamps.Stamp,
    ) -> None:
        super().__init__(raw, faults, tables_, store, stamp)
        self._locked: set[str] = set()
        """Keys of existing rows that no other transaction can change before this transaction
        ends."""

    def stands_at_fence(self, number: int, is_alone: bool) -> bool:
        here = self._here(number)
        if self._run(_STAND_ALONE if is_alone else _STAND, {**here, "lists": self.lists}).rowcount:
            self.is_listed = self.lists
            return True
        if not self.lists:
            # The attempt may list its keys although this store is transactional: another task may
            # have opened the store as opaque.
            row = self._run(self._tables.statements.standing, here).first()
            if row is not None:
                self.is_listed = bool(row[0])
                self._run(_STAND_ALONE, {**here, "lists": True}) if is_alone else self._run(
                    _COUNT, here
                )
                return True
        # InnoDB may keep a lock on the fence's row although the fence is another attempt's. Two
        # tasks with this lock that want to raise the fence would wait for each other.
        with faults.translating(self._address):
            self._raw.rollback()
        return False

    def _count(self, stamp: stamps.Stamp, number: int) -> None:
        self._run(_STAND_ALONE, {**self._here(number), "lists": True})

    def lock_raisers(self, name: str) -> None:
        _lock(self._run, name)

    def read_rows(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        return self._read(texts, "")

    def read_rows_to_write(self, texts: Sequence[str]) -> dict[str, stamps.Row]:
        with self._translating_deadlock(texts):
            rows = self._read(texts, " FOR UPDATE")
        self._locked.update(rows)
        return rows

    def read_rows_to_change(
        self, texts: Sequence[str], stamp: stamps.Stamp, settled_txid: int
    ) -> dict[str, stamps.Row]:
        self._check_keys(texts)
        select = sa.text(
            f"SELECT kept.`key`, IF({_IS_SETTLED}, kept.curr, NULL) FROM {_GIVEN_KEYS} STRAIGHT_JOIN {self._kept} FOR UPDATE"
        )
        owner = layout.owner_of(stamp) | {"settled": settled_txid}
        earlier = dataclasses.replace(stamp, txid=settled_txid, attempt=stamps.UNKNOWN_ATTEMPT)
        rows: dict[str, stamps.Row] = {}
        others: list[str] = []
        with self._translating_deadlock(texts):
            for _, _, portion in self._portions(sorted(texts)):
                for text, curr in self._run(select, {**owner, "given": connections.sent(portion)}):
                    if curr is None:
                        others.append(text)
                    else:
                        rows[text] = stamps.Row(text, earlier, None, stamps.KEPT, [curr])
        if others:
            rows |= self._read(others, "")
        self._locked.update(rows)
        return rows

    def merge_rows(
        self, deltas: Mapping[str, int], how: merge.Merge, stamp: stamps.Stamp, settled_txid: int
    ) -> Collection[str]:
        texts = sorted(deltas)
        self._check_keys(texts)
        statement = merging.statement(self._tables.name, _KEY, how.operator)
        owner = layout.owner_of(stamp) | {"settled": settled_txid}
        refused: list[str] = []
        for start, end, portion in self._portions(sorted(deltas.items())):
            try:
                with self._translating_deadlock(texts):
                    self._run(statement, {**owner, "given": connections.sent(portion)})
            except (errors.FailedException, errors.TxtopoError) as failed:
                if not faults.is_refusal(failed):
                    raise
                refused += texts[start:end]
            else:
                self.note(texts[start:end])
        return refused

    def write_rows(self, rows: Iterable[stamps.Row]) -> None:
        ordered = sorted(rows, key=lambda row: row.key)
        new = [row for row in ordered if row.key not in self._locked]
        kept = [row for row in ordered if row.key in self._locked]
        try:
            with self._translating_deadlock([row.key for row in ordered]):
                self._advance([row for row in kept if row.prev_txid == stamps.KEPT])
                self._write([row for row in kept if row.prev_txid != stamps.KEPT], replacing=True)
                self._write(new, replacing=False)
        except errors.FailedException as failed:
            if not faults.is_duplicate(failed):
                raise
            raise sessions.RowsChangedError(self.read_rows([row.key for row in new])) from failed
        self._locked.update(row.key for row in new)
        self.note(row.key for row in ordered)

    def exchange(self, change: direct.Change) -> bool:
        locked = self._read(list(change.expected), " FOR UPDATE")
        if not direct.are_as_expected(locked, change.expected):
            return False
        try:
            for stamp in dict.fromkeys(row.stamp for row in change.rows):
                stamped = sorted(
                    (row for row in change.rows if row.stamp == stamp), key=lambda row: row.key
                )
                self._write([row for row in stamped if row.key in locked], replacing=True)
                self._write([row for row in stamped if row.key not in locked], replacing=False)
        except errors.FailedException as failed:
            if not faults.is_duplicate(failed):
                raise
            raise sessions.RowsChangedError({}) from failed
        self._run_in_portions(self._delete_from("TRUE"), sorted(change.removed))
        return True

    def take_back(self, void: stamps.Fence) -> None:
        # The transaction that raises the fence holds the fence alone, so no task adds more rows to
        # take back. But another component's task may take over a row.
        undone = (
            "kept.component = :component AND kept.txid = :txid AND kept.topology = :topology AND kept.generation = :generation"
            f" AND kept.attempt <= :attempt AND kept.attempt <> {stamps.UNKNOWN_ATTEMPT}"
        )
        owner = {
            "component": void.component,
            "txid": void.txid,
            "topology": void.topology_id,
            "generation": void.generation,
            "attempt": void.attempt,
        }
        restored = f"kept.curr = given.curr, kept.txid = given.prev_txid, kept.attempt = {stamps.UNKNOWN_ATTEMPT}, kept.prev = NULL"
        portions = (
            self._listed_portions_where(void, undone, owner)
            if self.is_listed
            else self._portions_where(_BEFORE, undone, owner)
        )
        for portion in portions:
            self._run_in_portions(
                self._delete_from(f"{undone} AND kept.prev IS NULL"),
                [key for key, prev, _ in portion if prev is None],
                owner,
            )
            update = f"UPDATE {_GIVEN_ROWS} STRAIGHT_JOIN {self._kept} SET {restored}, kept.prev_txid = 0, kept.steps = NULL WHERE {undone}"
            self._run_in_portions(
                update,
                [[key, prev, None, txid, None] for key, prev, txid in portion if prev is not None],
                owner,
            )
        self._forget_written(void.topology_id, void.component)

    def sweep(self, stamp: stamps.Stamp) -> None:
        settled = (
            "kept.deleted AND kept.component = :component AND kept.topology = :topology"
            " AND (kept.txid < :txid OR kept.generation <> :generation)"
        )
        owner = layout.owner_of(stamp)
        for portion in self._portions_where("kept.`key`", settled, owner):
            self._run_in_portions(self._delete_from(settled), [key for (key,) in portion], owner)
        if self.is_listed:
            self._forget_written(stamp.topology_id, stamp.component)

    def _listed_portions_where(
        self, void: stamps.Fence, condition: str, owner: dict[str, Any]
    ) -> Iterator[Sequence[Any]]:
        """As :meth:`_portions_where`, of the rows that ``void`` has listed."""
        select = f"SELECT {_BEFORE} FROM {_GIVEN_KEYS} STRAIGHT_JOIN {self._kept} WHERE {condition}"
        texts = self._listed_keys(void)
        for start in range(0, len(texts), UNDONE_ROWS):
            for result in self._run_in_portions(select, texts[start : start + UNDONE_ROWS], owner):
                yield sorted(result)

    def _portions_where(
        self, columns: str, condition: str, owner: dict[str, Any]
    ) -> Iterator[Sequence[Any]]:
        """The rows that meet ``condition``, found without locking any row, a portion at a time. The
        caller takes back or deletes a portion before it asks for the next portion."""
        select = sa.text(
            f"SELECT {columns} FROM `{self._tables.name}` AS kept WHERE {condition} LIMIT {UNDONE_ROWS}"
        )
        while portion := self._run(select, owner).all():
            yield sorted(portion)
            if len(portion) < UNDONE_ROWS:
                return

    def _check_keys(self, texts: Sequence[str]) -> None:
        longest = max(texts, key=len, default="")
        if len(longest) > tables.KEY_CHARACTERS_MAX:
            raise errors.UsageError(
                f"a key of {len(longest)} characters is too long for the store {self._address}: {longest[:60]}…\n"
                f"  InnoDB indexes keys with up to {tables.KEY_CHARACTERS_MAX} characters. Use a digest as the key."
            )

    def _read(self, texts: Sequence[str], lock: str) -> dict[str, stamps.Row]:
        self._check_keys(texts)
        select = f"SELECT {_COLUMNS} FROM {_GIVEN_KEYS} STRAIGHT_JOIN {self._kept}{lock}"
        return {
            columns[0]: layout.row_of(*columns)
            for result in self._run_in_portions(select, sorted(texts))
            for columns in result
        }

    def _write(self, rows: Sequence[stamps.Row], replacing: bool) -> None:
        """Add rows, or replace locked rows. All have the same stamp."""
        if not rows:
            return
        names = ", ".join(f"`{name}`" for name in layout.COLUMNS)
        values = ", ".join(_VALUES.values())
        insert = f"INSERT INTO `{self._tables.name}`({names}) SELECT {values} FROM {_GIVEN_ROWS}"
        if replacing:
            changes = ", ".join(
                f"`{name}` = {value}" for name, value in _VALUES.items() if name != "key"
            )
            insert = f"{insert} ON DUPLICATE KEY UPDATE {changes}"
        columns = [layout.columns_of(row) for row in rows]
        # The stamp is sent once.
        self._run_in_portions(
            insert,
            [
                [key, curr, prev, prev_txid, steps]
                for key, curr, prev, *_, prev_txid, steps in columns
            ],
            layout.owner_of(rows[0].stamp),
        )

    def _advance(self, rows: Sequence[stamps.Row]) -> None:
        """Replace locked rows whose value alone was read. The stored value becomes the value before
        this transaction."""
        insert = (
            f"INSERT INTO `{self._tables.name}`(`key`, curr, topology, generation, component, task, txid, attempt, prev_txid)"
            " SELECT given.`key`, given.curr, :topology, :generation, :component, :task, :txid, :attempt, 0"
            f" FROM {_GIVEN_CHANGES} ON DUPLICATE KEY UPDATE kept.prev = kept.curr, kept.prev_txid = kept.txid, kept.curr = given.curr,"
            " kept.steps = given.steps, kept.task = :task, kept.txid = :txid, kept.attempt = :attempt"
        ).replace("kept.", f"`{self._tables.name}`.")
        self._run_in_portions(
            insert,
            [[key, curr, steps] for key, curr, *_, steps in map(layout.columns_of, rows)],
            layout.owner_of(self._mine),
        )

    def _run_in_portions(
        self, statement: str, items: Sequence[Any], parameters: dict[str, Any] | None = None
    ) -> list[Any]:
        """Run ``statement`` with ``items`` as its parameter, several times if ``items`` are too
        large for one statement. Returns the results."""
        return [
            self._run(sa.text(statement), {**(parameters or {}), "given": connections.sent(text)})
            for _, _, text in self._portions(items)
        ]

    def _portions(self, items: Sequence[Any]) -> Iterator[tuple[int, int, str]]:
        """``items`` as JSON, in portions that fit into a packet: where each portion begins and ends
        in ``items``, and its text."""
        whole = _encode(items)
        if len(whole) <= PORTION_CHARACTERS:
            if items:
                yield 0, len(items), whole
            return
        texts = [_encode(item) for item in items]
        begin, held = 0, 0
        for end, text in enumerate(texts):
            if held and held + len(text) > PORTION_CHARACTERS:
                yield begin, end, f"[{','.join(texts[begin:end])}]"
                begin, held = end, 0
            held += len(text) + 1
            self._check_size(items[end], text)
        yield begin, len(texts), f"[{','.join(texts[begin:])}]"

    def _check_size(self, item: Any, text: str) -> None:
        """Refuse an item that is too large for a packet. Some servers close the connection without
        saying so, and a replay would be as large."""
        if len(text) <= PORTION_CHARACTERS:
            return
        # The driver puts a backslash before each of these characters.
        size = len(text.encode()) + sum(text.count(character) for character in "\\'\"") + 1000
        limit = int(self._raw.info["packet_bytes_max"])
        if size > limit:
            key = item if isinstance(item, str) else item[0]
            raise errors.UsageError(
                f"the value of key {key[:60]} needs a packet of {size} bytes, but the server of {self._address} takes up to {limit}\n"
                "  Raise max_allowed_packet on the server, or store smaller values."
            )

    def _delete_from(self, condition: str) -> str:
        return f"DELETE kept FROM {_GIVEN_KEYS} STRAIGHT_JOIN {self._kept} WHERE {condition}"

    @property
    def _kept(self) -> str:
        # Without the hint, the server reads a small table from its beginning.
        return f"`{self._tables.name}` AS kept FORCE INDEX (PRIMARY) ON kept.`key` = given.`key`"


class Reader(session.Reader):
    """Reads a store: all statements see the state that the first statement saw."""

    def rows_from(self, text: str) -> Iterator[stamps.Row]:
        """The rows whose key's text is not below ``text``, in order, a portion at a time.

        Each portion is a separate statement: a server ends a statement whose answer is not read for
        a minute.
        """
        key = self._tables.values.c.key
        select = self.select_from(text).limit(PORTION_ROWS)
        while portion := self._run(select).all():
            for row in portion:
                yield layout.row_of(*row)
            if len(portion) < PORTION_ROWS:
                return
            select = (
                sa.select(*self._tables.columns)
                .where(key > portion[-1][0])
                .order_by(key)
                .limit(PORTION_ROWS)
            )


def _lock(run: server_layout.Run, name: str) -> None:
    """Take the lock ``name``, after waiting for its holder, until this transaction ends."""
    # Not GET_LOCK: such a lock outlives the transaction, and a cluster does not know the lock.
    run(_LOCK, {"name": hashlib.blake2b(name.encode(), digest_size=16).hexdigest()})


class Connection(relational_connection.Connection):
    """The connection that a process keeps to a MySQL or MariaDB database."""

    faults = faults
    _open = staticmethod(connections.open_connection)
    _descriptor = staticmethod(connections.descriptor)
    _layout = staticmethod(tables.tables_of)
    _has_table = staticmethod(tables.has_table)
    _session = Session
    _reader = Reader

    @staticmethod
    def _prepare(raw: sa.Connection, tables_: server_layout.Tables, store: places.Place) -> None:
        run = session.run_in(raw, faults, store.address)
        tables.prepare(run, tables_, store, functools.partial(_lock, run))
