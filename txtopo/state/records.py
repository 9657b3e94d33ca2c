"""Turns records into versioned JSON that a person can read, and back.

This format must outlive every release. A record that cannot be understood raises
:class:`~txtopo.errors.UnreadableStateError` and is never taken as absent (R25).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import pydantic

from txtopo import errors, plain_json
from txtopo.state import base
from txtopo.topology import transaction

COUNT_MAX = 10**12
"""How many store transactions of one attempt to assume when the size of its record is estimated."""

V = TypeVar("V")
R = TypeVar("R", bound="Record")


def decode_json(path: str, data: bytes) -> Any:
    """Decode the record at ``path``.

    :raises UnreadableStateError: the record is empty or not JSON.
    """
    if not data:
        raise errors.UnreadableStateError(path, "it is empty")
    try:
        return _decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise errors.UnreadableStateError(path, f"it is not JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


class Codec(Protocol[V]):
    """Turns values into a znode's data, and back."""

    def encode(self, value: V) -> bytes: ...

    def decode(self, path: str, data: bytes) -> V: ...


class JsonCodec:
    """Plain JSON values."""

    def encode(self, value: Any) -> bytes:
        return plain_json.encode(value)

    def decode(self, path: str, data: bytes) -> Any:
        return decode_json(path, data)


class Record(pydantic.BaseModel):
    """Base of every record. ``version`` is the version of the record's own format, and must be
    ``FORMAT``."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)
    FORMAT: ClassVar[int] = 1

    version: int = pydantic.Field(1, ge=1)

    def encode(self) -> bytes:
        """The record as JSON.

        :raises NotJsonError: JSON would not give some value back unchanged.
        """
        return plain_json.encode(_plain(self))

    @classmethod
    def decode(cls: type[R], path: str, data: bytes) -> R:
        """Decode the record at ``path``.

        :raises UnreadableStateError: the text is no such record, or has another version.
        """
        value = decode_json(path, data)
        if (
            isinstance(value, dict)
            and isinstance(version := value.get("version"), int)
            and version != cls.FORMAT
        ):
            reason = f"it has format version {version}, but this txtopo reads {cls.FORMAT}: run the txtopo version that wrote the record"
            raise errors.UnreadableStateError(path, reason)
        try:
            return cls.model_validate(value)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise errors.UnreadableStateError(
                path, f"it is not a {cls.__name__}: {where + ': ' if where else ''}{first['msg']}"
            ) from None

    @classmethod
    def find(cls: type[R], store: base.StateStore, path: str) -> R | None:
        """Read and decode the record at ``path``. None if there is no znode."""
        return cls.of_node(path, store.get(path))

    @classmethod
    def of_node(cls: type[R], path: str, node: base.Node | None) -> R | None:
        """Decode ``node``, which was read at ``path``. None if there is no znode."""
        return None if node is None else cls.decode(path, node.data)


def _plain(value: Any) -> Any:
    """``value`` with records as dicts. pydantic's own dump would quietly turn dataclasses, too,
    into dicts."""
    return (
        {name: _plain(getattr(value, name)) for name in type(value).model_fields}
        if isinstance(value, Record)
        else value
    )


class TxidRecord(Record):
    """One transaction's record. *open*: its metadata is made. *sealed*: its effects may exist
    (R23).

    ``tasks`` are the sealed task counts by component. ``attempt_id`` names the attempt that sealed
    the transaction. ``opened_at`` is the opening time, as ISO 8601 with time zone (R36).
    """

    FORMAT: ClassVar[int] = 2

    version: int = pydantic.Field(2, ge=1)
    txid: int = pydantic.Field(ge=1)
    status: Literal["open", "sealed"] = "open"
    attempt_id: int | None = None
    tasks: dict[str, int] | None = None
    metadata: Any = None
    opened_at: str | None = None

    @property
    def opened(self) -> datetime.datetime | None:
        """``opened_at`` in UTC. None if unknown."""
        return (
            None
            if self.opened_at is None
            else datetime.datetime.fromisoformat(self.opened_at).astimezone(datetime.UTC)
        )

    @pydantic.model_validator(mode="after")
    def _is_whole(self) -> TxidRecord:
        if (
            self.opened_at is not None
            and datetime.datetime.fromisoformat(self.opened_at).tzinfo is None
        ):
            raise ValueError(f"opened_at is {self.opened_at}, which has no time zone")
        if self.status == "sealed" and (self.attempt_id is None or self.tasks is None):
            raise ValueError("a sealed transaction names its attempt and its tasks")
        return self


class GenerationRecord(Record):
    """Names this incarnation of the state (R27). ``restored`` is random, and names the newest time
    that the state was restored from a copy."""

    generation: str = pydantic.Field(min_length=1)
    restored: str | None = None

    def encode(self) -> bytes:
        # Earlier versions know no such field, and refuse a record with it.
        known = {"version": self.version, "generation": self.generation}
        return plain_json.encode(known) if self.restored is None else super().encode()


class EpochRecord(Record):
    """The fence (R26): how often the lease was taken, and the last holder. ``holder_id`` is random,
    one per coordinator."""

    epoch: int = pydantic.Field(ge=1)
    holder_id: str


class StandbyRecord(Record):
    """A run that waits for the topology. ``started`` is for people to read, ``process`` for
    :mod:`txtopo.state.liveness`."""

    host: str
    pid: int
    started: str
    name: str
    process: str = ""


class LeaseRecord(StandbyRecord):
    """The coordinator that is alive and holds the topology."""

    epoch: int = pydantic.Field(ge=1)
    holder_id: str


class PauseRecord(Record):
    """Someone's wish that no new transaction begins. ``is_reached``: none is in flight any more."""

    by: str
    at: str
    is_reached: bool = False


