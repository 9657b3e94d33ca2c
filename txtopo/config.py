"""Typed options of a run. Every bound, time-out and policy of the package is a field here, with its unit in its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import pydantic

from txtopo import errors
from txtopo.topology.conf import STORM_KEYS

_SERVERS, _PORT = "transactional.zookeeper.servers", "transactional.zookeeper.port"


class Config(pydantic.BaseModel):
    """How a topology is run. ``Config(max_spout_pending=3)`` and ``Config({"topology.max.spout.pending": 3})`` are the same.

    An unknown key or impossible value is a :class:`txtopo.errors.ConfigError`.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_default=True)

    max_spout_pending: int = pydantic.Field(1, ge=1, le=1000)
    """Transactions in flight at once: the window (R2)."""
    message_timeout_s: float = pydantic.Field(30.0, gt=0)
    """How long a phase may run in Spark before its attempt fails (R8)."""
    on_error: Literal["stop", "replay"] = "stop"
    """What an exception other than FailedException in user code does (R7)."""
    max_attempts: int | None = pydantic.Field(None, ge=1)
    """How often one batch may be tried before the run stops with exit code 3; ``None``: for ever."""
    max_crashes: int = pydantic.Field(8, ge=1)
    """How often workers may die on one transaction before the run stops."""
    until: Literal["exhausted"] | None = None
    """``"exhausted"``: end when the spout is not ready and nothing is in flight."""
    max_transactions: int | None = pydantic.Field(None, ge=1)
    """End when this run has committed so many transactions."""
    backoff_min_s: float = pydantic.Field(0.1, ge=0)
    """Wait before the first replay of a batch; doubled for each further one, with jitter."""
    backoff_max_s: float = pydantic.Field(10.0, ge=0)
    """Bound of that wait."""
    poll_interval_s: float = pydantic.Field(0.1, gt=0)
    """How soon a spout that was not ready is asked again."""
    zombie_wait_s: float = pydantic.Field(10.0, ge=0)
    """After a failed or cancelled commit job, how long its replay waits for tasks of it that still run (R33)."""
    drain_timeout_s: float = pydantic.Field(30.0, gt=0)
    """How long a stop waits for commits in flight."""
    zookeeper: str | None = None
    """``host:port[,host:port…][/chroot]``; ``None``: a server of our own, in ``data_dir``."""
    zookeeper_root: str = pydantic.Field("/txtopo", pattern=r"^/[^\s]*$")
    """Where below the chroot the state is kept."""
    zookeeper_connect_timeout_s: float = pydantic.Field(10.0, gt=0)
    """How long to try to reach ZooKeeper at the start."""
    zookeeper_session_timeout_s: float = pydantic.Field(10.0, gt=0)
    """How soon ZooKeeper takes a silent coordinator for dead."""
    zookeeper_wait_s: float = pydantic.Field(600.0, gt=0)
    """How long commits wait for a ZooKeeper that went away, before the run ends with exit code 5."""
    data_dir: Path | None = None
    """Where the embedded ZooKeeper keeps its data; ``None``: ``./.txtopo``."""
    metadata_bytes_max: int = pydantic.Field(512 * 1024, ge=1024, le=1000 * 1024)
    """Bound of a record, or a group of records written together, in ZooKeeper (R25)."""
    inline_bytes_max: int = pydantic.Field(512 * 1024, ge=0)
    """Held bolts up to this size, all together, travel through the driver; larger ones stay on the executors."""
    blob_bytes_max: int = pydantic.Field(32 * 1024 * 1024, ge=1024)
    """Bound of one chunk of a shuffle, and so of one tuple."""
    spill_bytes: int = pydantic.Field(128 * 1024 * 1024, ge=0)
    """How much of a level's input or output a task keeps in memory; the rest goes to local disk."""
    user: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Settings of your own, as JSON; bolts find them in ``conf["user"]``."""

    def __init__(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        given = {**(values or {}), **more}
        try:
            super().__init__(**_our_keys(given))
        except pydantic.ValidationError as error:
            raise errors.ConfigError(_explain(error)) from None

    def replaced(self, **values: Any) -> Config:
        """A copy in which ``values`` win."""
        return Config({**self.model_dump(exclude_unset=True), **values})

    def as_mapping(self) -> dict[str, Any]:
        """The settings as plain data, as bolts and spouts see them."""
        return {**self.model_dump(mode="json"), "user": dict(self.user)}


def _our_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """Storm's spellings replaced by ours; :class:`ConfigError` naming the nearest key for one that is neither."""
    known = {*Config.model_fields, *STORM_KEYS, _SERVERS, _PORT}
    ours: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            close = get_close_matches(key, known, n=1, cutoff=0.5)
            raise errors.ConfigError(f"unknown setting {key!r}" + (f"; did you mean {close[0]!r}?" if close else "; settings of your own go into user={...}"))
        if key in (_SERVERS, _PORT):
            continue
        ours[STORM_KEYS.get(key, key)] = value
    if _SERVERS in given:
        servers = [given[_SERVERS]] if isinstance(given[_SERVERS], str) else list(given[_SERVERS])
        ours["zookeeper"] = ",".join(f"{server}:{given.get(_PORT, 2181)}" for server in servers)
    return ours


def _explain(error: pydantic.ValidationError) -> str:
    lines = [f"setting {'.'.join(map(str, problem['loc']))!r} is {problem['input']!r}: {problem['msg'].lower()}" for problem in error.errors()]
    return "\n".join(lines)


def parse_assignment(text: str) -> tuple[str, Any]:
    """``key=value`` of the command line; the value as JSON where it is JSON, else as text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise errors.ConfigError(f"--set takes key=value, not {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
