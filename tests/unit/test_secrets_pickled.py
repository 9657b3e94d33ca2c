"""Secrets in the arguments of connectors: none is ever in the pickle of a topology."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from txtopo import BaseTransactionalBolt, Config, Fields, ICommitter, TransactionalTopologyBuilder
from txtopo.config import sources
from txtopo.connectors import files
from txtopo.connectors.delta import DeltaSink
from txtopo.connectors.kafka import (
    KafkaColumnSpout,
    KafkaSink,
    KafkaTransactionalSpout,
    OpaqueKafkaColumnSpout,
    OpaqueKafkaTransactionalSpout,
)
from txtopo.connectors.kafka.client import HARMLESS, SECRETS
from txtopo.connectors.sql import SqlSink
from txtopo.errors import TxtopoError
from txtopo.exports import HttpExporter, KafkaExporter, PostgresExporter, RedisExporter
from txtopo.state import credentials
from txtopo.stores import RedisStore, SqliteStore, SqlStore
from txtopo.testing import MemoryTransactionalSpout

SECRET = "sw0rdfish"
VARIABLE = "PLANTED_PASSWORD"
SCHEMA = pa.schema([("value", pa.string())])
SPOUTS = (
    KafkaTransactionalSpout,
    OpaqueKafkaTransactionalSpout,
    KafkaColumnSpout,
    OpaqueKafkaColumnSpout,
)
FILES = tuple(getattr(files, name) for name in files.__all__ if name.endswith("Spout"))
STORES = (SqliteStore, SqlStore, RedisStore)
EXPORTERS = (HttpExporter, KafkaExporter, PostgresExporter, RedisExporter)
CONNECTORS = (*SPOUTS, *FILES, KafkaSink, SqlSink, files.FileSink, DeltaSink, *STORES, *EXPORTERS)

RIGHT: dict[Any, dict[str, Any]] = {
    **{spout: {"servers": "kafka:9092", "topics": "orders"} for spout in SPOUTS},
    KafkaSink: {"servers": "kafka:9092", "topic": "sales"},
    **{
        spout: {
            "paths_or_glob": "s3://bucket/rows",
            **({"schema": SCHEMA} if "schema" in names else {}),
        }
        for spout in FILES
        if "paths_or_glob" in (names := inspect.signature(spout).parameters)
    },
    files.FileSink: {"root": "s3://bucket/rows"},
    DeltaSink: {"uri": "s3://bucket/rows"},
    files.CommittedFilesSpout: {"root": "s3://bucket/rows", "columns": ["value"]},
    SqlSink: {"database": "postgresql+psycopg://ann@db.example/shop", "table": "sales"},
    SqliteStore: {"path": "bank.db", "table": "counts"},
    SqlStore: {"url": "postgresql+psycopg://ann@db.example/shop", "table": "counts"},
    RedisStore: {"url": "rediss://ann@db.example/0", "name": "counts"},
    HttpExporter: {"url": "https://db.example/{key}"},
    KafkaExporter: {"servers": "kafka:9092", "topic": "sales"},
    PostgresExporter: {
        "url": "postgresql+psycopg://ann@db.example/shop",
        "table": "counts",
        "key": "word",
        "columns": ["count"],
    },
    RedisExporter: {"url": "rediss://ann@db.example/0", "prefix": "counts:"},
}
"""Arguments without a secret."""

NAMES = {
    "accept_loss",
    "answer_timeout_s",
    "auxiliary_table",
    "avro_schema",
    "busy_timeout_s",
    "bytes_per_batch",
    "client_group",
    "codec",
    "columns",
    "compact_every",
    "compacted",
    "compression",
    "connect_timeout_s",
    "delimiter",
    "dictionaries",
    "encoding",
    "errors",
    "fields",
    "follow",
    "format",
    "growing",
    "header",
    "idle_timeout_s",
    "isolation",
    "key",
    "lock_timeout_s",
    "lost",
    "mark",
    "method",
    "name",
    "null_values",
    "opaque",
    "partition",
    "partition_by",
    "partitions",
    "path",
    "plain",
    "prefix",
    "quote_char",
    "records_per_batch",
    "records_per_transaction",
    "refresh_s",
    "roll_bytes",
    "rows_per_batch",
    "schema",
    "schema_id",
    "stamp_headers",
    "start",
    "statement",
    "statement_timeout_s",
    "table",
    "timestamp",
    "timeout_s",
    "tombstones",
    "topic",
    "topics",
    "transaction_timeout_s",
    "transactions_topic",
    "value",
    "visible",
}
"""Arguments that are names, numbers, places of files, and flags: no place for a secret."""

OPTIONS = (
    "password",
    "passwd",
    "pwd",
    "token",
    "pass",
    "sslpassword",
    "ssl_password",
    "ssl_key_password",
    "oauth_client_secret",
    "%70assword",
)
URLS = [
    f"{scheme}://{rest}"
    for scheme in (
        "postgresql+psycopg",
        "postgresql",
        "mysql+pymysql",
        "mysql",
        "redis",
        "rediss",
        "unix",
        "https",
        "nothing",
    )
    for rest in (
        f"ann:{SECRET}@db.example/0",
        f":{SECRET}@db.example/0",
        f"db.example/0?user=ann:{SECRET}@x",
        f"db.example/0#{SECRET}@x",
        f"ann@db.example:{SECRET}/0",
        *(f"ann@db.example/0?{option}={SECRET}" for option in OPTIONS),
    )
]
CLIENT = [
    *({name: SECRET} for name in SECRETS),
    *(
        {name: f"https://{place}"}
        for name in HARMLESS
        for place in (
            f"ann:{SECRET}@idp",
            f"ann:/{SECRET}@idp",
            f"idp/token?client_secret={SECRET}",
        )
    ),
    *(
        {name: f"-----BEGIN CERTIFICATE-----\nAA\n-----BEGIN PRIVATE KEY-----\n{SECRET}"}
        for name in HARMLESS
    ),
    {"default.topic.config": {"sasl.password": SECRET}},
    {"sasl.password": {"value": SECRET}},
    {"sasl.oauthbearer.config": f"password={SECRET}"},
    {"sasl.jaas.config": f'PlainLoginModule required password="{SECRET}";'},
    {"sasl.kerberos.kinit.cmd": f"echo {SECRET} | kinit ann"},
    {"sasl.oauthbearer.extensions": f"logicalCluster=lkc-1,api_key={SECRET}"},
    {"oauth_cb": lambda config: (SECRET, 1.0)},
    {"bootstrap.servers": f"ann:{SECRET}@kafka:9092"},
    {"no.such.setting": SECRET},
    {"sasl.password_env": VARIABLE},
    {"ssl.key.pem_env": VARIABLE},
    {"sasl.password_file": "FILE"},
    {"secret_access_key": SECRET},
    {"endpoint": f"https://ann:{SECRET}@s3"},
    {"endpoint": f"https://s3/?token={SECRET}"},
    {"dfs.password": SECRET},
    {"secret_access_key_env": VARIABLE},
    {"secret_access_key_file": "FILE"},
]
ADDRESSES = [
    f"s3://ann:{SECRET}@bucket/rows",
    f"hdfs://{SECRET}@namenode/rows",
    f"s3://bucket/rows?secret_access_key={SECRET}",
    "s3://other/rows",
    "gs://other/rows",
]
PLANTED: dict[str, list[Any]] = {
    "servers": [
        f"ann:{SECRET}@kafka:9092",
        f"kafka:9092,ann:{SECRET}@kafka:9092",
        f"SASL://ann:{SECRET}@kafka:9092",
    ],
    "client": CLIENT,
    "headers": [
        *(
            {name: SECRET}
            for name in ("X-Auth", "X-Shared-Key", "Cookie", "X-Api-Key", "SessionId")
        ),
        *({"X-Note": f"{scheme} {SECRET}"} for scheme in ("Basic", "bearer")),
        {"X-Note": f"password={SECRET}"},
    ],
    "root": ADDRESSES,
    "uri": ADDRESSES,
    "paths_or_glob": ADDRESSES,
    "reading": [{"client": client} for client in CLIENT],
    "url": URLS,
    "database": URLS,
    "password_env": [VARIABLE],
    "password_file": ["FILE"],
    "bearer_token_env": [VARIABLE, "LANG"],
    "options": [{"password": SECRET}, {"password_env": VARIABLE}, {"password_file": "FILE"}],
}


class Keeps(BaseTransactionalBolt, ICommitter):
    """Has a store."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def execute(self, tup: Any) -> None:
        raise AssertionError("this topology does not run")