class DrainRecord(Record):
    """Someone's wish that the run of ``epoch`` finishes its commits and ends."""

    by: str
    at: str
    epoch: int


class RequestRecord(Record):
    """What is asked of the topology's run, and of later ones."""

    pause: PauseRecord | None = None
    drain: DrainRecord | None = None


class EndedRecord(Record):
    """How the run of ``epoch`` ended. For people and commands: no decision depends on it.

    ``exit_code`` is 0 for a run that was done or stopped, None for a run that was aborted.
    ``at`` is ISO 8601 in UTC. ``data_dir`` is where the run's journal is, on ``host``.
    ``committed`` counts the run's transactions, ``failed`` and ``behind`` its attempts.
    """

    epoch: int = pydantic.Field(ge=1)
    host: str
    pid: int
    name: str
    at: str
    exit_code: int | None
    error: str | None
    data_dir: str | None
    committed: int
    failed: int
    behind: int


class CurrentRecord(Record):
    """The next txid to commit. ``holder_id`` and ``write`` (1, 2, 3 … per holder) name the last
    write."""

    current: int = pydantic.Field(ge=1)
    epoch: int = pydantic.Field(ge=1)
    holder_id: str
    write: int = pydantic.Field(ge=0)


class PositionsRecord(Record):
    """Metadata by partition, for one shard's partitions."""

    positions: dict[str, Any]


class StoresRecord(Record):
    """The stores with results from this generation, by ``component/store`` name. Each has the last
    recorded attempt that opened it, as ``{"txid": …, "attempt_id": …, "count": …}`` (R27, R31).
    ``count`` is how many store transactions that attempt had (R34)."""

    FORMAT = 2

    version: int = pydantic.Field(2, ge=1)
    stores: dict[str, dict[str, int]]

    @pydantic.model_validator(mode="after")
    def _names_attempts(self) -> StoresRecord:
        for name, attempt in self.stores.items():
            is_attempt = (
                attempt.keys() == {"txid", "attempt_id", "count"}
                and attempt["txid"] >= transaction.INIT_TXID
            )
            if not is_attempt or attempt["attempt_id"] < 0 or attempt["count"] < 0:
                raise ValueError(f"store {name} has {attempt}, which is no attempt")
        return self

    @classmethod
    def of(cls, attempts: Mapping[str, transaction.RecordedAttempt]) -> StoresRecord:
        return cls(
            stores={
                name: {"txid": last.txid, "attempt_id": last.attempt_id, "count": last.count}
                for name, last in sorted(attempts.items())
            }
        )

    @property
    def attempts(self) -> dict[str, transaction.RecordedAttempt]:
        return {
            name: transaction.RecordedAttempt(**attempt) for name, attempt in self.stores.items()
        }
