"""Looks after files that a ``FileSink`` has written, for people: shows, adopts and clears its records,
verifies files and removes garbage.

Runs on: the command line.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from txtopo import errors
from txtopo.connectors.files import decisions, remote, storage
from txtopo.connectors.files.form import HOME
from txtopo.topology import kept

_END = r"(\.g\d+)?\.(txt|jsonl|csv|parquet)(\.gz|\.zst)?"
_OURS = re.compile(r"\d{20}-\d{5}(-\d+)?" + _END)
"""The names of files for readers."""
_OWN = re.compile(r"\d{20}\.\d+\.\d{5}\.\d+\.[0-9a-f]{8}" + _END)
"""The names of attempts' files."""

GARBAGE_S = 24 * 3600
"""How old a file without a decision must be before it counts as garbage."""


def takes(address: str) -> bool:
    """Whether ``address`` names a directory with files."""
    return address.partition("://")[0] in storage.SCHEMES or os.path.isdir(address)


def open_records(address: str, name: str) -> FileRecords:
    """The records in the directory at ``address``."""
    root, client = remote.settings_in(address) if "://" in address else (address, {})
    return FileRecords(storage.absolute(root), name, client)


class FileRecords:
    """The decisions in the directory ``root``."""

    keeps_rows = False
    """Whether rows stay where they are if the records are cleared."""

    def __init__(self, root: str, name: str, client: Mapping[str, Any]) -> None:
        self.name, self.address, self.client = name, f"{root}#{name}", client
        self.root = root
        self.log = decisions.Log(storage.open_storage(root, client))

    def command(self, action: str, topology_id: str) -> str:
        place = shlex.quote(storage.address_of(self.root, self.client))
        return f"txtopo store {action} {place} {shlex.quote(self.name)} --topology {shlex.quote(topology_id)}"

    @kept.asking("the storage")
    def exists(self) -> bool:
        return bool(self.log.generations())

    @kept.asking("the storage")
    def shown(self) -> list[dict[str, Any]]:
        shown = []
        for generation in self.log.generations()[-1:]:
            newest = self.log.newest(generation)[-1:]
            shown.append(
                {
                    "topology_id": generation.topology_id,
                    "component": generation.component,
                    "generation": generation.generation,
                    "txid": newest[0].txid if newest else generation.after,
                    "attempt": newest[0].attempt if newest else None,
                    "rows": sum(newest[0].rows) if newest else 0,
                    "files": len(newest[0].files) if newest else 0,
                }
            )
        return shown

    @kept.asking("the storage")
    def fences(self) -> list[kept.Fence]:
        fences = []
        for generation in self.log.generations()[-1:]:
            newest = self.log.newest(generation)[-1:]
            position = newest[0].position if newest else (generation.after, kept.CLOSED_ATTEMPT)
            fences.append(generation.fence(position))
        return fences

    @kept.asking("the storage")
    def adopt(
        self,
        topology_id: str,
        generation: str,
        txid: int,
        components: Iterable[str],
        *,
        from_topology: str | None = None,
        dry_run: bool = False,
    ) -> kept.StoreChange:
        kept.refuse_from_topology(from_topology)
        last = self.log.generations()[-1:]
        component = last[0].component if last else next(iter(components), "")
        if component not in set(components) or (last and last[0].topology_id != topology_id):
            return kept.StoreChange(0, 0)
        if not dry_run:
            before = self._close(last[0]) if last else (0, 0)
            number = last[0].number + 1 if last else 0
            self.log.begin(
                decisions.Generation(
                    number, topology_id, component, generation, self.name, txid, before
                )
            )
        return kept.StoreChange(1, 1)

    def _close(self, generation: decisions.Generation) -> tuple[int, int]:
        """End commits in ``generation``, and give its last files their names. Returns its last
        transaction and attempt."""
        while True:
            # The last one may be a closing one, if an adoption was broken off.
            counted = [
                each
                for each in self.log.newest(generation, max(1, self._last(generation) - 2))
                if each.attempt != kept.CLOSED_ATTEMPT
            ][-1:]
            last = counted[0].txid if counted else generation.after
            is_opaque = bool(counted) and counted[0].is_opaque
            closing = decisions.Decision(
                last + 1, kept.CLOSED_ATTEMPT, (), (), is_opaque, is_void=True
            )
            if self.log.decide(generation, closing) == closing:
                for each in counted:
                    self.tell(generation, each)
                return counted[0].position if counted else (last, kept.CLOSED_ATTEMPT)

    def tell(self, generation: decisions.Generation, decided: decisions.Decision) -> None:
        """Tell readers of a decision, if the task that decided has died before."""
        for file in decided.files:
            if file.path != file.written:
                self.log.storage.rename(file.written, file.path)

    @property
    @kept.asking("the storage")
    def is_table(self) -> bool:
        """Whether the files are a Delta table's."""
        return storage.is_table(self.log.storage)

    def _last(self, generation: decisions.Generation) -> int:
        newest = self.log.newest(generation)
        return newest[-1].txid if newest else 0

    @kept.asking("the storage")
    def clear(
        self, topology_id: str, components: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> kept.StoreChange:
        last = self.log.generations()[-1:]
        if last and (
            last[0].topology_id != topology_id
            or (components is not None and last[0].component not in set(components))
        ):
            return kept.StoreChange(0, 0)
        store = self.log.storage
        rows = sum(1 if self.keeps_rows else sum(each.rows) for each in self._all())
        if not dry_run:
            decided = self._decided_files()
            entries = [entry.path for entry in store.walk()]
            # Sinks with a directory below this one.
            others = tuple(
                {f"{path.partition(f'/{HOME}/')[0]}/" for path in entries if f"/{HOME}/" in path}
            )
            paths = [
                path
                for path in entries
                if path in decided
                or path.startswith(f"{HOME}/")
                # An attempt that was never decided may have named files, too.
                or (_OURS.fullmatch(path.rpartition("/")[2]) and not path.startswith(others))
            ]
            if self.keeps_rows:
                paths = [path for path in paths if path.startswith(f"{HOME}/")]
            # The generations last: without them there is nothing to clear.
            store.delete(sorted(paths, key=lambda path: path.startswith(f"{HOME}/generations/")))
        return kept.StoreChange(rows, len(last))

    def _all(self) -> Iterator[decisions.Decision]:
        for generation, end in self.log.spans():
            yield from self.log.decisions(generation, end=end)

    def _decided_files(self) -> set[str]:
        files = (file for decision in self._all() for file in decision.files)
        return {path for file in files for path in (file.path, file.written)}

    @kept.asking("the storage")
    def problems(self) -> list[str]:
        """What is wrong with the decided files, one line for each."""
        store, problems = self.log.storage, []
        sizes = {entry.path: entry.bytes for entry in store.walk()}
        for decision in self._all():
            for file in decision.files:
                size = sizes.get(file.path, sizes.get(file.written))
                if size is None:
                    problems.append(f"{file.path} of transaction {decision.txid} is missing")
                elif size != file.bytes:
                    problems.append(
                        f"{file.path} of transaction {decision.txid} has {size} bytes, and was written with {file.bytes}"
                    )
        return problems

    @kept.asking("the storage")
    def garbage(self, now: float | None = None) -> list[storage.Entry]:
        """Files of attempts that were never decided, and whose transactions are over."""
        last = self.log.generations()[-1:]
        newest = self.log.newest(last[0])[-1:] if last else []
        if not newest:
            return []
        used = self._decided_files()
        before = (time.time() if now is None else now) - GARBAGE_S
        return [
            entry
            for entry in self.log.storage.walk()
            if entry.path.startswith((f"{HOME}/open/", f"{HOME}/data/"))
            and entry.path not in used
            and entry.changed_at < before
            and _OWN.fullmatch(entry.path.rpartition("/")[2])
            and int(entry.path.rpartition("/")[2].partition(".")[0]) <= newest[0].txid
        ]


def require_records(address: str) -> FileRecords:
    """As :func:`open_records`.

    :raises errors.UsageError: there are none.
    """
    records = open_records(address, "")
    if not records.exists():
        raise errors.UsageError(
            f"no FileSink has written to {address}\n  Mend the path or address."
        )
    if records.is_table:
        raise errors.UsageError(
            f"{address} is a Delta table\n  Delta's own tools list its files, and VACUUM removes garbage."
        )
    return records
