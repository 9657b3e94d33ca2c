"""Sources of settings, from strong to weak.

The order: the command line, the code, ``spark.txtopo.*`` in Spark's configuration, ``TXTOPO_*`` in
the environment, a file, the default. Every way to start a topology asks :func:`resolve`, so that
all agree. A layer is checked as a whole before it is laid over the weaker layers: a mistake is an
error even where a stronger source would hide it.

A ``Config`` alone depends on nothing but its arguments: the sources are read here only.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from txtopo import errors, faults
from txtopo.config import names, settings, text
from txtopo.topology import conf

COMMAND_LINE = "command line"
CODE = "code"
SPOUT = "code (the spout's configuration)"
DEFAULT = "default"
"""Origins that have no name to add."""

SPARK_PREFIX = "spark.txtopo."
ENVIRONMENT_PREFIX = "TXTOPO_"
FILE_VARIABLE = "TXTOPO_CONFIG_FILE"
"""Names the file. If set to nothing, no file is read."""
PASSWORD_VARIABLE = "TXTOPO_ZOOKEEPER_PASSWORD"
"""The password for ZooKeeper is no setting: ``txtopo.state.credentials`` reads the password when a
client needs it."""
RESERVED = frozenset(
    {
        FILE_VARIABLE,
        PASSWORD_VARIABLE,
        faults.VARIABLE,
        faults.DIRECTORY_VARIABLE,
        "TXTOPO_NO_SKIPS",
        "TXTOPO_STARTER_STORE",
    }
)
"""Environment variables that begin like settings and are none."""

_PROJECT_FILE = "pyproject.toml"
_OWN_FILE = "txtopo.toml"
_FIELDS = settings.Config.model_fields


class Resolved(NamedTuple):
    """A run's settings, and for each (``user.NAME`` for your own) its origin."""

    config: settings.Config
    origins: dict[str, str]


class _Said(NamedTuple):
    value: Any
    origin: str


_Layer = dict[str, _Said]


