"""Records committed transactions in a directory of files: one decision per transaction.

::

    _txtopo/generations/00000.json            the component that writes here, and its generation
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
import secrets
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import Any

from txtopo import errors
from txtopo.connectors.files import form as forms
from txtopo.connectors.files.form import HOME
from txtopo.connectors.files.storage import Entry, Storage
from txtopo.topology import kept

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
    folder: str = ""
    """The folders that name columns, each with a slash behind."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """One task's share of a transaction."""

    task: int
    tasks: int
    rows: int
    files: tuple[File, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """A committed transaction."""

    txid: int
    attempt: int
    rows: tuple[int, ...]
    """How many rows each task wrote."""
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
    name: str = ""
    """The sink's name in the topology's state."""
    after: int = 0
    """The transaction that was the last one when the generation began to write here."""
    before: tuple[int, int] = (0, 0)
    """The last transaction and attempt of the generation before. Its later decisions do not
    count."""

    token: str = ""
    """Tells the generation from one with the same number, before the sink was cleared."""

    @property
    def identity(self) -> str:
        """Tells the generation from all others that write here. A state's generation may be adopted
        several times."""
        return f"{self.generation}.{self.number}.{self.token}"

    @property
    def folder(self) -> str:
        return f"{HOME}/{self.number:05d}"

    def fence(self, position: tuple[int, int]) -> kept.Fence:
        """The fence behind the transaction and attempt ``position``."""
        return kept.Fence(self.topology_id, self.component, self.generation, *position, count=None)


class _GoneError(errors.FailedException):
    """A record that was listed is not there any more."""


class Log:
    """The decisions in ``storage``."""

    def __init__(self, storage: Storage, begin: forms.Begin | None = None) -> None:
        self.storage, self._begin = storage, begin
        self.form = forms.Form(storage, begin)
        self._generations: list[Generation] = []
        self._read: dict[Entry, Decision] = {}

    # -- generations -----------------------------------------------------------------------------

    def generations(self) -> list[Generation]:
        """All generations, in order."""
        entries = self.storage.entries(f"{HOME}/generations")
        values = [self._json(entry.path) for entry in sorted(entries)]
        return [Generation(**{**each, "before": tuple(each["before"])}) for each in values]

    def forget(self) -> None:
        """Forget what this process has read: the sink may have been cleared."""
        self._generations, self._read = [], {}
        self.form = forms.Form(self.storage, self._begin)

    def spans(self) -> list[tuple[Generation, tuple[int, int] | None]]:
        """All generations, in order, each with its last transaction and attempt that count.
        ``None``: all count."""
        generations = self.generations()
        ends: list[tuple[int, int] | None] = [later.before for later in generations[1:]]
        return list(zip(generations, [*ends, None], strict=False))

    def current(self, generation: str) -> Generation | None:
        """The newest generation. Asks the storage unless it was ``generation`` before."""
        if not self._generations or self._generations[-1].generation != generation:
            if self._generations:
                # The form may have gone with the generation before.
                self.forget()
            self._generations = self.generations()
        return self._generations[-1] if self._generations else None

    def begin(self, generation: Generation) -> Generation:
        """Make ``generation`` the newest, unless another one was quicker. Returns the newest."""
        path = f"{HOME}/generations/{generation.number:05d}.json"
        generation = dataclasses.replace(generation, token=secrets.token_hex(4))
        self.storage.put(path, _dumped(dataclasses.asdict(generation)))
        self._generations = self.generations()
        return self._generations[-1]

    # -- writing ---------------------------------------------------------------------------------

    def newest(self, generation: Generation, txid: int = 0) -> list[Decision]:
        """The decisions that count from transaction ``txid`` on. If there are none, the last one
        before. Empty if there is no decision."""
        folder = f"{generation.folder}/log"
        for after in (_name(txid), "") if txid else ("",):
            entries = _that_count(self.storage.entries(folder, after))
            if entries:
                return [self._decision(entry) for entry in (entries if after else entries[-1:])]
        segments = sorted(self.storage.entries(f"{generation.folder}/segments"))
        return list(self._segment(segments[-1].path))[-1:] if segments else []

    def _decision(self, entry: Entry) -> Decision:
        # Equal names may come again after the sink was cleared.
        if entry not in self._read:
            # Only the last ones are asked for.
            self._read = dict([*self._read.items()][-1:])
            self._read[entry] = _decision(self._json(entry.path))
        return self._read[entry]

    def add_piece(
        self, generation: Generation, txid: int, attempt: int, piece: Piece
    ) -> list[Piece]:
        """Put a task's piece there, unless it is there, and return all of the attempt's
        pieces. Another number of tasks leaves none: the first number must be able to go on."""
        path = _path_of_piece(generation, txid, attempt, piece)
        folder, _, name = path.rpartition("/")
        beginning = name.removesuffix(f"{piece.task:05d}.json")
        is_new = self.storage.put(path, _dumped(dataclasses.asdict(piece)))
        paths = [
            entry.path
            for entry in self.storage.entries(folder, beginning)
            if entry.path.startswith(f"{folder}/{beginning}")
        ]
        pieces = [_piece(self._json(path)) for path in sorted(paths)]
        if is_new and any(other.tasks != piece.tasks for other in pieces):
            self.storage.delete([path])
        return pieces

    def remove_pieces(
        self, generation: Generation, txid: int, attempt: int, pieces: Iterable[Piece]
    ) -> None:
        """Remove pieces before the decision. The tasks put new pieces."""
        self.storage.delete([_path_of_piece(generation, txid, attempt, each) for each in pieces])

    def decision_at(self, generation: Generation, txid: int, attempt: int) -> Decision:
        """The decision of an attempt, also if it does not count any more."""
        path = _path(generation, txid, attempt)
        if self.storage.stat(path) is None:
            path = _path(generation, txid, _ONE)
        return _decision(self._json(path))

    def decide(self, generation: Generation, decision: Decision) -> Decision:
        """Write ``decision``, unless there is one. Returns the decision that is there."""
        path = _path(generation, decision.txid, decision.attempt if decision.is_opaque else _ONE)
        if self.storage.put(path, _dumped(dataclasses.asdict(decision))):
            if decision.txid % SEGMENT == 0:
                self._put_together(generation, decision.txid - SEGMENT)
            return decision
        return _decision(self._json(path))

    def _put_together(self, generation: Generation, end: int) -> None:
        """Put the decisions up to ``end`` into a segment. Transactions that are over need no
        pieces either."""
        singles = [
            entry
            for entry in self.storage.entries(f"{generation.folder}/log")
            if _position(entry.path)[0] <= end
        ]
        ends = [
            _position(entry.path)[0]
            for entry in self.storage.entries(f"{generation.folder}/segments")
        ]
        # What is there below the last segment's end, a late writer has put there.
        begin = max(ends, default=0)
        if not singles:
            return
        if begin < end:
            counting = [
                entry.path for entry in _that_count(singles) if _position(entry.path)[0] > begin
            ]
            with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
                values = list(pool.map(self._json, counting))
            path = f"{generation.folder}/segments/{_name(end)}.jsonl"
            self.storage.put(path, b"\n".join(map(_dumped, values)))
        pieces = [
            entry.path
            for entry in self.storage.entries(f"{generation.folder}/pieces")
            if _position(entry.path)[0] <= end
        ]
        self.storage.delete([*(entry.path for entry in singles), *pieces])

    # -- reading ---------------------------------------------------------------------------------

    def decisions(
        self, generation: Generation, after: int = 0, end: tuple[int, int] | None = None
    ) -> Iterator[Decision]:
        """The decisions of a generation that count, in order.

        :param end: the last transaction and attempt that count.
        """
        is_first = True
        while True:
            began_after = after
            try:
                for decision in self._list(generation, after, end):
                    after = decision.txid
                    yield decision
                return
            except _GoneError:
                # A segment has taken the place of decisions that were listed.
                if after == began_after and not is_first:
                    raise
                is_first = False

    def _list(
        self, generation: Generation, after: int, end: tuple[int, int] | None
    ) -> Iterator[Decision]:
        # The log first: what leaves it meanwhile is in a segment then.
        folder, begin = generation.folder, _name(after + 1)
        singles = _that_count(
            entry
            for entry in self.storage.entries(f"{folder}/log", begin)
            if end is None or _position(entry.path) <= end
        )
        last = 0
        for entry in sorted(self.storage.entries(f"{folder}/segments", begin)):
            for decision in self._segment(entry.path):
                last = decision.txid
                if after < last and (end is None or last <= end[0]):
                    yield decision
        for entry in singles:
            if _position(entry.path)[0] > last:
                yield self._decision(entry)

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


def _path_of_piece(generation: Generation, txid: int, attempt: int, piece: Piece) -> str:
    name = f"{txid:0{_DIGITS}d}.{attempt:0{_DIGITS}d}.{piece.task:05d}.json"
    return f"{generation.folder}/pieces/{name}"


def _position(path: str) -> tuple[int, int]:
    """Transaction and attempt in a record's name."""
    txid, *attempt = path.rpartition("/")[2].rpartition(".")[0].split(".")
    return int(txid), int(attempt[0]) if attempt else _ONE


def _that_count(entries: Iterable[Entry]) -> list[Entry]:
    """The highest attempt of each transaction, in order."""
    in_order = sorted(entries, key=lambda entry: _position(entry.path))
    return [*{_position(entry.path)[0]: entry for entry in in_order}.values()]


def _files(values: Iterable[dict[str, Any]]) -> tuple[File, ...]:
    return tuple(File(**each) for each in values)


def _decision(values: dict[str, Any]) -> Decision:
    return Decision(**{**values, "rows": tuple(values["rows"]), "files": _files(values["files"])})


def _piece(values: dict[str, Any]) -> Piece:
    return Piece(**{**values, "files": _files(values["files"])})
