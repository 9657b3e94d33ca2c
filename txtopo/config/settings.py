"""A run's settings, typed. Every bound, time-out and policy in the package is a field here, with
its unit in its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import pydantic

from txtopo import errors, plain_json
from txtopo.config import names, text
from txtopo.topology import redaction


class Config(pydantic.BaseModel):
    """How a topology is run. ``Config(max_spout_pending=3)`` and
    ``Config({"topology.max.spout.pending": 3})`` are the same.

    An unknown key or impossible value is a :class:`txtopo.errors.ConfigError`. Durations and sizes
    may be text, spelled as in Spark: ``"500ms"``, ``"64m"``. A ``Config`` holds the settings made
    in code. :func:`txtopo.config.resolve` adds the weaker and the stronger sources.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    max_spout_pending: int = pydantic.Field(1, ge=1, le=1000)
    """Transactions in flight at once: the window (R2)."""
    message_timeout_s: float = pydantic.Field(30.0, gt=0)
    """How long a phase may run in Spark before its attempt fails (R8)."""
    on_error: Literal["stop", "replay"] = "stop"
    """Effect of an exception other than FailedException in user code (R7)."""
    max_attempts: int | None = pydantic.Field(None, ge=1)
    """How often one batch may be tried before the run stops with exit code 3. ``None``: for ever."""
    max_crashes: int = pydantic.Field(8, ge=1)
    """How often workers may die on one transaction before the run stops."""
    until: Literal["exhausted"] | None = None
    """``"exhausted"``: end when the spout is not ready and nothing is in flight."""
    max_transactions: int | None = pydantic.Field(None, ge=1)
    """End when this run has committed so many transactions."""
    backoff_min_s: float = pydantic.Field(0.1, ge=0)
    """Wait before a batch's first replay. Doubled for each further replay, with jitter."""
    backoff_max_s: float = pydantic.Field(10.0, ge=0)
    """Bound of that wait."""
    small_transaction_s: float = pydantic.Field(0.02, ge=0)
    """Transactions whose tasks are at work for less than this, all together, run in a single Spark
    task each. With one task per component, a commit may last 8 times as long. 0: none does."""
    poll_interval_s: float = pydantic.Field(0.1, gt=0)
    """How soon a spout that was not ready is asked again."""
    zombie_wait_s: float = pydantic.Field(10.0, ge=0)
    """After a failed or cancelled commit job, how long its replay waits for the job's tasks that
    still run (R33)."""
    on_held: Literal["refuse", "wait", "take"] = "refuse"
    """Answer to a topology under a foreign coordinator: refuse to run (exit code 4), wait until
    the topology is free (a standby), or take the topology at once (the other coordinator is fenced,
    and ends with exit code 4)."""
    drain_timeout_s: float = pydantic.Field(30.0, gt=0)
    """How long a stop waits for commits in flight."""
    zookeeper: str | None = None
    """``host:port[,host:port…][/chroot]``. ``None``: our own server, in ``data_dir``."""
    zookeeper_root: str = pydantic.Field("/txtopo", pattern=r"^/[^\s]*$")
    """Where below the chroot the state is kept."""
    zookeeper_connect_timeout_s: float = pydantic.Field(10.0, gt=0)
    """How long to try to reach ZooKeeper at the start."""
    zookeeper_session_timeout_s: float = pydantic.Field(10.0, gt=0)
    """How soon ZooKeeper takes a silent coordinator for dead."""
    zookeeper_wait_s: float = pydantic.Field(600.0, gt=0)
    """How long commits wait for a ZooKeeper that went away, before the run ends with exit code 5.
    """
    zookeeper_auth: Literal["none", "digest", "sasl"] = "none"
    """Authentication to ZooKeeper. With ``"digest"`` or ``"sasl"`` (DIGEST-MD5) no other user may
    read or change a run's state."""
    zookeeper_user: str | None = None
    """The user's name. The password is no setting: it is in a file, or in
    ``TXTOPO_ZOOKEEPER_PASSWORD`` in the driver's environment."""
    zookeeper_password_file: Path | None = None
    """The file, on the driver, that holds the password and nothing else."""
    data_dir: Path | None = None
    """Where the embedded ZooKeeper keeps its data. ``None``: ``./.txtopo``."""
    journal: Literal["full", "lean", "off"] = "full"
    """What the journal in ``data_dir`` keeps about each attempt. ``"lean"``: neither the batch's
    metadata nor texts from user code's errors. ``"off"``: there is no journal."""
    journal_bytes_max: int = pydantic.Field(64 * 1024 * 1024, ge=1024 * 1024)
    """Bound for a topology's journal. The oldest records go first."""
    stores_max: int = pydantic.Field(1000, ge=1)
    """How many stores a topology may write to in all, counted by component and name. Its state
    remembers each."""
    metadata_bytes_max: int = pydantic.Field(512 * 1024, ge=1024, le=1000 * 1024)
    """Bound for a record, or for records written together, in ZooKeeper (R25)."""
    inline_bytes_max: int = pydantic.Field(512 * 1024, ge=0, le=64 * 1024 * 1024)
    """Held bolts up to this size, in equal shares for the slots, travel through the driver. Larger
    ones stay on the executors."""
    blob_bytes_max: int = pydantic.Field(32 * 1024 * 1024, ge=1024, le=1024**3)
    """Bound for one chunk of a shuffle, and so for one tuple."""
    spill_bytes: int = pydantic.Field(128 * 1024 * 1024, ge=0)
    """How much of a level's input or output a task keeps in memory. The rest goes to local disk."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level of lines that workers write for ``context.log``."""
    log_format: Literal["text", "json"] = "text"
    """The form of those lines, and of all lines of ``txtopo run``."""
    user: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Your own settings, as JSON. Bolts find them in ``conf["user"]``. A single one is
    ``user.NAME``."""

    def __init__(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        entries = names.flat({**(values or {}), **more}, type(self).model_fields)
        ours = names.folded({key: _parsed(key, value) for key, (value, _) in entries.items()})
        if isinstance(ours.get(names.USER), dict):
            ours[names.USER] = _as_json(ours[names.USER])
        try:
            super().__init__(**ours)
        except pydantic.ValidationError as error:
            raise _explained(error) from None

    def replaced(self, **values: Any) -> Config:
        """A copy in which ``values`` win."""
        entries = names.flat(values, type(self).model_fields)
        return Config(
            {
                **self.model_dump(exclude_unset=True),
                **names.folded({key: value for key, (value, _) in entries.items()}),
            }
        )

    def as_mapping(self) -> dict[str, Any]:
        """The settings as plain data, as bolts and spouts see them."""
        return self.model_dump(mode="json")

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Hide secrets in ``repr``."""
        return [
            (name, redaction.redacted(value, name or "")) for name, value in super().__repr_args__()
        ]


def _parsed(key: str, value: Any) -> Any:
    """``value`` as pydantic takes it: durations, sizes and ``null`` may be text."""
    field = Config.model_fields.get(key)
    if field is None:
        return value
    if key == "zookeeper" and isinstance(value, str):
        text.check_address(value)
    if isinstance(value, bool):
        # Python's True is the number 1, hardly the intention behind True in a setting.
        raise text.impossible(key, value, "no setting is true or false")
    return (
        text.parsed(key, value, type(None) in get_args(field.annotation))
        if isinstance(value, str)
        else value
    )


def _as_json(values: dict[str, Any]) -> Any:
    try:
        return plain_json.plain(values)
    except plain_json.NotJsonError as error:
        raise errors.ConfigError(
            f"setting {names.USER + error.path[1:]!r}: {error.why}\n  Your own settings are JSON."
        ) from None


def _explained(error: pydantic.ValidationError) -> errors.ConfigError:
    lines = [
        str(
            text.impossible(
                ".".join(map(str, problem["loc"])), problem["input"], problem["msg"].lower()
            )
        )
        for problem in error.errors()
    ]
    return errors.ConfigError("\n".join(lines))