def resolve(
    code: settings.Config | Mapping[str, Any] | None = None,
    *,
    command_line: Mapping[str, Any] | None = None,
    spout: Mapping[str, Any] | None = None,
    spark: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Resolved:
    """Merge all sources of settings.

    ``spout`` is the spout's own configuration, whose ``max_spout_pending`` is the run's, as in
    Storm. ``spark`` is Spark's whole configuration. ``environment`` is ``os.environ`` unless given.
    A file is looked for in ``directory``, by default the working directory.

    :raises ConfigError: a source names an unknown setting or an impossible value. Says which
        source.
    """
    variables = os.environ if environment is None else environment
    layers = [
        _of_file(variables, directory or Path()),
        _of_environment(variables),
        _of_spark(spark or {}),
        _of_code(code),
        _of_spout(spout or {}),
        _layer_of(
            command_line or {}, lambda name: COMMAND_LINE, "on the command line", is_text=True
        ),
    ]
    laid: _Layer = {}
    for layer in layers:
        laid |= layer
    _choose_state(laid, layers)
    config = settings.Config(names.folded({key: said.value for key, said in laid.items()}))
    origins = {
        key: laid[key].origin if key in laid else DEFAULT for key in _FIELDS if key != names.USER
    }
    own = {key: said.origin for key, said in laid.items() if key not in _FIELDS}
    return Resolved(config, {**origins, **(own or {names.USER: DEFAULT})})


def _choose_state(laid: _Layer, layers: list[_Layer]) -> None:
    """The state is in ``zookeeper`` or, without that setting, in ``data_dir``: a stronger
    ``data_dir`` must not lose to a weaker ``zookeeper``."""
    if "zookeeper" in laid and "data_dir" in laid and laid["data_dir"].value is not None:
        strengths = {
            key: max(index for index, layer in enumerate(layers) if key in layer)
            for key in ("zookeeper", "data_dir")
        }
        if strengths["data_dir"] > strengths["zookeeper"]:
            laid["zookeeper"] = _Said(None, f"{laid['data_dir'].origin}, by data_dir")


# -- one function for each source ----------------------------------------------------------------


def _of_code(code: settings.Config | Mapping[str, Any] | None) -> _Layer:
    config = code if isinstance(code, settings.Config) else settings.Config(code)
    set_there = {name: getattr(config, name) for name in config.model_fields_set}
    return {key: _Said(value, CODE) for key, (value, _) in names.flat(set_there, _FIELDS).items()}


def _of_spout(configuration: Mapping[str, Any]) -> _Layer:
    pending = conf.in_our_spelling(configuration).get("max_spout_pending")
    return (
        {}
        if pending is None
        else _layer_of(
            {"max_spout_pending": pending}, lambda name: SPOUT, "in the configuration of the spout"
        )
    )


def _of_spark(spark: Mapping[str, str]) -> _Layer:
    values = {
        key.removeprefix(SPARK_PREFIX): value
        for key, value in spark.items()
        if key.startswith(SPARK_PREFIX)
    }
    for name in values:
        _require_known(name, SPARK_PREFIX)
    return _layer_of(
        values,
        lambda name: SPARK_PREFIX + name,
        f"as {SPARK_PREFIX}* in Spark's configuration",
        is_text=True,
    )


def _of_environment(environment: Mapping[str, str]) -> _Layer:
    by_variable = {ENVIRONMENT_PREFIX + name.upper(): name for name in _FIELDS}
    layer: _Layer = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in RESERVED:
            continue
        if variable not in by_variable:
            raise errors.ConfigError(
                f"unknown environment variable {variable!r}{_nearest(variable, [*by_variable, *RESERVED])}"
            )
        if value.strip():
            origin = f"environment {variable}"
            layer |= _layer_of(
                {by_variable[variable]: value},
                lambda name, origin=origin: origin,
                f"by the {origin}",
                is_text=True,
            )
    return layer


def _nearest(variable: str, known: list[str]) -> str:
    # The common prefixes are left out, or every key would be near every other.
    close = get_close_matches(
        variable[len(ENVIRONMENT_PREFIX) :],
        [name[len(ENVIRONMENT_PREFIX) :] for name in known],
        n=1,
        cutoff=0.5,
    )
    return f"; did you mean {ENVIRONMENT_PREFIX + close[0]!r}?" if close else "\n  Unset it."


def _of_file(environment: Mapping[str, str], directory: Path) -> _Layer:
    file = _find_file(environment, directory)
    if file is None:
        return {}
    path, table = file
    values = dict(_dotted(table))
    for key in ("data_dir", "zookeeper_password_file"):
        if isinstance(values.get(key), str) and values[key].strip():
            values[key] = path.parent / values[key]
    shown = f"{path} [tool.txtopo]" if path.name == _PROJECT_FILE else str(path)
    return _layer_of(values, lambda name: f"file {shown}", f"in the file {shown}")


def _layer_of(
    values: Mapping[str, Any], origin_of: Any, where: str, is_text: bool = False
) -> _Layer:
    """``values`` as a layer, if they could be a configuration by themselves. ``is_text``: JSON in
    the values is yet to be read."""
    if is_text:
        own = {
            key: text.json_or_text(value)
            for key, value in values.items()
            if isinstance(value, str) and key.startswith(f"{names.USER}.")
        }
        values = {**values, **own}
    try:
        config = settings.Config(values)
        spelled = names.flat(values, _FIELDS)
    except errors.ConfigError as error:
        raise errors.ConfigError(f"{error}\n  It is given {where}.") from None
    typed = names.flat({name: getattr(config, name) for name in config.model_fields_set}, _FIELDS)
    return {key: _Said(value, origin_of(spelled[key].name)) for key, (value, _) in typed.items()}


def _require_known(name: str, prefix: str) -> None:
    if (
        name not in _FIELDS
        and name not in conf.STORM_KEYS
        and not (name.startswith(f"{names.USER}.") and name != f"{names.USER}.")
    ):
        raise errors.ConfigError(names.unknown(name, _FIELDS, prefix))


# -- the file ------------------------------------------------------------------------------------


def _find_file(
    environment: Mapping[str, str], directory: Path
) -> tuple[Path, Mapping[str, Any]] | None:
    if FILE_VARIABLE in environment:
        named = environment[FILE_VARIABLE]
        if not named:
            return None
        path = directory / named
        if not path.is_file():
            raise errors.ConfigError(
                f"{FILE_VARIABLE} names {named}, and there is no such file\n  Unset the variable, or set it to nothing to read no file."
            )
        return path, _table(path) or {}
    own, project = directory / _OWN_FILE, directory / _PROJECT_FILE
    in_own = _table(own) if own.is_file() else None
    in_project = _table(project) if project.is_file() else None
    if in_own is not None and in_project is not None:
        raise errors.ConfigError(
            f"there are settings both in {own} and in [tool.txtopo] of {project}\n  Keep them in one file."
        )
    if in_own is not None:
        return own, in_own
    return None if in_project is None else (project, in_project)


def _table(path: Path) -> Mapping[str, Any] | None:
    """The settings in ``path``: the whole file, or the table ``[tool.txtopo]`` of a
    ``pyproject.toml``, if there is one."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise errors.ConfigError(f"{path} cannot be read as TOML: {error}") from None
    if path.name != _PROJECT_FILE:
        return content
    tools = content.get("tool", {})
    section = tools.get("txtopo") if isinstance(tools, dict) else None
    if section is not None and not isinstance(section, dict):
        raise errors.ConfigError(
            f"tool.txtopo in {path} is no table\n  Write [tool.txtopo], and the settings below it."
        )
    return section


def _dotted(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """The entries of nested tables under their whole names: TOML reads
    ``topology.max.spout.pending`` as four tables. ``user`` is a value."""
    entries: list[tuple[str, Any]] = []
    for key, value in table.items():
        is_table = isinstance(value, dict) and before + key != names.USER
        entries.extend(_dotted(value, f"{before}{key}.") if is_table else [(before + key, value)])
    return entries
