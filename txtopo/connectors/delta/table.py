"""Commits decided transactions to a Delta table, once each and in order, through deltalake.

A Delta table keeps the last version of every application that writes. Here each generation of a
component's state is two applications: the version of the first is the last transaction, and the
version of the second is the transaction's attempt. If two commits begin from the same version of
the table and set an application's version, one fails.

Invariants:
    - A transaction's rows and its version are in one commit. A second attempt's commit takes the
      first attempt's files back.
    - A commit begins from a table version in which the application is behind.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import secrets
import sys
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.files import decisions, directories, objects, storage, upkeep

TRIES = 20
"""How often a commit is tried while other writers are quicker."""
COMPACT_BYTES = 32 << 20
"""A file is small if it has fewer bytes."""
_NEVER = (0, -1)
_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", "v2Checkpoint"})
"""A table's features that ask nothing of an appended file."""
_OTHER_TIMES = re.compile(r"timestamp\[(s|ms|ns)")
_OURS = re.compile(r"(\d{20}\.\d+\.\d{5}\.\d+\.[0-9a-f]{8}|compacted-[0-9a-f]{16})\.parquet")


def application(generation: decisions.Generation) -> str:
    """The name under which the table keeps a generation's last transaction."""
    return f"{generation.topology_id}/{generation.component}/{generation.identity}"


