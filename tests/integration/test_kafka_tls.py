"""Kafka spouts and a sink over TLS, with certificates in files, on a real broker that wants a
client's certificate."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.certificates import PASSWORD, Certificates
from tests.servers.kafka import KafkaServer
from tests.topic_drive import Drive
from tests.topologies.kafka_sinks import Sales
from txtopo.connectors.kafka import KafkaTransactionalSpout
from txtopo.errors import SetupError
from txtopo.testing.contracts.worker_process import WorkerProcess

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    # The broker's account cannot read pytest's directories.
    with tempfile.TemporaryDirectory(prefix="txtopo-certificates-") as directory:
        Path(directory).chmod(0o755)
        yield Certificates(Path(directory))


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[KafkaServer]:
    settings = {"ssl.client.auth": "required"}
    for kind, store in (("keystore", "server"), ("truststore", "trust")):
        certificates.store(store).chmod(0o644)
        settings[f"ssl.{kind}.location"] = str(certificates.store(store))
        settings[f"ssl.{kind}.type"] = "PKCS12"
        settings[f"ssl.{kind}.password"] = PASSWORD
    settings = {f"listener.name.tls.{name}": value for name, value in settings.items()}
    settings["super.users"] = "User:ANONYMOUS;User:CN=client"
    with KafkaServer(settings, has_tls=True) as broker:
        yield broker


@pytest.fixture
def client(certificates: Certificates, tmp_path: Path) -> dict[str, Any]:
    """The settings of a client that the broker trusts."""
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates.of("server")),
        "ssl.keystore.location": str(certificates.store("client")),
        "ssl.keystore.password_file": str(password),
    }


def test_a_spout_and_a_sink_reach_a_broker_over_tls(
    broker: KafkaServer, client: dict[str, Any]
) -> None:
    sales, process = Sales(broker), WorkerProcess()
    sink = sales.sink(servers=broker.tls_servers, client=client)
    assert sales.write(process, 1, 0, ["a", "b"], sink=sink) == 2
    process.close()
    drive = Drive(
        KafkaTransactionalSpout(broker.tls_servers, sales.topic, format="text", client=client)
    )
    assert drive.rest() == ["a", "b"]
    drive.close()


@pytest.mark.parametrize("fault", ["broker", "client"])
def test_a_certificate_that_is_not_trusted_is_a_set_up_error(
    broker: KafkaServer, client: dict[str, Any], certificates: Certificates, fault: str
) -> None:
    stranger = (
        {"ssl.ca.location": str(certificates.of("stranger"))}
        if fault == "broker"
        else {"ssl.keystore.location": str(certificates.store("stranger"))}
    )
    topic = broker.new_topic()
    said = r"\n  Check .*ssl" if fault == "broker" else r"\n  Check servers and client"
    with pytest.raises(SetupError, match=said) as refused:
        Drive(KafkaTransactionalSpout(broker.tls_servers, topic, client={**client, **stranger}))
    assert refused.value.exit_code == 2
    assert PASSWORD not in str(refused.value)
