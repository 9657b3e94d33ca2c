"""The settings as a bolt or spout sees them: a read-only mapping that answers a key in our spelling
and in Storm's.

Unlike ``txtopo.config``, this module needs no pydantic, which executors may not have. It knows the
Storm keys that have a counterpart here, and their units. It does not know the list of settings or
their possible values, because a component may be given any key.

Invariants: a value is kept under our spelling if there is one, in our unit. Under Storm's spelling
the answer is in Storm's unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txtopo.topology import redaction


@dataclass(frozen=True, slots=True)
class Counterpart:
    """Our setting ``key`` under a Storm name. Our unit is ``per_unit`` Storm units."""

    key: str
    per_unit: int = 1

    def to_ours(self, value: Any) -> Any:
        """Storm's ``value`` in our unit."""
        return value / self.per_unit if self.per_unit != 1 and _is_number(value) else value

    def to_storms(self, value: Any) -> Any:
        """Our ``value`` in Storm's unit."""
        return round(value * self.per_unit) if self.per_unit != 1 and _is_number(value) else value


COUNTERPARTS: Mapping[str, Counterpart] = {
    "topology.max.spout.pending": Counterpart("max_spout_pending"),
    "topology.message.timeout.secs": Counterpart("message_timeout_s"),
    "topology.sleep.spout.wait.strategy.time.ms": Counterpart("poll_interval_s", 1000),
    "transactional.zookeeper.root": Counterpart("zookeeper_root"),
    "storm.zookeeper.connection.timeout": Counterpart("zookeeper_connect_timeout_s", 1000),
    "storm.zookeeper.session.timeout": Counterpart("zookeeper_session_timeout_s", 1000),
}
"""Storm's keys that mean the same as a setting here. Source: ``org.apache.storm.Config`` and
``defaults.yaml`` of v1.2.4."""

SERVERS = ("transactional.zookeeper.servers", "storm.zookeeper.servers")
"""Hosts, without ports. Without the first key the second counts, as in Storm's
``TransactionalState``."""
PORTS = ("transactional.zookeeper.port", "storm.zookeeper.port")
"""The port of all hosts. Without the first key the second counts."""
STORM_KEYS = (*COUNTERPARTS, *SERVERS, *PORTS)
"""Every Storm key with a counterpart here."""

_ZOOKEEPER_PORT = 2181


def in_our_spelling(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with Storm's keys replaced by ours where there is a counterpart. If a setting is
    spelled both ways, the later entry wins."""
    ours: dict[str, Any] = {}
    for key, value in values.items():
        if key in COUNTERPARTS:
            ours[COUNTERPARTS[key].key] = COUNTERPARTS[key].to_ours(value)
        elif key in (*SERVERS, *PORTS):
            if (hosts := _hosts(values)) is not None:
                ours["zookeeper"] = hosts
        else:
            ours[key] = value
    return ours


def _hosts(values: Mapping[str, Any]) -> str | None:
    servers = _first(values, SERVERS)
    if servers is None:
        return None
    port = _first(values, PORTS)
    names = servers.split(",") if isinstance(servers, str) else servers
    stripped = [str(name).strip() for name in names]
    return ",".join(
        name if ":" in name else f"{name}:{_ZOOKEEPER_PORT if port is None else port}"
        for name in stripped
    )


def _first(values: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((values[key] for key in keys if values.get(key) is not None), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class TopologyConf(Mapping[str, Any]):
    """``conf`` as user code receives it: ``conf["max_spout_pending"]`` and
    ``conf["topology.max.spout.pending"]`` are the same.

    Under Storm's key a value is in Storm's unit: ``conf["storm.zookeeper.session.timeout"]`` is in
    milliseconds.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = in_our_spelling(values)

    def __getitem__(self, key: str) -> Any:
        if key in self._values:
            return self._values[key]
        if key in COUNTERPARTS and COUNTERPARTS[key].key in self._values:
            return COUNTERPARTS[key].to_storms(self._values[COUNTERPARTS[key].key])
        if key in (*SERVERS, *PORTS) and "zookeeper" in self._values:
            return _in_storms_parts(self._values["zookeeper"])[
                "servers" if key in SERVERS else "port"
            ]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def overlaid(self, values: Mapping[str, Any]) -> TopologyConf:
        """A copy in which ``values`` (a component's own configuration, in either spelling) win."""
        return TopologyConf({**self._values, **in_our_spelling(values)})

    def __repr__(self) -> str:
        return f"TopologyConf({redaction.redacted(self._values)!r})"


def _in_storms_parts(zookeeper: str | None) -> dict[str, Any]:
    """The hosts without ports, and the first host's port, from ``host:port[,host:port…][/chroot]``."""
    if zookeeper is None:
        return {"servers": None, "port": None}
    pairs = [server.partition(":") for server in zookeeper.partition("/")[0].split(",")]
    port = pairs[0][2]
    return {
        "servers": [host for host, _, _ in pairs],
        "port": int(port) if port.isdecimal() else _ZOOKEEPER_PORT,
    }