class Table:
    """The Delta table at ``root``.

    :param compact_every: how many transactions pass between two compactions.
    :param is_opaque: files of a failed attempt are taken out.
    """

    def __init__(
        self, root: str, client: Any, compact_every: int | None = None, is_opaque: bool = False
    ) -> None:
        self._deltalake = importlib.import_module("deltalake")
        self._root, self._compact_every = root, compact_every or sys.maxsize
        self._removes = is_opaque or compact_every is not None
        self._options: dict[str, str] | None = None
        if not storage.is_directory(root):
            settings = objects.config(root, client)
            self._options = {**settings, "allow_http": str(objects.is_plain(settings)).lower()}

    def begin(self, schema: Any, partition_by: Sequence[str]) -> None:
        """Make the table for rows with these columns, or check that the columns fit the table.

        :raises errors.SetupError: they do not fit.
        """
        wanted, deltalake = self._schema(schema), self._deltalake
        with self._explained():
            table = self._open()
            if table is None:
                # Of two tasks that make the table, one makes its first version.
                once = deltalake.CommitProperties(max_commit_retries=0)
                with contextlib.suppress(deltalake.exceptions.CommitFailedError):
                    deltalake.DeltaTable.create(
                        self._root,
                        schema=wanted,
                        partition_by=list(partition_by),
                        mode="ignore",
                        storage_options=self._options,
                        commit_properties=once,
                    )
                table = deltalake.DeltaTable(self._root, storage_options=self._options)
        self._check_fit(table, schema, partition_by)

    def _schema(self, schema: Any) -> Any:
        """The table's schema for rows with the Arrow ``schema``."""
        arrow = importlib.import_module("pyarrow")
        with contextlib.suppress(Exception):
            columns = arrow.schema([field.with_nullable(True) for field in schema])
            wanted = self._deltalake.Schema.from_arrow(columns)
            is_kept = arrow.schema(wanted.to_arrow()).equals(columns)
            if is_kept and not _OTHER_TIMES.search(str(schema)):
                return wanted
        types = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise errors.SetupError(
            f"the Delta table {self._root} cannot keep the types of {types}\n"
            "  Nothing was written. Delta has signed integers, float, double, decimals to 38 digits, and timestamps in microseconds, in UTC or"
            " without a zone.\n  Convert the columns in a bolt, or give schema=."
        )

    def _check_fit(self, table: Any, schema: Any, partition_by: Sequence[str]) -> None:
        """Check that rows with ``schema`` fit the table, and that nothing of the table is new to
        this library."""
        with self._explained():
            columns = {field.name: field for field in table.schema().fields}
            metadata, protocol = table.metadata(), table.protocol()
        for field in self._schema(schema).fields:
            other = columns.pop(field.name, None)
            if other is None:
                raise self._misfit(f"no column {field.name}")
            if other.type != field.type or not other.nullable:
                nulls = "" if other.nullable else " without null"
                raise self._misfit(
                    f"the column {field.name} as {_type(other)}{nulls}", f"as {_type(field)}"
                )
        if not all(field.nullable for field in columns.values()):
            raise self._misfit(f"the further columns {', '.join(columns)}, which take no null")
        if metadata.partition_columns != list(partition_by):
            raise self._misfit(
                f"partition_by={metadata.partition_columns}, not {list(partition_by)}"
            )
        features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
        if features - _FEATURES or (not features and protocol.min_writer_version > 2):
            raise self._misfit(
                f"features that the sink does not keep: {', '.join(features - _FEATURES) or protocol}"
            )
        if self._removes and metadata.configuration.get("delta.appendOnly") == "true":
            raise self._misfit("delta.appendOnly, and the sink takes files out")

    def _misfit(self, table: str, rows: str = "") -> errors.SetupError:
        other = f", and the rows have it {rows}" if rows else ""
        return errors.SetupError(
            f"the Delta table {self._root} has {table}{other}\n"
            "  Nothing was written. Match the table by columns=, schema= and partition_by= before the first rows, undo the table's"
            " change, or give another table."
        )

    def holds_rows(self) -> bool:
        """Whether the table has rows, from any writer."""
        with self._explained():
            table = self._open()
            return table is not None and bool(table.file_uris())

    def commit(
        self,
        log: decisions.Log,
        generation: decisions.Generation,
        decided: decisions.Decision,
        earlier: Sequence[decisions.Decision] = (),
        is_late: bool = True,
    ) -> None:
        """Commit a decided transaction, unless the table has it.

        :param earlier: the decisions before that count, the last one at least.
        :param is_late: the decision was there before, and its files may have been removed since.
        :raises errors.StateMismatchError: the table lacks a transaction before, or files that must
            be taken back.
        """
        is_compacting, last = decided.txid % self._compact_every == 0, ""
        for _ in range(TRIES):
            with self._explained():
                table = self._open()
            at = _NEVER if table is None else _position(table, generation)
            if at >= decided.position:
                return
            taken_back: tuple[decisions.File, ...] = ()
            if at[0] == decided.txid:
                taken_back = log.decision_at(generation, *at).files
            # A late attempt must not find the table behind: of an opaque one, an empty commit tells,
            # once there were rows.
            is_telling = decided.is_opaque and table is not None and log.form.kept()
            if not (decided.files or taken_back or is_telling):
                return
            self._check(log, generation, at, earlier[-1:])
            is_compacting = is_compacting and not taken_back
            if table is None:
                raise self._version_error(decided.txid)
            self._check_fit(table, log.form.schema(), log.form.kept()["partition_by"])
            with self._explained():
                try:
                    if is_compacting:
                        # All transactions before are recorded, so no attempt at them is taken back.
                        is_compacting = False
                        self._compact(table, log)
                        continue
                    if is_late:
                        self._check_files(log, decided)
                    self._write(table, generation, decided, taken_back)
                except self._deltalake.exceptions.CommitFailedError as error:
                    last = objects.first_line(error)
                    continue
                return
        raise errors.FailedException(
            f"the Delta table {self._root} refused {TRIES} commits, the last one because of: {last}"
        )

    def check(self, log: decisions.Log) -> None:
        """Check that the table takes the rows, before a transaction is decided.

        :raises errors.TxtopoError: it does not.
        """
        form = log.form.kept()
        with self._explained():
            table = self._open()
        if table is not None and form:
            self._check_fit(table, log.form.schema(), form["partition_by"])

    def _check_files(self, log: decisions.Log, decided: decisions.Decision) -> None:
        for file in decided.files:
            if log.storage.stat(file.path) is None:
                raise errors.StateMismatchError(
                    f"{self._root}/{file.path} of transaction {decided.txid} is missing\n"
                    "  VACUUM has removed it before the table had it. Restore it, or begin again with `txtopo reset TARGET`."
                )

    def _open(self) -> Any:
        # Anew for each commit: the table may have been replaced.
        try:
            return self._deltalake.DeltaTable(self._root, storage_options=self._options)
        except self._deltalake.exceptions.TableNotFoundError:
            return None

    def _check(
        self,
        log: decisions.Log,
        generation: decisions.Generation,
        at: tuple[int, int],
        earlier: Sequence[decisions.Decision],
    ) -> None:
        if earlier and at < earlier[0].position:
            for each in log.decisions(generation, max(at[0] - 1, 0), earlier[0].position):
                if each.files and each.position > at:
                    raise self._version_error(each.txid)

    def _version_error(self, txid: int) -> errors.StateMismatchError:
        return errors.StateMismatchError(
            f"the Delta table {self._root} lacks transaction {txid}, which was committed\n"
            "  The table was removed, or restored to an earlier version. Restore the newest version, or begin again with an empty table and"
            " `txtopo reset TARGET`."
        )

    def _write(
        self,
        table: Any,
        generation: decisions.Generation,
        decided: decisions.Decision,
        taken_back: Sequence[decisions.File],
    ) -> None:
        names = table.metadata().partition_columns
        actions = [self._add_action(file, names) for file in decided.files]
        if taken_back:
            actions += self._removals(table, taken_back, names)
        app = application(generation)
        versions = {app: decided.txid, f"{app}/attempt": decided.attempt}
        self._commit(table, actions, versions)

    def _commit(self, table: Any, actions: list[Any], versions: Mapping[str, int]) -> None:
        deltalake = self._deltalake
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=deltalake.CommitProperties(
                app_transactions=[deltalake.Transaction(*each) for each in versions.items()],
                # The next version or none: the checks hold for the version before.
                max_commit_retries=0,
            ),
        )

    def _compact(self, table: Any, log: decisions.Log) -> None:
        """Put the small files that sinks wrote together: one file for each folder.

        If two tasks compact at the same time, one fails. With deltalake's ``optimize``, two
        compactions would double all rows. It also overlooks files that leave the table without a
        change of data (both seen with 1.6.6).
        """
        arrow, parquet = (
            importlib.import_module("pyarrow"),
            importlib.import_module("pyarrow.parquet"),
        )
        by = table.metadata().partition_columns
        schema = arrow.schema([each for each in log.form.schema() if each.name not in by])
        folders: dict[str, list[str]] = {}
        for path, size in _sizes(table).items():
            folder, slash, name = path.rpartition("/")
            if _OURS.fullmatch(name) and size < COMPACT_BYTES:
                with log.storage.open(path) as file:
                    if parquet.read_schema(file).equals(schema):
                        folders.setdefault(folder + slash, []).append(path)
        actions = []
        for folder, paths in folders.items():
            if len(paths) == 1:
                continue
            rows, new = 0, f"{folder}compacted-{secrets.token_hex(8)}.parquet"
            with log.storage.create(new) as file, parquet.ParquetWriter(file, schema) as writer:
                for path in sorted(paths):
                    with log.storage.open(path) as small:
                        for batch in parquet.ParquetFile(small).iter_batches():
                            writer.write_batch(batch)
                            rows += batch.num_rows
                writer.close()
                whole = decisions.File(new, new, file.tell(), rows)
            actions.append(self._add_action(whole, by, is_new=False))
            actions += [self._remove_action(path, by) for path in paths]
        if actions:
            self._commit(table, actions, {})

    def _removals(
        self, table: Any, files: Sequence[decisions.File], by: Sequence[str]
    ) -> list[Any]:
        if not _sizes(table).keys() >= {file.path for file in files}:
            raise errors.StateMismatchError(
                f"the Delta table {self._root} does not hold the files of a failed attempt any more, and its rows cannot be taken back\n"
                "  OPTIMIZE, or another writer, has put them into other files. Restore the table's version before that, and start again. With an"
                " opaque\n  spout, let the sink compact the table: compact_every=."
            )
        return [self._remove_action(file.path, by) for file in files]

    def _remove_action(self, path: str, by: Sequence[str]) -> Any:
        now = int(time.time() * 1000)
        return self._deltalake.transaction.RemoveAction(
            path, True, now, partition_values=directories.texts_in(path, by)
        )

    def _add_action(self, file: decisions.File, by: Sequence[str], is_new: bool = True) -> Any:
        return self._deltalake.transaction.AddAction(
            path=file.path,
            size=file.bytes,
            partition_values=directories.texts_in(file.path, by),
            modification_time=int(time.time() * 1000),
            data_change=is_new,
            stats=json.dumps({"numRecords": file.rows}),
        )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        exceptions = self._deltalake.exceptions
        try:
            yield
        except exceptions.DeltaProtocolError as error:
            raise errors.SetupError(
                f"deltalake cannot write to the Delta table {self._root}: {objects.first_line(error)}"
            ) from error
        except (exceptions.DeltaError, OSError) as error:
            raise errors.FailedException(
                f"the Delta table {self._root} cannot be written just now: {objects.first_line(error)}"
            ) from error


class DeltaRecords(upkeep.FileRecords):
    """The decisions beside the Delta table ``root``, for people. The rows are the table's."""

    keeps_rows = True

    def tell(self, generation: decisions.Generation, decided: decisions.Decision) -> None:
        Table(self.root, self.client).commit(self.log, generation, decided)


def _position(table: Any, generation: decisions.Generation) -> tuple[int, int]:
    app = application(generation)
    txid, attempt = table.transaction_version(app), table.transaction_version(f"{app}/attempt")
    return _NEVER if txid is None else (txid, attempt)


def _sizes(table: Any) -> dict[str, int]:
    """Each file's size in the table, by path."""
    files = importlib.import_module("pyarrow").table(table.get_add_actions())
    sizes = files.column("size_bytes").to_pylist()
    paths = map(urllib.parse.unquote, files.column("path").to_pylist())
    return dict(zip(paths, sizes, strict=True))


def _type(field: Any) -> str:
    return str(getattr(field.type, "type", field.type))
