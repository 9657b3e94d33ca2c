"""Settings for Kafka clients: the user's settings, txtopo's own, and secrets, which are read where
a client is made.

Secrets are named, never held: ``client={"sasl.password_env": "KAFKA_PASSWORD"}`` takes librdkafka's
``sasl.password`` from an environment variable, ``"sasl.password_file": "/run/secrets/kafka"`` from
a file's first line, on each machine that connects.

Invariants:
    - No secret is in a spout or sink, nor in its pickle, its ``repr`` or a message.
    - The user's settings never override a setting on which a promise rests. A setting that is not
      known to be harmless is refused, and so is a dict with settings, and a function.
"""

from __future__ import annotations

import difflib
import importlib
import re
import socket
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txtopo import errors
from txtopo.stores import place
from txtopo.topology import redaction

SPOUT = "Kafka spout"
"""How every message for users of a spout begins."""

SECRETS = (
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
)
"""librdkafka's secret settings. Users give them by ``<setting>_env`` or ``<setting>_file`` only."""
_SECRET_IN_URL = re.compile(
    rf"{redaction.PASSWORD_IN_URL.pattern}|://[^/?#]*@|[?&#][^=&]*(?:pass|pwd|secret|token)[^=&]*="
)
_SOURCES = {"env": "the name of an environment variable", "file": "the path of a file"}
_NOT_FOR_USERS = {
    "bootstrap.servers": "contradicts servers\n  Give the brokers as servers alone.",
    "metadata.broker.list": "contradicts servers\n  Give the brokers as servers alone.",
    "default.topic.config": "would hide settings in a setting\n  Give each setting by its own name.",
    "sasl.kerberos.kinit.cmd": (
        "is a command, which may hold a password\n"
        "  Give client['sasl.kerberos.keytab'] and client['sasl.kerberos.principal']."
    ),
    "error_cb": "is not for users: a client's errors end the attempt or the run\n  Leave it out.",
    "sasl.jaas.config": (
        "is a setting for Java's client\n"
        "  Give client['sasl.mechanism'], client['sasl.username'], and client['sasl.password_env'] or client['sasl.password_file']."
    ),
}

_OF_SPOUTS = {
    "group.id": "the spout joins no group, and client_group publishes progress for dashboards",
    "enable.auto.commit": "positions are in ZooKeeper",
    "enable.auto.offset.store": "positions are in ZooKeeper",
    "auto.offset.reset": "a position that is gone is an error, and start says where to begin",
    "enable.partition.eof": "the end of a batch is known by it",
    "isolation.level": "give isolation",
}
_OF_SINKS = {
    "transactional.id": "it is made of the auxiliary topic and the task, so that a newer attempt fences an older one",
    "transaction.timeout.ms": "give transaction_timeout_s",
    "enable.idempotence": "without it a record may be there twice",
    "acks": "a record counts when all replicas in sync have it",
    "request.required.acks": "a record counts when all replicas in sync have it",
    "max.in.flight": "more than five lose the order of records, and fewer are of no use",
    "max.in.flight.requests.per.connection": "more than five lose the order of records, and fewer are of no use",
    "message.timeout.ms": "give transaction_timeout_s, which bounds it",
    "delivery.timeout.ms": "give transaction_timeout_s, which bounds it",
    "isolation.level": "auxiliary records are read committed",
    "allow.auto.create.topics": "the auxiliary topic needs settings of its own, and yours exists",
}
"""Settings on which a promise of spouts, or of sinks and exporters, rests, and the reasons."""

_HARMLESS = """
api.version.fallback.ms api.version.request api.version.request.timeout.ms batch.num.messages batch.size broker.address.family
broker.address.ttl broker.version.fallback check.crcs client.dns.lookup client.id client.rack compression.codec compression.level
compression.type connections.max.idle.ms debug enable.metrics.push enable.ssl.certificate.verification fetch.error.backoff.ms
fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms https.ca.location https.ca.pem
linger.ms log.connection.close log.thread.name log_level max.partition.fetch.bytes message.copy.max.bytes message.max.bytes
metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy partitioner
queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms
queued.max.messages.kbytes queued.min.messages receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms
reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism sasl.mechanisms
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.id
sasl.oauthbearer.extensions sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url sasl.username security.protocol socket.connection.setup.timeout.ms
socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
ssl.curves.list ssl.endpoint.identification.algorithm ssl.key.location ssl.keystore.location ssl.providers ssl.sigalgs.list
statistics.interval.ms sticky.partitioning.linger.ms topic.metadata.propagation.max.ms topic.metadata.refresh.fast.interval.ms
topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
"""
HARMLESS = frozenset(_HARMLESS.split())
"""librdkafka's settings that are not secret, and on which no promise rests."""

CALL_TIMEOUT_S = 10.0
"""How long one question to the brokers may take."""


