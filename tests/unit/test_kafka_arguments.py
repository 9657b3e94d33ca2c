"""Arguments of the Kafka spouts: each mistake is named when the spout is made, and no secret is
shown."""

from __future__ import annotations

import datetime
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from txtopo.connectors.kafka import (
    KafkaTransactionalSpout,
    OpaqueKafkaTransactionalSpout,
    auxiliary,
    planning,
    upkeep,
)
from txtopo.connectors.kafka.client import HARMLESS, Cluster, confluent_kafka
from txtopo.connectors.kafka.log import Quiet, translate
from txtopo.errors import ConfigError, SetupError, StateMismatchError

KINDS = pytest.mark.parametrize("kind", [KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout])
SECRET = "very secret"


def spout(
    kind: Any = KafkaTransactionalSpout,
    servers: Any = "broker:9092",
    topics: Any = "orders",
    **arguments: Any,
) -> Any:
    return kind(servers, topics, **arguments)


@KINDS
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"servers": ""}, "servers is ''\n  Give 'host:port'"),
        ({"servers": None}, "servers is None"),
        (
            {"servers": "broker"},
            "servers has 'broker', which is not 'host:port'\n  Give for example",
        ),
        ({"servers": "broker:9092,"}, "servers has ''"),
        ({"servers": "broker:0"}, "servers has 'broker:0'"),
        ({"servers": "kafka://broker:9092"}, "servers has 'kafka://broker:9092'"),
        ({"topics": ""}, "topics is \\[''\\]"),
        ({"topics": []}, "topics is \\[\\]\n  Give a topic's name"),
        ({"topics": None}, "topics is \\[None\\]"),
        ({"topics": ["a", 1]}, "topics is \\['a', 1\\]"),
        ({"topics": b"a"}, "topics is \\[b'a'\\]"),
        ({"topics": re.compile(b"a")}, "a pattern over text"),
        ({"records_per_batch": 0}, "records_per_batch is 0\n  Give a whole number, at least 1"),
        ({"records_per_batch": True}, "records_per_batch is True"),
        ({"records_per_transaction": 1.5}, "records_per_transaction is 1.5"),
        ({"fields": ("size",)}, "a record has no field 'size'"),
        ({"fields": ()}, "fields is empty"),
        ({"fields": ("value", "value")}, "duplicate field 'value'"),
        ({"fields": (1,)}, "a field name is a non-empty string"),
        ({"format": "avro"}, "format is 'avro'"),
        ({"errors": "ignore"}, "errors is 'ignore'"),
        ({"start": "newest"}, "start is 'newest'\n  Give 'earliest', 'latest'"),
        ({"start": "group:"}, "start is 'group:'"),
        ({"start": 5}, "start is 5"),
        ({"start": datetime.datetime(2026, 1, 1)}, "Give a datetime with a time zone"),
        ({"start": {"orders": 5}}, "start is"),
        ({"start": {"orders": {0: -1}}}, "start\\['orders'\\]"),
        ({"start": {"orders": {"0": 1}}}, "start\\['orders'\\]"),
        ({"isolation": "serializable"}, "isolation is 'serializable'"),
        ({"refresh_s": 0}, "refresh_s is 0"),
        ({"refresh_s": float("nan")}, "refresh_s is nan"),
        ({"compacted": "yes"}, "compacted is 'yes'"),
        ({"client_group": ""}, "client_group is ''"),
        ({"client": ["a"]}, "client is no dict"),
        ({"client": {1: 2}}, "client is no dict"),
        ({"client": {"group.id": "mine"}}, "'group.id'\\] is not for users: (.|\n)*client_group"),
        ({"client": {"enable.auto.commit": True}}, "is not for users: positions are in ZooKeeper"),
        ({"client": {"auto.offset.reset": "latest"}}, "is not for users"),
        ({"client": {"enable.partition.eof": False}}, "is not for users"),
        ({"client": {"isolation.level": "read_uncommitted"}}, "is not for users: give isolation"),
        ({"client": {"bootstrap.servers": "b:1"}}, "contradicts servers"),
        ({"client": {"error_cb": print}}, "is not for users"),
        (
            {"client": {"stats_cb": print}},
            "client\\['stats_cb'\\] is no setting that may be given: txtopo's promises may rest on it\n  Leave",
        ),
        (
            {"client": {"client.id": print}},
            "client\\['client.id'\\] is a builtin_function_or_method\n  Give a text",
        ),
        (
            {"client": {"default.topic.config": {"auto.offset.reset": "smallest"}}},
            "would hide settings in a setting",
        ),
        (
            {"client": {"fetch.min.byte": 1}},
            "client\\['fetch.min.byte'\\] is no setting .*did you mean 'fetch.min.bytes'",
        ),
        ({"client": {"client.id_env": "CLIENT"}}, "is no setting that may be given"),
        (
            {"client": {"sasl.password_env": ""}},
            "is no text\n  Give the name of an environment variable",
        ),
        ({"client": {"sasl.password_env": "A", "sasl.password_file": "b"}}, "has both"),
    ],
)
def test_an_impossible_argument_is_refused_when_the_spout_is_made(
    kind: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        spout(kind, **arguments)


def test_only_the_opaque_spout_may_skip() -> None:
    assert spout(OpaqueKafkaTransactionalSpout, lost="skip")
    with pytest.raises(ConfigError, match="lost is 'ignore'\n  Give 'stop' or 'skip'"):
        spout(OpaqueKafkaTransactionalSpout, lost="ignore")
    with pytest.raises(ConfigError, match="lost is 'skip'\n  Give it to Opaque"):
        spout(KafkaTransactionalSpout, lost="skip")


@KINDS
def test_every_kind_of_topics_and_start_is_taken(kind: Any) -> None:
    for topics in ("a", ["a", "b"], ("a",), re.compile("a.*")):
        assert spout(kind, topics=topics)
    now = datetime.datetime.now(datetime.UTC)
    for start in ("earliest", "latest", "group:billing", now, {"a": {0: 17, 1: 0}}, {}):
        assert spout(kind, start=start)
    for servers in ("a:1,b:2", "[::1]:9092", "a:1, b:2"):
        assert spout(kind, servers=servers)


@KINDS
def test_a_spout_is_made_and_pickled_where_confluent_kafka_is_missing(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    copy = pickle.loads(cloudpickle.dumps(spout(kind, format=lambda message: (message.value(),))))
    assert list(copy.fields) == ["tx", "value"]
    with pytest.raises(SetupError, match=r"pip install 'txtopo\[kafka\]'"):
        confluent_kafka()


def test_the_library_knows_every_setting_that_may_be_given() -> None:
    unknown = []
    for name in sorted(HARMLESS):
        try:
            confluent_kafka().Consumer(
                {"group.id": "g", "log_level": 0, name: "no such value"}, logger=Quiet()
            ).close()
        except confluent_kafka().KafkaException as error:
            unknown += [name] if "No such configuration property" in error.args[0].str() else []
    assert unknown == []


def test_a_name_that_kafka_refuses_is_told_with_the_names_that_it_takes_for_equal() -> None:
    """The auxiliary topics of topologies a.b and a_b."""
    kafka = confluent_kafka()
    refused = translate(
        Cluster("Kafka sink", "kafka:9092", {}),
        "making topic txtopo.a_b.write",
        kafka.KafkaError(kafka.KafkaError.TOPIC_EXCEPTION),
    )
    assert isinstance(refused, SetupError)
    assert (
        "Kafka refuses names that differ in '.' and '_' alone. For a sink's auxiliary topic give transactions_topic='name'."
        in str(refused)
    )


@KINDS
def test_positions_of_another_source_are_refused_before_a_broker_is_asked(kind: Any) -> None:
    source, stored = spout(kind).source, {0: {"file": 0, "begin": 0, "end": 9}}
    with pytest.raises(
        StateMismatchError,
        match=r"from another source than Kafka topics: \{'file': 0(.|\n)*`txtopo state reset 'my words'` shows",
    ) as refused:
        planning.Planner(source, lambda: stored, topology_id="my words")
    assert refused.value.exit_code == 6


# -- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "client",
    [
        {"sasl.password": SECRET},
        {"ssl.key.password": SECRET},
        {"ssl.key.pem": SECRET},
        {"ssl.keystore.password": SECRET},
        {"sasl.oauthbearer.client.secret": SECRET},
        {"default.topic.config": {"sasl.password": SECRET}},
        {"sasl.oauthbearer.token.endpoint.url": f"https://idp/token?clientSecret={SECRET}"},
        {"sasl.oauthbearer.token.endpoint.url": f"https://idp/token#PWD={SECRET}"},
        {"sasl.jaas.config": f'PlainLoginModule required password="{SECRET}";'},
    ],
)
def test_a_secret_is_refused_and_not_repeated(client: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        spout(client=client)
    assert SECRET not in str(raised.value)
    with pytest.raises(ConfigError) as raised:
        spout(servers=f"user:{SECRET}@broker:9092")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        f"https://{SECRET}@idp",
        f"https://ann:{SECRET}@idp/token",
        f"https://ann:a@{SECRET}@idp",
        f"https://ann:a/{SECRET}@idp/@me",
        f"https://ann:123456/{SECRET}@idp",
        f"https://ann%3A{SECRET}@idp",
        f"https://ann:a%40{SECRET}@idp",
        f"https://ann:{SECRET}@[::1]:8443/@me",
        f"https://idp:8443/@me?client_secret={SECRET}",
        f"https://idp/@me?client%5fsecret={SECRET}",
        f"https://idp/@me#%70assword={SECRET}",
        f"ldap://ann:1/{SECRET}@idp",
    ],
)
def test_a_secret_in_any_part_of_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="holds a private key or a password") as raised:
        spout(client={"sasl.oauthbearer.token.endpoint.url": url})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://idp/realms/@me/token",
        "https://idp:8443/realms/@me/token",
        "https://idp/realms/%40me/token",
        "https://idp/realms/a:b@me/token?to=c:d@e#f:g@h",
        "https://[::1]:8443/realms/@me",
        "https://idp?to=me@there",
    ],
)
def test_an_at_sign_behind_the_host_of_an_address_is_no_secret(url: str) -> None:
    cluster = spout(client={"sasl.oauthbearer.token.endpoint.url": url}).source.cluster
    assert cluster.config({})["sasl.oauthbearer.token.endpoint.url"] == url
    address = auxiliary.address_of(cluster, None)
    assert upkeep.open_topics(address, "kafka", "shop").command("clear", "shop").count(address) == 1


