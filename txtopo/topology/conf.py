"""The settings as a bolt or spout sees them: a read-only mapping that answers both spellings of a key.

Apart from ``txtopo.config`` because executors may have no pydantic: this is what travels there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

STORM_KEYS: dict[str, str] = {
    "topology.max.spout.pending": "max_spout_pending",
    "topology.message.timeout.secs": "message_timeout_s",
    "transactional.zookeeper.root": "zookeeper_root",
}
"""Storm's dotted keys that mean the same as one of ours."""


class TopologyConf(Mapping[str, Any]):
    """``conf`` as user code receives it: ``conf["max_spout_pending"]`` and ``conf["topology.max.spout.pending"]`` are the same."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        if key in self._values:
            return self._values[key]
        return self._values[STORM_KEYS[key]] if key in STORM_KEYS else self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def overlaid(self, values: Mapping[str, Any]) -> TopologyConf:
        """A copy in which ``values`` (a component's own configuration) win."""
        return TopologyConf({**self._values, **{STORM_KEYS.get(key, key): value for key, value in values.items()}})

    def __repr__(self) -> str:
        return f"TopologyConf({self._values!r})"