def pickled(connector: Any) -> bytes:
    """A topology of one spout and one committer, with ``connector`` as one of the two, pickled
    whole and part by part."""
    is_spout = hasattr(connector, "get_emitter")
    spout = connector if is_spout else MemoryTransactionalSpout({0: [(1,)]}, Fields("value"), 1)
    sink = (
        Keeps(SqliteStore("bank.db", "counts", opaque=True))
        if is_spout
        else connector
        if hasattr(connector, "execute")
        else Keeps(connector)
    )
    builder = TransactionalTopologyBuilder("shop", "spout", spout)
    builder.set_bolt("write", sink).global_grouping("spout")
    topology = builder.build_topology()
    whole: bytes = cloudpickle.dumps(topology)
    return whole + b"".join(component.template for component in topology.components.values())


@pytest.mark.parametrize("connector", CONNECTORS, ids=lambda connector: connector.__name__)
def test_every_argument_is_known_as_a_place_for_secrets_or_as_none(connector: Any) -> None:
    assert inspect.signature(connector).parameters.keys() <= NAMES | PLANTED.keys()


@pytest.mark.parametrize("connector", RIGHT, ids=lambda connector: connector.__name__)
def test_no_secret_is_in_the_pickle_of_a_topology_nor_in_the_refusal(
    connector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    (tmp_path / "FILE").write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    leaks, accepted = [], 0
    for argument in inspect.signature(connector).parameters.keys() & PLANTED.keys():
        if (connector, argument) == (KafkaSink, "headers"):  # fields of a tuple
            continue
        for value in PLANTED[argument]:
            arguments = value if argument in ("options", "reading") else {argument: value}
            try:
                said = pickled(connector(**{**RIGHT[connector], **arguments}))
                accepted += 1
            except (TxtopoError, TypeError) as error:
                said = str(error).encode()
            if SECRET.encode() in said:
                leaks.append(arguments)
    assert leaks == []
    assert connector is SqliteStore or accepted >= 2, "a secret that is named is taken"


@pytest.mark.parametrize("place", ["variable", "file"])
def test_no_password_of_zookeeper_is_in_the_pickle_of_the_settings(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "FILE"
    file.write_text(SECRET)
    if place == "variable":
        monkeypatch.setenv(sources.PASSWORD_VARIABLE, SECRET)
    conf = Config(
        zookeeper_auth="digest",
        zookeeper_user="ann",
        zookeeper_password_file=file if place == "file" else None,
    )
    secret = credentials.of(conf)
    assert secret is not None
    assert secret.reveal() == SECRET
    assert SECRET.encode() not in cloudpickle.dumps((conf, conf.as_mapping()))