@dataclass(frozen=True)
class Cluster:
    """Brokers and how to reach them. The constructor checks the arguments and connects to nothing.

    :raises errors.ConfigError: an impossible address or setting.
    """

    owner: str
    """How every message begins: :data:`SPOUT`, or a sink or an exporter."""
    servers: str
    settings: Mapping[str, Any]
    """The user's settings: the argument ``client``."""

    def __post_init__(self) -> None:
        _check_servers(self.owner, self.servers)
        if not isinstance(self.settings, Mapping) or not all(
            isinstance(name, str) for name in self.settings
        ):
            raise errors.ConfigError(
                f"{self.owner}: client is no dict from librdkafka's settings to their values\n  Give a dict, or leave client out."
            )
        ours = _OF_SPOUTS if self.owner == SPOUT else _OF_SINKS
        for name, value in self.settings.items():
            secret, _, source = name.rpartition("_")
            if source in _SOURCES and not (isinstance(value, str) and value):
                raise errors.ConfigError(
                    f"{self.owner}: client[{name!r}] is no text\n  Give {_SOURCES[source]}."
                )
            if source == "env" and f"{secret}_file" in self.settings:
                raise errors.ConfigError(
                    f"{self.owner}: client has both {name!r} and '{secret}_file'\n  Leave one out."
                )
            if name in SECRETS:
                raise errors.ConfigError(
                    f"{self.owner}: client[{name!r}] would be a secret in the topology, which is pickled and shown\n"
                    f"  Give client['{name}_env'], the name of an environment variable, or client['{name}_file'], the path of a file."
                )
            if name in _NOT_FOR_USERS:
                raise errors.ConfigError(f"{self.owner}: client[{name!r}] {_NOT_FOR_USERS[name]}")
            if name in ours:
                raise errors.ConfigError(
                    f"{self.owner}: client[{name!r}] is not for users: {ours[name]}\n  Leave it out."
                )
            if secret in SECRETS and source in _SOURCES:
                continue
            if name not in HARMLESS:
                close = difflib.get_close_matches(name, HARMLESS, 1)
                hint = (
                    f"; did you mean {close[0]!r}?"
                    if close
                    else ": txtopo's promises may rest on it\n  Leave it out."
                )
                raise errors.ConfigError(
                    f"{self.owner}: client[{name!r}] is no setting that may be given{hint}"
                )
            if isinstance(value, str) and any(
                "PRIVATE KEY" in text or _SECRET_IN_URL.search(text) or _holds_secret(name, text)
                for text in (value, urllib.parse.unquote(value))
            ):
                raise errors.ConfigError(
                    f"{self.owner}: client[{name!r}] holds a private key or a password\n  Give the secret by its own setting."
                )
            if not isinstance(value, str | int | float):
                raise errors.ConfigError(
                    f"{self.owner}: client[{name!r}] is a {type(value).__name__}\n  Give a text, a number, True or False."
                )

    def config(
        self, ours: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The settings for one client, with the secrets read now. The user's settings override
        ``defaults``, and ``ours`` override both.

        :raises errors.SetupError: a secret's variable or file is missing on this machine.
        """
        # A client's first connection waits for the reconnect backoff, by default 100 ms.
        config: dict[str, Any] = {
            "log_level": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 1_000,
            "allow.auto.create.topics": False,
        }
        config.update(defaults or {})
        for name, value in self.settings.items():
            secret, _, source = name.rpartition("_")
            if source == "env":
                config[secret] = place.password_from(
                    f"{self.owner} at {self.servers}", value, None, f"client['{secret}_file']"
                )
            elif source == "file":
                config[secret] = place.password_from(f"{self.owner} at {self.servers}", None, value)
            else:
                config[name] = value
        return {**config, **ours, "bootstrap.servers": self.servers}

    def confluent_kafka(self) -> Any:
        """The module whose clients reach these brokers. A subclass may return another module.

        :raises errors.SetupError: the module cannot be imported.
        """
        return confluent_kafka()

    def reach(self, host: str, port: int, wait_s: float) -> None:
        """Connect to a broker, and close the connection.

        :raises OSError: there is no connection after ``wait_s``.
        """
        socket.create_connection((host, port), wait_s).close()

    @property
    def key(self) -> str:
        """A text that is equal for equal brokers and settings, so that clients can be shared."""
        return (
            f"{self.servers}:{sorted((name, str(value)) for name, value in self.settings.items())}"
        )


def confluent_kafka() -> Any:
    """The module ``confluent_kafka``, with its part ``admin``.

    :raises errors.SetupError: the module cannot be imported.
    """
    try:
        importlib.import_module("confluent_kafka.admin")
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise errors.SetupError(
            f"Kafka's library cannot be imported: {error}\n"
            "  Type: pip install 'txtopo[kafka]', for the interpreter of the driver and of every executor."
        ) from error


def _holds_secret(setting: str, text: str) -> bool:
    """Whether ``text`` is a list of extensions, of which one is a secret by its name."""
    names = [each.partition("=")[0] for each in text.split(",")]
    return setting == "sasl.oauthbearer.extensions" and any(map(redaction.is_secret, names))


def _check_servers(owner: str, servers: str) -> None:
    if not isinstance(servers, str) or not servers.strip():
        raise errors.ConfigError(
            f"{owner}: servers is {servers!r}\n  Give 'host:port', or several with commas between."
        )
    for address in servers.split(","):
        host, separator, port = address.strip().rpartition(":")
        if "@" in host:
            # The text may be a password, so it is not in the message.
            cure = "Give user and password in client, and only 'host:port' in servers."
            raise errors.ConfigError(
                f"{owner}: servers has a user or password in front of a host\n  {cure}"
            )
        if (
            not separator
            or not host
            or "/" in host
            or not port.isdigit()
            or not 0 < int(port) < 65536
        ):
            raise errors.ConfigError(
                f"{owner}: servers has {address.strip()!r}, which is not 'host:port'\n  Give for example 'kafka-1.example:9092'."
            )
