"""Storm's keys: keys with a setting of the same meaning here, in Storm's unit, and keys without a
meaning here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from txtopo import Config, ConfigError, TopologyConf
from txtopo.config import storm
from txtopo.topology import conf

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"topology.max.spout.pending": 3}, {"max_spout_pending": 3}),
        ({"topology.message.timeout.secs": 45}, {"message_timeout_s": 45}),
        ({"topology.message.timeout.secs": "2m"}, {"message_timeout_s": 120}),
        ({"topology.sleep.spout.wait.strategy.time.ms": 50}, {"poll_interval_s": 0.05}),
        ({"transactional.zookeeper.root": "/transactional"}, {"zookeeper_root": "/transactional"}),
        ({"storm.zookeeper.connection.timeout": 15000}, {"zookeeper_connect_timeout_s": 15}),
        ({"storm.zookeeper.session.timeout": 20000}, {"zookeeper_session_timeout_s": 20}),
        ({"storm.zookeeper.session.timeout": "20000"}, {"zookeeper_session_timeout_s": 20}),
        ({"storm.zookeeper.session.timeout": "20s"}, {"zookeeper_session_timeout_s": 20}),
        (
            {"transactional.zookeeper.servers": ["a", "b"], "transactional.zookeeper.port": 2182},
            {"zookeeper": "a:2182,b:2182"},
        ),
        (
            {"transactional.zookeeper.port": 2182, "transactional.zookeeper.servers": ["a"]},
            {"zookeeper": "a:2182"},
        ),
        ({"transactional.zookeeper.servers": ["a"]}, {"zookeeper": "a:2181"}),
        (
            {"transactional.zookeeper.servers": "a, b", "transactional.zookeeper.port": "2182"},
            {"zookeeper": "a:2182,b:2182"},
        ),
        ({"transactional.zookeeper.servers": '["a", "b"]'}, {"zookeeper": "a:2181,b:2181"}),
        ({"transactional.zookeeper.servers": ["a:2190", "b"]}, {"zookeeper": "a:2190,b:2181"}),
        ({"storm.zookeeper.servers": ["s"], "storm.zookeeper.port": 2000}, {"zookeeper": "s:2000"}),
        (
            {
                "storm.zookeeper.servers": ["s"],
                "storm.zookeeper.port": 2000,
                "transactional.zookeeper.servers": ["t"],
            },
            {"zookeeper": "t:2000"},
        ),
        (
            {
                "storm.zookeeper.servers": ["s"],
                "transactional.zookeeper.servers": None,
                "transactional.zookeeper.port": None,
            },
            {"zookeeper": "s:2181"},
        ),
    ],
)
def test_a_key_of_storm_is_accepted_with_its_meaning(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert Config(settings) == Config(expected)
    assert Config(settings).model_fields_set == expected.keys()


@pytest.mark.parametrize("key", conf.STORM_KEYS)
def test_null_means_not_set_as_in_storm(key: str) -> None:
    assert Config({key: None}).model_fields_set == set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"transactional.zookeeper.port": 2181},
            "'transactional.zookeeper.port' is given without 'transactional.zookeeper.servers'",
        ),
        ({"transactional.zookeeper.servers": []}, "not a list of hosts"),
        ({"transactional.zookeeper.servers": ["a", 5]}, "not a list of hosts"),
        ({"transactional.zookeeper.servers": "a,,b"}, "not a list of hosts"),
        (
            {"transactional.zookeeper.servers": ["a"], "transactional.zookeeper.port": 0},
            "'transactional.zookeeper.port' is 0: not a port",
        ),
        (
            {"transactional.zookeeper.servers": ["a"], "transactional.zookeeper.port": "x"},
            "not a port",
        ),
        (
            {"transactional.zookeeper.servers": ["a"], "zookeeper": "b:1"},
            "'zookeeper' is given twice, as 'zookeeper' and as 'transactional",
        ),
        (
            {"storm.zookeeper.session.timeout": "soon"},
            "'storm.zookeeper.session.timeout' is 'soon': not a duration",
        ),
        ({"topology.max.spout.pending": -1}, "'max_spout_pending' is -1"),
    ],
)
def test_an_impossible_value_of_a_key_of_storm_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(settings)


@pytest.mark.parametrize(
    ("key", "cure"),
    [
        ("topology.workers", "--master local[N]"),
        ("topology.acker.executors", "Nothing is acked"),
        ("topology.ackers", "Nothing is acked"),
        ("topology.debug", "txtopo explain"),
        ("topology.tasks", "parallelism"),
        ("topology.max.task.parallelism", "parallelism"),
        ("topology.enable.message.timeouts", "message_timeout_s"),
        ("topology.kryo.register", "pickled"),
        ("topology.worker.childopts", "spark.executor.extraJavaOptions"),
        ("topology.worker.gc.childopts", "spark.executor.extraJavaOptions"),
        ("topology.executor.receive.buffer.size", "spill_bytes"),
        ("topology.transactional.id", "TransactionalTopologyBuilder"),
        ("topology.name", "submit_topology"),
        ("topology.trident.batch.emit.interval.millis", "poll_interval_s"),
        ("storm.zookeeper.root", "zookeeper_root"),
        ("storm.zookeeper.retry.times", "zookeeper_wait_s"),
        ("storm.local.dir", "data_dir"),
        ("nimbus.thrift.port", "There is no counterpart"),
        ("supervisor.slots.ports", "There is no counterpart"),
        ("topology.testing.always.try.serialize", "There is no counterpart"),
    ],
)
def test_a_key_of_storm_without_meaning_here_is_refused_with_its_replacement(
    key: str, cure: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        Config({key: 1})
    fact, advice = str(refusal.value).split("\n  ")
    assert fact == f"the setting {key!r} of Storm has no meaning here"
    assert cure in advice


def test_no_key_is_both_accepted_and_refused() -> None:
    assert [
        key for key in (*conf.STORM_KEYS, *Config.model_fields) if storm.instead_of(key) is not None
    ] == []


def test_advised_settings_exist() -> None:
    advised = " ".join(storm._INSTEAD.values())
    names = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", advised))
    assert names - {"submit_topology", "finish_batch", "on_error"} <= Config.model_fields.keys()
    assert "max_spout_pending" in names


def test_every_setting_that_a_key_of_storm_stands_for_exists() -> None:
    assert {
        counterpart.key for counterpart in conf.COUNTERPARTS.values()
    } <= Config.model_fields.keys()


def test_the_documentation_lists_every_key_of_storm_that_has_a_counterpart() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    section = text.split("## Storm's keys")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", section, flags=re.MULTILINE)
    listed = {key: meaning for keys, meaning in rows for key in re.findall(r"`([^`]+)`", keys)}
    assert listed.keys() == set(conf.STORM_KEYS)
    for key, counterpart in conf.COUNTERPARTS.items():
        assert f"`{counterpart.key}`" in listed[key]
        assert ("milliseconds" in listed[key]) == (counterpart.per_unit == 1000)


# -- what user code reads ------------------------------------------------------------------------

GIVEN = Config(
    max_spout_pending=3,
    poll_interval_s=0.05,
    zookeeper_session_timeout_s=12.5,
    zookeeper="a:2182,b:2183/chroot",
)
SEEN = TopologyConf(GIVEN.as_mapping())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_spout_pending", 3),
        ("topology.max.spout.pending", 3),
        ("topology.message.timeout.secs", 30.0),
        ("topology.sleep.spout.wait.strategy.time.ms", 50),
        ("transactional.zookeeper.root", "/txtopo"),
        ("storm.zookeeper.session.timeout", 12500),
        ("storm.zookeeper.connection.timeout", 10000),
        ("transactional.zookeeper.servers", ["a", "b"]),
        ("storm.zookeeper.servers", ["a", "b"]),
        ("transactional.zookeeper.port", 2182),
    ],
)
def test_user_code_reads_a_setting_under_storms_key_in_storms_unit(key: str, value: Any) -> None:
    assert SEEN[key] == value
    assert SEEN.get(key) == value
    assert key in SEEN


def test_every_key_of_storm_that_is_accepted_can_be_read() -> None:
    everything = TopologyConf(Config().as_mapping())
    assert [key for key in conf.STORM_KEYS if key not in everything] == []
    assert everything["transactional.zookeeper.servers"] is None


def test_a_key_that_is_not_there_is_a_key_error_with_its_name() -> None:
    for key in ("topology.debug", "nothing", *conf.STORM_KEYS):
        with pytest.raises(KeyError, match=re.escape(f"'{key}'")):
            TopologyConf({})[key]
    assert TopologyConf({}).get("topology.max.spout.pending", 9) == 9


def test_settings_are_iterated_once_under_our_names() -> None:
    read = TopologyConf({"topology.max.spout.pending": 3, "own": 1})
    assert dict(read) == {"max_spout_pending": 3, "own": 1}
    assert len(read) == 2


def test_settings_printed_by_user_code_have_no_secrets() -> None:
    shown = repr(TopologyConf({"user": {"db_password": "hunter2"}, "token": "hunter2", "own": 1}))
    assert "hunter2" not in shown
    assert "'own': 1" in shown