def test_a_secret_that_is_named_is_read_where_a_client_is_made_and_is_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\nnot this line\n")
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    for client in ({"sasl.password_env": "KAFKA_PASSWORD"}, {"sasl.password_file": str(file)}):
        secured = spout(client={"sasl.username": "clerk", **client})
        cluster: Cluster = secured.source.cluster
        assert cluster.config({})["sasl.password"] == SECRET
        assert not {"sasl.password_env", "sasl.password_file"} & cluster.config({}).keys()
        for shown in (
            repr(secured),
            repr(secured.source),
            repr(vars(secured)),
            cluster.key,
            str(cloudpickle.dumps(secured)),
        ):
            assert SECRET not in shown


def test_a_missing_secret_is_an_error_of_set_up_that_names_its_source(tmp_path: Path) -> None:
    missing = r"Kafka spout at broker:9092 takes its password from the environment variable NO_SUCH"
    with pytest.raises(SetupError, match=rf"{missing}(.|\n)*client\['sasl.password_file'\]"):
        spout(client={"sasl.password_env": "NO_SUCH"}).source.cluster.config({})
    with pytest.raises(SetupError, match="Kafka spout at broker:9092 cannot read its password"):
        spout(client={"sasl.password_file": str(tmp_path / "no")}).source.cluster.config({})
    (tmp_path / "empty").write_text("\nsecret\n")
    with pytest.raises(SetupError, match="of Kafka spout at broker:9092 begins with an empty line"):
        spout(client={"sasl.password_file": str(tmp_path / "empty")}).source.cluster.config({})


def test_settings_of_the_user_win_over_defaults_and_not_over_promises() -> None:
    cluster = spout(
        client={"fetch.wait.max.ms": 77, "socket.keepalive.enable": True}
    ).source.cluster
    config = cluster.config({"group.id": "txtopo"}, {"fetch.wait.max.ms": 10})
    assert (config["fetch.wait.max.ms"], config["group.id"], config["socket.keepalive.enable"]) == (
        77,
        "txtopo",
        True,
    )
