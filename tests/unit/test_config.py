"""A ``Config`` by itself: names, values as text, refusals, and secrets that are never shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from txtopo import Config, ConfigError


def test_a_setting_is_given_by_keyword_or_in_a_dict_with_the_same_meaning() -> None:
    assert (
        Config(max_spout_pending=3)
        == Config({"max_spout_pending": 3})
        == Config({"max_spout_pending": 1}, max_spout_pending=3)
    )


def test_only_given_settings_count_as_set() -> None:
    assert Config().model_fields_set == set()
    assert Config(max_spout_pending=1, data_dir="d").model_fields_set == {
        "max_spout_pending",
        "data_dir",
    }


def test_a_configuration_cannot_be_changed() -> None:
    conf = Config()
    with pytest.raises(ValueError, match="frozen"):
        conf.max_spout_pending = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("2m", 120.0),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("250us", 0.00025),
        ("30", 30.0),
        ("0.5", 0.5),
        (" 1.5 S ", 1.5),
        ("1e-3", 0.001),
    ],
)
def test_a_duration_may_be_spelled_as_in_spark(text: str, seconds: float) -> None:
    assert Config(message_timeout_s=text).message_timeout_s == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64m", 64 << 20),
        ("64MB", 64 << 20),
        ("1k", 1024),
        ("2kb", 2048),
        ("1g", 1 << 30),
        ("1t", 1 << 40),
        ("4096", 4096),
        ("4096b", 4096),
        ("1.5k", 1536),
    ],
)
def test_a_size_may_be_spelled_as_in_spark(text: str, size: int) -> None:
    assert Config(spill_bytes=text).spill_bytes == size


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_spout_pending": "3"}, {"max_spout_pending": 3}),
        ({"max_attempts": "null", "until": "None"}, {"max_attempts": None, "until": None}),
        ({"max_attempts": "5"}, {"max_attempts": 5}),
        (
            {"on_error": "replay", "until": '"exhausted"'},
            {"on_error": "replay", "until": "exhausted"},
        ),
        ({"data_dir": "a/b"}, {"data_dir": Path("a/b")}),
        ({"zookeeper": "zk:2181/a"}, {"zookeeper": "zk:2181/a"}),
        ({"user": '{"words": [1, null]}'}, {"user": {"words": [1, None]}}),
    ],
)
def test_text_is_understood_by_the_type_of_its_setting(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert Config(settings) == Config(expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"message_timeout_s": "5 parsecs"},
            "'message_timeout_s' is '5 parsecs': not a duration\n  .* such as 500ms",
        ),
        ({"message_timeout_s": "64m2"}, "not a duration"),
        ({"message_timeout_s": "0s"}, "'message_timeout_s' is 0.0: input should be greater than 0"),
        ({"message_timeout_s": float("inf")}, "finite"),
        ({"message_timeout_s": float("nan")}, "finite"),
        ({"message_timeout_s": "-1s"}, "greater than 0"),
        ({"blob_bytes_max": "64q"}, "'blob_bytes_max' is '64q': not a size\n  .* such as 64m"),
        ({"blob_bytes_max": "0.3b"}, "not a size"),
        ({"blob_bytes_max": "500ms"}, "not a size"),
        (
            {"max_spout_pending": "many"},
            "'max_spout_pending' is 'many': input should be a valid integer",
        ),
        (
            {"max_spout_pending": 0},
            "'max_spout_pending' is 0: input should be greater than or equal to 1",
        ),
        ({"max_spout_pending": None}, "'max_spout_pending' is None"),
        ({"max_spout_pending": "null"}, "'max_spout_pending' is 'null'"),
        ({"max_spout_pending": True}, "'max_spout_pending' is True: no setting is true or false"),
        ({"on_error": "explode"}, "'on_error' is 'explode': input should be 'stop' or 'replay'"),
        ({"zookeeper": ""}, "'zookeeper' is '': it is empty"),
        ({"data_dir": "  "}, "'data_dir' is '': it is empty"),
        ({"zookeeper_root": "txtopo"}, "'zookeeper_root' is 'txtopo'"),
        ({"user": "[1]"}, "'user' is no JSON object"),
        ({"user": 5}, "'user' is 5"),
        (
            {"user": {"a": {"b": object()}}},
            r"'user\.a\.b': a value of type object would not come back",
        ),
        ({"user": {"a": float("nan")}}, r"'user\.a': nan has no form in JSON"),
    ],
)
def test_an_impossible_value_is_refused_with_the_setting_the_value_and_why(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        Config(settings)
    assert refusal.value.exit_code == 2


def test_every_impossible_value_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        Config(max_spout_pending=0, max_crashes=0)
    assert [line.split("'")[1] for line in str(refusal.value).splitlines()] == [
        "max_spout_pending",
        "max_crashes",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "max_spout_pendign",
            "unknown setting 'max_spout_pendign'; did you mean 'max_spout_pending'?",
        ),
        ("maxSpoutPending", "did you mean 'max_spout_pending'?"),
        ("topology.max.spout.pendign", "did you mean 'topology.max.spout.pending'?"),
        ("transactional.zookeper.servers", "did you mean 'transactional.zookeeper.servers'?"),
        ("qqq", "unknown setting 'qqq'\n  Your own settings go into user={...}"),
        (7, "unknown setting 7: a setting's name is a string"),
        ("user.", "unknown setting 'user.'; did you mean 'user'?"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_known_one(name: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Config({name: 3})
    assert message in str(refusal.value)


def test_settings_of_ones_own_are_given_together_or_one_by_one() -> None:
    assert (
        Config({"user": {"a": 1, "b": 2}}).user
        == Config({"user": {"a": 1}, "user.b": 2}).user
        == {"a": 1, "b": 2}
    )
    assert Config({"user.a.b": 1}).user == {"a.b": 1}


def test_settings_of_ones_own_are_copied_as_json() -> None:
    words = ["a"]
    conf = Config(user={"words": words, "pair": (1, 2)})
    words.append("b")
    assert conf.user == {"words": ["a"], "pair": [1, 2]}


def test_one_setting_under_two_names_must_have_one_value() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'max_spout_pending' is given twice, as 'max_spout_pending' and as 'topology.max.spout.pending'",
    ):
        Config({"max_spout_pending": 3, "topology.max.spout.pending": 4})
    assert Config({"max_spout_pending": 3, "topology.max.spout.pending": 3}).max_spout_pending == 3
    with pytest.raises(ConfigError, match=r"'user.a' is given twice"):
        Config({"user": {"a": 1}, "user.a": 2})


def test_a_copy_replaces_settings_under_either_name_and_keeps_the_rest() -> None:
    conf = Config(max_spout_pending=3, max_attempts=2, user={"a": 1})
    assert conf.replaced(max_attempts=5) == Config(
        max_spout_pending=3, max_attempts=5, user={"a": 1}
    )
    assert conf.replaced(**{"topology.max.spout.pending": 4}) == Config(
        max_spout_pending=4, max_attempts=2, user={"a": 1}
    )
    assert conf.replaced(user={"b": 2}).user == {"b": 2}
    assert conf.replaced(max_attempts=5).model_fields_set == {
        "max_spout_pending",
        "max_attempts",
        "user",
    }


def test_bolts_see_plain_data_with_every_setting() -> None:
    seen = Config(data_dir="d", user={"a": [1]}).as_mapping()
    assert seen.keys() == Config.model_fields.keys()
    assert json.loads(json.dumps(seen)) == seen
    assert (seen["data_dir"], seen["user"]) == ("d", {"a": [1]})


def test_secrets_are_not_shown_by_repr() -> None:
    url = "postgresql://me:hunter2@h/db"
    conf = Config(
        user={
            "db": {"Password": "hunter2", "hosts": ["h"]},
            "api_token": "hunter2",
            "url": url,
            "secrets": ["hunter2"],
        }
    )
    for shown in (repr(conf), str(conf)):
        assert "hunter2" not in shown
        assert "'hosts': ['h']" in shown
        assert "postgresql://me:***@h/db" in shown
    assert conf.user["api_token"] == "hunter2"


@pytest.mark.parametrize(
    "settings",
    [
        {"user": '{"password": "hunter2"'},
        {"user": "hunter2"},
        {"db_password": "hunter2"},
        {"zookeeper": ["zk://me:hunter2@h"]},
        {"user": {"password": object(), "other": "hunter2"}},
    ],
)
def test_secrets_are_not_shown_by_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Config(settings)
    assert "hunter2" not in str(refusal.value)
