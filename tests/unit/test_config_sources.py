"""Sources of settings: the strongest source wins, each says where a value is from, and a
mistake in any of them is an error."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from txtopo import Config, ConfigError, config
from txtopo.config import sources

SOURCES = ("file", "environment", "spark", "code", "command line")
"""From weak to strong."""
ORIGINS = (
    "file txtopo.toml",
    "environment TXTOPO_MAX_SPOUT_PENDING",
    "spark.txtopo.max_spout_pending",
    "code",
    "command line",
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, in which files are looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(sources.FILE_VARIABLE)
    return tmp_path


def resolved(**layers: Any) -> config.Resolved:
    """The settings of the sources, without the environment of the tests."""
    return config.resolve(layers.pop("code", None), **{"environment": {}, **layers})


def refusal(**layers: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        resolved(**layers)
    return str(raised.value)


@pytest.mark.parametrize(
    "saying", [chosen for n in range(6) for chosen in itertools.combinations(range(5), n)]
)
def test_the_strongest_source_that_says_something_wins(
    saying: tuple[int, ...], place: Path
) -> None:
    values = {SOURCES[index]: str(10 + index) for index in saying}
    if "file" in values:
        (place / "txtopo.toml").write_text(f"max_spout_pending = {values['file']}\n")
    settings = resolved(
        environment={"TXTOPO_MAX_SPOUT_PENDING": values["environment"]}
        if "environment" in values
        else {},
        spark={"spark.txtopo.max_spout_pending": values["spark"], "spark.master": "local[2]"}
        if "spark" in values
        else {},
        code=Config(max_spout_pending=int(values["code"]))
        if "code" in values
        else Config(max_attempts=2),
        command_line={"max_spout_pending": values["command line"]}
        if "command line" in values
        else {},
    )
    assert settings.config.max_spout_pending == (10 + max(saying) if saying else 1)
    assert settings.origins["max_spout_pending"] == (ORIGINS[max(saying)] if saying else "default")


def test_different_settings_of_all_sources_come_together(place: Path) -> None:
    (place / "txtopo.toml").write_text('blob_bytes_max = "1m"\n')
    settings = resolved(
        environment={"TXTOPO_MESSAGE_TIMEOUT_S": "2m"},
        spark={"spark.txtopo.max_attempts": "5"},
        code={"topology.max.spout.pending": 3},
        command_line={"until": "exhausted"},
    )
    assert settings.config == Config(
        blob_bytes_max=1 << 20,
        message_timeout_s=120,
        max_attempts=5,
        max_spout_pending=3,
        until="exhausted",
    )
    assert {key: origin for key, origin in settings.origins.items() if origin != "default"} == {
        "max_spout_pending": "code",
        "message_timeout_s": "environment TXTOPO_MESSAGE_TIMEOUT_S",
        "max_attempts": "spark.txtopo.max_attempts",
        "until": "command line",
        "blob_bytes_max": "file txtopo.toml",
    }


def test_only_settings_of_the_code_count_as_set_by_the_code() -> None:
    environment = {"TXTOPO_MAX_SPOUT_PENDING": "5", "TXTOPO_MAX_CRASHES": "5"}
    assert resolved(code=Config(), environment=environment).config.max_spout_pending == 5
    settings = resolved(code=Config(max_spout_pending=1), environment=environment)
    assert (settings.config.max_spout_pending, settings.config.max_crashes) == (1, 5)
    assert (settings.origins["max_spout_pending"], settings.origins["max_crashes"]) == (
        "code",
        "environment TXTOPO_MAX_CRASHES",
    )


def test_a_stronger_source_may_take_a_value_away() -> None:
    settings = resolved(
        environment={"TXTOPO_MAX_ATTEMPTS": "5"}, spark={"spark.txtopo.max_attempts": "null"}
    )
    assert (settings.config.max_attempts, settings.origins["max_attempts"]) == (
        None,
        "spark.txtopo.max_attempts",
    )
    assert (
        resolved(
            environment={"TXTOPO_MAX_ATTEMPTS": "5"}, code=Config(max_attempts=None)
        ).config.max_attempts
        is None
    )


def test_every_setting_has_an_origin_also_the_defaults() -> None:
    settings = resolved()
    assert settings.config == Config()
    assert settings.origins == dict.fromkeys(Config.model_fields, "default")


@pytest.mark.parametrize("key", [key for key in Config.model_fields if key != "user"])
def test_every_setting_may_come_from_every_source_and_is_the_same_there(
    key: str, place: Path
) -> None:
    values: dict[str, Any] = {
        "on_error": "replay",
        "on_held": "wait",
        "zookeeper_auth": "sasl",
        "log_level": "debug",
        "log_format": "json",
        "until": "exhausted",
        "journal": "lean",
        "journal_bytes_max": "8m",
        "zookeeper": "zk:2181",
        "zookeeper_root": "/other",
        "data_dir": str(place / "data"),
    }
    value = values.get(key, "7s" if key.endswith("_s") else "8k" if "bytes" in key else "7")
    expected = Config({key: value})
    (place / "other.toml").write_text(f'{key} = "{value}"\n')
    told = [
        resolved(environment={f"TXTOPO_{key.upper()}": value}),
        resolved(environment={"TXTOPO_CONFIG_FILE": "other.toml"}),
        resolved(spark={f"spark.txtopo.{key}": value}),
        resolved(code={key: value}),
        resolved(command_line={key: value}),
    ]
    assert [each.config for each in told] == [expected] * 5
    assert [each.origins[key] for each in told] == [
        f"environment TXTOPO_{key.upper()}",
        "file other.toml",
        f"spark.txtopo.{key}",
        "code",
        "command line",
    ]


def test_settings_of_ones_own_come_together_name_by_name(place: Path) -> None:
    (place / "txtopo.toml").write_text("[user]\na = 1\nb = 1\nc = {x = 1}\n")
    settings = resolved(
        environment={"TXTOPO_USER": '{"b": 2, "d": [2]}'},
        spark={"spark.txtopo.user.e": "[3]", "spark.txtopo.user.f": "text"},
        code=Config(user={"g": "4"}),
        command_line={"user.d": "5", "user": '{"h": 5}'},
    )
    assert settings.config.user == {
        "a": 1,
        "b": 2,
        "c": {"x": 1},
        "d": 5,
        "e": [3],
        "f": "text",
        "g": "4",
        "h": 5,
    }
    assert "user" not in settings.origins
    assert {key: origin for key, origin in settings.origins.items() if key.startswith("user.")} == {
        "user.a": "file txtopo.toml",
        "user.b": "environment TXTOPO_USER",
        "user.c": "file txtopo.toml",
        "user.d": "command line",
        "user.e": "spark.txtopo.user.e",
        "user.f": "spark.txtopo.user.f",
        "user.g": "code",
        "user.h": "command line",
    }


def test_the_stronger_of_data_dir_and_zookeeper_says_where_the_state_is() -> None:
    environment = {"TXTOPO_ZOOKEEPER": "zk:2181"}
    settings = resolved(environment=environment, command_line={"data_dir": "d"})
    assert (settings.config.zookeeper, settings.config.data_dir) == (None, Path("d"))
    assert settings.origins["zookeeper"] == "command line, by data_dir"
    assert (
        resolved(
            environment=environment, code={"zookeeper": "a:1"}, command_line={"data_dir": "d"}
        ).config.zookeeper
        is None
    )
    assert (
        resolved(environment={**environment, "TXTOPO_DATA_DIR": "d"}).config.zookeeper == "zk:2181"
    )
    assert (
        resolved(environment={"TXTOPO_DATA_DIR": "d"}, code={"zookeeper": "a:1"}).config.zookeeper
        == "a:1"
    )
    assert (
        resolved(environment=environment, code=Config(data_dir=None)).config.zookeeper == "zk:2181"
    )


# -- the environment -----------------------------------------------------------------------------


def test_the_environment_of_the_process_counts_unless_another_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TXTOPO_MAX_SPOUT_PENDING", "5")
    assert config.resolve().config.max_spout_pending == 5
    assert resolved().config.max_spout_pending == 1


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (
            "TXTOPO_MAX_SPOUT_PENDIN",
            "unknown environment variable 'TXTOPO_MAX_SPOUT_PENDIN'; did you mean 'TXTOPO_MAX_SPOUT_PENDING'?",
        ),
        ("TXTOPO_CONFIG", "did you mean 'TXTOPO_CONFIG_FILE'?"),
        ("TXTOPO_ZZZ", "unknown environment variable 'TXTOPO_ZZZ'\n  Unset it."),
        ("TXTOPO_max_crashes", "unknown environment variable 'TXTOPO_max_crashes'"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_known_one(
    variable: str, message: str
) -> None:
    assert message in refusal(environment={variable: "1"})


@pytest.mark.parametrize("variable", sorted(sources.RESERVED - {sources.FILE_VARIABLE}))
def test_a_reserved_variable_is_no_setting(variable: str) -> None:
    assert resolved(environment={variable: "x"}) == resolved()
    assert variable.removeprefix("TXTOPO_").lower() not in Config.model_fields


def test_an_empty_variable_is_as_good_as_unset() -> None:
    assert resolved(environment={"TXTOPO_ZOOKEEPER": "", "TXTOPO_MAX_CRASHES": " "}) == resolved()


def test_variables_of_others_are_none_of_ours() -> None:
    assert (
        resolved(environment={"TXTOPOLOGY": "1", "txtopo_max_crashes": "1", "PATH": "x"})
        == resolved()
    )


def test_an_impossible_value_in_a_variable_names_the_variable() -> None:
    said = refusal(environment={"TXTOPO_MAX_SPOUT_PENDING": "many"})
    assert said.startswith("setting 'max_spout_pending' is 'many': input should be a valid integer")
    assert said.endswith("\n  It is given by the environment TXTOPO_MAX_SPOUT_PENDING.")


# -- Spark's configuration -----------------------------------------------------------------------


def test_settings_of_spark_itself_are_none_of_ours() -> None:
    assert (
        resolved(
            spark={"spark.master": "local[2]", "spark.txtopology": "1", "txtopo.max_crashes": "1"}
        )
        == resolved()
    )


def test_storms_keys_are_understood_in_sparks_configuration() -> None:
    settings = resolved(
        spark={
            "spark.txtopo.topology.max.spout.pending": "4",
            "spark.txtopo.storm.zookeeper.session.timeout": "20000",
        }
    )
    assert (settings.config.max_spout_pending, settings.config.zookeeper_session_timeout_s) == (
        4,
        20.0,
    )
    assert settings.origins["max_spout_pending"] == "spark.txtopo.topology.max.spout.pending"
    settings = resolved(
        spark={
            "spark.txtopo.transactional.zookeeper.port": "2182",
            "spark.txtopo.transactional.zookeeper.servers": "a,b",
        }
    )
    assert settings.config.zookeeper == "a:2182,b:2182"
    assert settings.origins["zookeeper"] == "spark.txtopo.transactional.zookeeper.servers"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "max_spout_pendin",
            "unknown setting 'spark.txtopo.max_spout_pendin'; did you mean 'spark.txtopo.max_spout_pending'?",
        ),
        (
            "zzz",
            "unknown setting 'spark.txtopo.zzz'\n  Your own settings go into spark.txtopo.user.NAME",
        ),
        (
            "topology.workers",
            "the setting 'spark.txtopo.topology.workers' of Storm has no meaning here\n  Spark has the processes",
        ),
    ],
)
def test_an_unknown_setting_in_sparks_configuration_is_refused_with_the_nearest_known_one(
    name: str, message: str
) -> None:
    assert message in refusal(spark={f"spark.txtopo.{name}": "1"})


# -- the file ------------------------------------------------------------------------------------


def test_the_file_is_txtopo_toml_or_a_table_of_pyproject_toml(place: Path) -> None:
    (place / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    assert resolved() == resolved(environment={"TXTOPO_CONFIG_FILE": ""})
    (place / "pyproject.toml").write_text(
        '[project]\nname = "mine"\n[tool.txtopo]\nmax_crashes = 3\n'
    )
    settings = resolved()
    assert (settings.config.max_crashes, settings.origins["max_crashes"]) == (
        3,
        "file pyproject.toml [tool.txtopo]",
    )
    (place / "txtopo.toml").write_text("max_crashes = 4\n")
    assert (
        refusal()
        == "there are settings both in txtopo.toml and in [tool.txtopo] of pyproject.toml\n  Keep them in one file."
    )


def test_the_environment_may_name_the_file_or_say_that_there_is_none(place: Path) -> None:
    (place / "txtopo.toml").write_text("max_crashes = 4\n")
    (place / "below").mkdir()
    (place / "below" / "mine.toml").write_text("max_attempts = 5\n")
    (place / "below" / "pyproject.toml").write_text("[tool.txtopo]\nmax_attempts = 6\n")
    settings = resolved(environment={"TXTOPO_CONFIG_FILE": "below/mine.toml"})
    assert (settings.config, settings.origins["max_attempts"]) == (
        Config(max_attempts=5),
        "file below/mine.toml",
    )
    assert resolved(
        environment={"TXTOPO_CONFIG_FILE": str(place / "below" / "pyproject.toml")}
    ).config == Config(max_attempts=6)
    assert resolved(environment={"TXTOPO_CONFIG_FILE": ""}).config == Config()
    assert "TXTOPO_CONFIG_FILE names elsewhere.toml, and there is no such file" in refusal(
        environment={"TXTOPO_CONFIG_FILE": "elsewhere.toml"}
    )


def test_a_directory_in_a_file_begins_where_the_file_is(place: Path) -> None:
    (place / "below").mkdir()
    (place / "below" / "txtopo.toml").write_text('data_dir = "state"\n')
    assert resolved(
        environment={"TXTOPO_CONFIG_FILE": "below/txtopo.toml"}
    ).config.data_dir == Path("below/state")
    assert resolved(directory=place / "below").config.data_dir == place / "below" / "state"
    (place / "below" / "txtopo.toml").write_text('data_dir = "/state"\n')
    assert resolved(
        environment={"TXTOPO_CONFIG_FILE": "below/txtopo.toml"}
    ).config.data_dir == Path("/state")


def test_storms_keys_need_no_quotes_in_a_file(place: Path) -> None:
    (place / "txtopo.toml").write_text(
        'topology.max.spout.pending = 4\n"topology.message.timeout.secs" = 45\n[transactional.zookeeper]\nservers = ["a", "b"]\nport = 2182\n'
    )
    assert resolved().config == Config(
        max_spout_pending=4, message_timeout_s=45, zookeeper="a:2182,b:2182"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_crashs = 4",
            "unknown setting 'max_crashs'; did you mean 'max_crashes'\\?\n  It is given in the file txtopo.toml.",
        ),
        ("max_crashes = 0", "'max_crashes' is 0: .*\n  It is given in the file txtopo.toml."),
        ("topology.workers = 2", "'topology.workers' of Storm has no meaning here"),
        ("[max_crashes]\nx = 4", "unknown setting 'max_crashes.x'"),
        ("max_crashes = 2020-01-01", "'max_crashes'"),
        ("max_crashes", "txtopo.toml cannot be read as TOML: "),
        ("user = 5", "'user' is 5"),
    ],
)
def test_a_mistake_in_the_file_names_the_file(text: str, message: str, place: Path) -> None:
    (place / "txtopo.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolved()


def test_a_file_without_text_or_table_is_refused(place: Path) -> None:
    (place / "txtopo.toml").write_bytes(b'zookeeper = "\xff"')
    assert refusal().startswith("txtopo.toml cannot be read as TOML: ")
    (place / "txtopo.toml").unlink()
    (place / "pyproject.toml").write_text("[tool]\ntxtopo = 5\n")
    assert refusal().startswith("tool.txtopo in pyproject.toml is no table")


# -- all of them ---------------------------------------------------------------------------------


def test_a_mistake_is_an_error_also_where_a_stronger_source_says_something_else() -> None:
    assert "'max_crashes' is '0'" in refusal(
        environment={"TXTOPO_MAX_CRASHES": "0"}, code=Config(max_crashes=3)
    )
    assert "'max_crashes' is '0'" in refusal(
        spark={"spark.txtopo.max_crashes": "0"}, command_line={"max_crashes": "3"}
    )


@pytest.mark.parametrize(
    "layers",
    [
        {"environment": {"TXTOPO_USER": '{"password": "hunter2"'}},
        {"environment": {"TXTOPO_PASSWORD": "hunter2"}},
        {"spark": {"spark.txtopo.password": "hunter2"}},
        {"command_line": {"token": "hunter2"}},
        {"command_line": {"user.token": "hunter2", "user": '{"token": "hunter3"}'}},
    ],
)
def test_no_error_shows_a_secret(layers: dict[str, Any]) -> None:
    assert "hunter" not in refusal(**layers)


def test_the_tests_do_not_see_the_settings_of_their_user() -> None:
    assert {name for name in os.environ if name.startswith("TXTOPO_")} <= sources.RESERVED
