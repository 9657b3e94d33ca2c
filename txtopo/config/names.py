"""Names of settings: ours, Storm's, ``user.KEY``. Any other name gets a message.

Everything else here works with the flat form: one entry for each setting of txtopo, and an entry
``user.KEY`` for each of the user's settings. Each entry knows the name under which its value was
given, for messages and ``txtopo config show``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.config import storm, text
from txtopo.topology import conf, redaction

USER = "user"
_PREFIX = f"{USER}."
_PASSWORD_CURE = (
    "Put the password into a file that only you can read, and the file's name into zookeeper_password_file, or set TXTOPO_ZOOKEEPER_PASSWORD.\n"
    "  A password that was given here may have been seen: choose a new one."
)
_SERVER_PARTS = (*conf.SERVERS, *conf.PORTS)


class Given(NamedTuple):
    """A value, and the name it was given under."""

    value: Any
    name: str


def flat(settings: Mapping[str, Any], fields: Collection[str]) -> dict[str, Given]:
    """``settings`` under our names. ``None`` for a Storm key means the same as in Storm: not set.
    Raises :class:`ConfigError` for an unknown name, or a setting with two names."""
    entries: dict[str, Given] = {}
    for name, value in settings.items():
        if name in conf.COUNTERPARTS:
            if value is not None:
                _add(entries, conf.COUNTERPARTS[name].key, Given(_in_our_unit(name, value), name))
        elif name in _SERVER_PARTS:
            continue
        elif name == USER:
            values = text.parsed(USER, value, False) if isinstance(value, str) else value
            if isinstance(values, Mapping):
                for key, own in values.items():
                    _add(entries, f"{_PREFIX}{key}", Given(own, name))
            else:
                entries[USER] = Given(values, name)
        elif name in fields or (
            isinstance(name, str) and name.startswith(_PREFIX) and name != _PREFIX
        ):
            _add(entries, name, Given(value, name))
        else:
            raise errors.ConfigError(unknown(name, fields))
    parts = {
        name: _server_part(name, settings[name])
        for name in _SERVER_PARTS
        if settings.get(name) is not None
    }
    if parts:
        _add(entries, "zookeeper", _servers(parts))
    return entries


def folded(flattened: Mapping[str, Any]) -> dict[str, Any]:
    """The flat settings as the constructor of ``Config`` takes them: the user's own together again."""
    together: dict[str, Any] = {
        key: value for key, value in flattened.items() if not key.startswith(_PREFIX)
    }
    own = {
        key.removeprefix(_PREFIX): value
        for key, value in flattened.items()
        if key.startswith(_PREFIX)
    }
    return {**together, USER: own} if own else together


def unknown(name: Any, fields: Collection[str], prefix: str = "") -> str:
    """The message for ``name``, an unknown setting. ``prefix``, such as ``spark.txtopo.``, goes
    before names."""
    if not isinstance(name, str):
        return f"unknown setting {name!r}: a setting's name is a string"
    if "zookeeper" in name and (redaction.is_secret(name) or name.endswith(".auth.payload")):
        return f"{prefix + name!r} is refused: a password is no setting, because settings are shown, logged and sent to executors\n  {_PASSWORD_CURE}"
    said = f"unknown setting {prefix + name!r}"
    if (cure := storm.instead_of(name)) is not None:
        return f"the setting {prefix + name!r} of Storm has no meaning here\n  {cure}"
    # Storm's names share long prefixes, so that unrelated names look alike.
    close = get_close_matches(
        name,
        [*fields, *conf.STORM_KEYS],
        n=1,
        cutoff=0.85 if storm.without_counterpart(name) else 0.5,
    )
    if close:
        return f"{said}; did you mean {prefix + close[0]!r}?"
    if (cure := storm.without_counterpart(name)) is not None:
        return f"the setting {prefix + name!r} of Storm has no meaning here\n  {cure}"
    return f"{said}\n  Your own settings go into {'user={...}' if not prefix else prefix + _PREFIX + 'NAME'}"


def _add(entries: dict[str, Given], key: str, entry: Given) -> None:
    if key in entries and entries[key].value != entry.value:
        raise errors.ConfigError(
            f"setting {key!r} is given twice, as {entries[key].name!r} and as {entry.name!r}\n  Keep one of them."
        )
    entries[key] = entry


def _in_our_unit(name: str, value: Any) -> Any:
    counterpart = conf.COUNTERPARTS[name]
    if isinstance(value, str) and counterpart.per_unit != 1:
        return text.duration_s(name, value.strip(), "ms")
    return counterpart.to_ours(value)


def _servers(parts: Mapping[str, Any]) -> Given:
    """Our setting for Storm's server lists and their ports."""
    name = next(iter(parts))
    hosts = conf.in_our_spelling(parts).get("zookeeper")
    if hosts is None:
        raise errors.ConfigError(
            f"setting {name!r} is given without {conf.SERVERS[0]!r}\n  Give both, or zookeeper='host:port'."
        )
    return Given(hosts, name)


def _server_part(name: str, value: Any) -> Any:
    """The servers as a list, or their port. Raises :class:`ConfigError` for any other value."""
    if name in conf.PORTS:
        if isinstance(value, bool) or not str(value).isdecimal() or not 0 < int(value) < 1 << 16:
            raise text.impossible(name, value, "not a port\n  Give a number from 1 to 65535.")
        return int(value)
    if isinstance(value, str):
        value = text.json_or_text(value) if value.lstrip().startswith("[") else value.split(",")
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(isinstance(server, str) and server.strip() for server in value)
    ):
        raise text.impossible(name, value, "not a list of hosts\n  Give ['host', …], or 'host,…'.")
    return list(value)
