"""Records committed transactions in a directory of files: one decision per transaction.

::

    _txtopo/generations/00000.json            who writes here, under which generation of its state
    _txtopo/00000/log/<txid>.json             THE decision: the transaction's files
    _txtopo/00000/log/<txid>.<attempt>.json   the same, for opaque spouts: the highest attempt counts
    _txtopo/00000/pieces/<txid>.<attempt>.<task>.json   one task's files, before the decision
    _txtopo/00000/segments/<txid>.jsonl       a thousand decisions, up to this transaction
    _txtopo/open/<generation>/                files of attempts
    _txtopo/data/<generation>/                all files, in object stores

Readers need nothing else: a transaction is committed when its decision is there.

Invariants:
    - A decision is written once, by put-if-absent, after all its files are whole.
    - A segment has the decisions that count. What is in the log below its end does not count any
      more: a late writer's decision changes nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import Any

from txtopo import errors
from txtopo.connectors.files import form as forms
from txtopo.connectors.files.form import HOME
from txtopo.connectors.files.storage import Storage

SEGMENT = 1000
"""How many decisions a segment has."""
VERSION = 1
_AT_ONCE = 16
"""How many records are read at once."""
_DIGITS = 20
_ONE = -1
"""In place of the attempt, where a transaction has one decision."""


@dataclasses.dataclass(frozen=True, slots=True)
class File:
    """A file with rows of one task."""

    path: str
    """Where readers find it."""
    written: str
    """Where its task wrote it."""
    bytes: int
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """One task's share of a transaction."""

    task: int
    tasks: int
    rows: int
    files: tuple[File, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """A committed transaction. ``tasks`` and ``rows``: how many tasks wrote it, and how many rows
    each."""

    txid: int
    attempt: int
    rows: tuple[int, ...]
    files: tuple[File, ...]
    is_opaque: bool = False
    """Whether a later attempt may take the transaction back."""
    is_void: bool = False
    """Whether an earlier attempt was taken back and nothing came in its place."""

    @property
    def position(self) -> tuple[int, int]:
        """Transaction and attempt."""
        return self.txid, self.attempt


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """A generation of a topology's state that writes here."""

    number: int
    topology_id: str
    component: str
    generation: str
    after: int = 0
    """The transaction that was the last one when the generation began to write here."""
    before: int = 0
    """The last transaction of the generation before. Its later decisions do not count."""

    @property
    def folder(self) -> str:
        """The folder with its decisions."""
        return f"{HOME}/{self.number:05d}"


class _GoneError(errors.FailedException):
    """A record that was listed is not there any more."""


class Log:
    """The decisions in ``storage``."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.form = forms.Form(storage)
        self._generations: list[Generation] = []
        self._read: dict[str, Decision] = {}

    # -- who writes ------------------------------------------------------------------------------

    def generations(self) -> list[Generation]:
        """All generations, in order."""
        entries = self.storage.entries(f"{HOME}/generations")
        return [Generation(**self._json(entry.path)) for entry in sorted(entries)]

    def spans(self) -> list[tuple[Generation, int | None]]:
        """All generations, in order, each with its last transaction that counts. ``None``: all
        count."""
        generations = self.generations()
        ends: list[int | None] = [later.before for later in generations[1:]]
        return list(zip(generations, [*ends, None], strict=False))

    def current(self, generation: str) -> Generation | None:
        """The newest generation. Asks the storage unless it was ``generation`` before."""
        if not self._generations or self._generations[-1].generation != generation:
            self._generations = self.generations()
        return self._generations[-1] if self._generations else None

    def begin(self, generation: Generation) -> Generation:
        """Make ``generation`` the newest, unless another one was quicker. Returns the newest."""
        path = f"{HOME}/generations/{generation.number:05d}.json"
        self.storage.put(path, _dumped(dataclasses.asdict(generation)))
        self._generations = self.generations()
        return self._generations[-1]

    # -- writing ---------------------------------------------------------------------------------

    def newest(self, generation: Generation, txid: int = 0) -> list[Decision]:
        """The decisions that count from transaction ``txid`` on. If there are none, the last one
        before. Empty if there is no decision."""
        folder = f"{generation.folder}/log"
        paths = [entry.path for entry in self.storage.entries(folder, _name(txid))]
        if paths:
            return [self._decision(generation, position) for position in _that_count(paths)]
        paths = [entry.path for entry in self.storage.entries(folder)]
        if paths:
            return [self._decision(generation, max(map(_position, paths)))]
        segments = sorted(self.storage.entries(f"{generation.folder}/segments"))
        return list(self._segment(segments[-1].path))[-1:] if segments else []

    def _decision(self, generation: Generation, position: tuple[int, int]) -> Decision:
        path = _path(generation, *position)
        if path not in self._read:
            # Only the last ones are asked for.
            self._read = dict([*self._read.items()][-1:])
            self._read[path] = _decision(self._json(path))
        return self._read[path]

    def add_piece(
        self, generation: Generation, txid: int, attempt: int, piece: Piece
    ) -> list[Piece]:
        """Put a task's piece there, unless it is there, and return all pieces of the attempt."""
        beginning = f"{txid:0{_DIGITS}d}.{attempt:0{_DIGITS}d}."
        folder = f"{generation.folder}/pieces"
        self.storage.put(
            f"{folder}/{beginning}{piece.task:05d}.json", _dumped(dataclasses.asdict(piece))
        )
        paths = [
            entry.path
            for entry in self.storage.entries(folder, beginning)
            if entry.path.startswith(f"{folder}/{beginning}")
        ]
        return [_piece(self._json(path)) for path in sorted(paths)]

    def decide(self, generation: Generation, decision: Decision) -> Decision:
        """Write ``decision``, unless there is one. Returns the decision that is there."""
        path = _path(generation, decision.txid, decision.attempt if decision.is_opaque else _ONE)
        if self.storage.put(path, _dumped(dataclasses.asdict(decision))):
            self._read = {path: decision}
            if decision.txid % SEGMENT == 0:
                self._put_together(generation, decision.txid - SEGMENT)
            return decision
        return _decision(self._json(path))

    def _put_together(self, generation: Generation, end: int) -> None:
        """Put the decisions up to ``end`` into a segment. Transactions that are over need no
        pieces either."""
        singles = [
            entry.path
            for entry in self.storage.entries(f"{generation.folder}/log")
            if _position(entry.path)[0] <= end
        ]
        ends = [
            _txid(entry.path) for entry in self.storage.entries(f"{generation.folder}/segments")
        ]
        # What is there below the last segment's end, a late writer has put there.
        begin = max(ends, default=0)
        if not singles:
            return
        path = f"{generation.folder}/segments/{_name(end)}.jsonl"
        if begin < end:
            with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
                counting = [
                    _path(generation, *position)
                    for position in _that_count(singles)
                    if position[0] > begin
                ]
                values = list(pool.map(self._json, counting))
            self.storage.put(path, b"\n".join(map(_dumped, values)))
        pieces = [
            entry.path
            for entry in self.storage.entries(f"{generation.folder}/pieces")
            if _txid(entry.path) <= end
        ]
        self.storage.delete([*singles, *pieces])

    # -- reading ---------------------------------------------------------------------------------

    def decisions(
        self, generation: Generation, after: int = 0, until: int | None = None
    ) -> Iterator[Decision]:
        """The decisions of a generation that count, in order."""
        while True:
            began_after = after
            try:
                for decision in self._listed(generation, after, until):
                    after = decision.txid
                    yield decision
                return
            except _GoneError:
                # A segment has taken the place of decisions that were listed.
                if after == began_after:
                    raise

    def _listed(self, generation: Generation, after: int, until: int | None) -> Iterator[Decision]:
        # The log first: what leaves it meanwhile is in a segment then.
        folder, begin = generation.folder, _name(after + 1)
        singles = [entry.path for entry in self.storage.entries(f"{folder}/log", begin)]
        end = 0
        for entry in sorted(self.storage.entries(f"{folder}/segments", begin)):
            for decision in self._segment(entry.path):
                end = decision.txid
                if after < end and (until is None or end <= until):
                    yield decision
        for position in _that_count(singles):
            if position[0] > end and (until is None or position[0] <= until):
                yield self._decision(generation, position)

    def _segment(self, path: str) -> Iterator[Decision]:
        for line in (self.storage.read(path) or b"").splitlines():
            yield _decision(self._values(line, path))

    def _json(self, path: str) -> dict[str, Any]:
        data = self.storage.read(path)
        if data is None:
            raise _GoneError(f"{self.storage.root}/{path} has just been removed")
        return self._values(data, path)

    def _values(self, data: bytes, path: str) -> dict[str, Any]:
        place = f"{self.storage.root}/{path}"
        try:
            values: dict[str, Any] = json.loads(data)
            version = values.pop("version")
        except (ValueError, KeyError, AttributeError):
            raise errors.StateMismatchError(
                f"{place} is no record of txtopo, or is damaged\n  Restore it, or clear the sink."
            ) from None
        if version != VERSION:
            raise errors.StateMismatchError(
                f"{place} has version {version}, and this txtopo reads version {VERSION}\n  Use the txtopo that wrote it."
            )
        return values


def _dumped(values: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **values}, separators=(",", ":")).encode()


def _name(txid: int) -> str:
    """A name in front of all names of transaction ``txid``, and behind all before."""
    return f"{txid:0{_DIGITS}d}"


def _path(generation: Generation, txid: int, attempt: int) -> str:
    suffix = "" if attempt == _ONE else f".{attempt:0{_DIGITS}d}"
    return f"{generation.folder}/log/{_name(txid)}{suffix}.json"


def _txid(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])


def _position(path: str) -> tuple[int, int]:
    txid, *attempt = path.rpartition("/")[2].removesuffix(".json").split(".")
    return int(txid), int(attempt[0]) if attempt else _ONE


def _that_count(paths: Iterable[str]) -> list[tuple[int, int]]:
    """The highest attempt of each transaction, in order."""
    return sorted(dict(sorted(map(_position, paths))).items())


def _files(values: Iterable[dict[str, Any]]) -> tuple[File, ...]:
    return tuple(File(**each) for each in values)


def _decision(values: dict[str, Any]) -> Decision:
    return Decision(**{**values, "rows": tuple(values["rows"]), "files": _files(values["files"])})


def _piece(values: dict[str, Any]) -> Piece:
    return Piece(**{**values, "files": _files(values["files"])})
