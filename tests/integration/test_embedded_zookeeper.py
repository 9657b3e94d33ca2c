"""The embedded ZooKeeper from its owner's side: it serves, remembers, belongs to this directory
alone, and leaves no process or file behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.processes import owners
from tests.servers.ports import free_port
from tests.servers.zookeepers import client_of
from txtopo import errors
from txtopo.state import directory, embedded, server_process, watchdog


def ask(hosts: str, words: bytes) -> bytes:
    host, _, port = hosts.partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(words)
        return connection.makefile("rb").read()


def test_written_znodes_can_be_read(tmp_path: Path) -> None:
    with (
        embedded.EmbeddedZooKeeper(tmp_path / "data") as zookeeper,
        client_of(zookeeper.hosts) as client,
    ):
        client.create("/topology/current", b"7", makepath=True)
        value, _ = client.get("/topology/current")
    assert value == b"7"


@pytest.mark.thorough
@pytest.mark.rule(23)
def test_written_znodes_survive_until_the_next_owner(tmp_path: Path) -> None:
    with embedded.EmbeddedZooKeeper(tmp_path) as first, client_of(first.hosts) as client:
        client.create("/current", b"7")
    with embedded.EmbeddedZooKeeper(tmp_path) as second, client_of(second.hosts) as client:
        value, _ = client.get("/current")
    assert value == b"7"


@pytest.mark.thorough
@pytest.mark.rule(23)
def test_the_same_object_can_be_started_again(tmp_path: Path) -> None:
    zookeeper = embedded.EmbeddedZooKeeper(tmp_path)
    with zookeeper, client_of(zookeeper.hosts) as client:
        client.create("/current", b"7")
    with zookeeper, client_of(zookeeper.hosts) as client:
        assert client.exists("/current")


def test_a_launched_server_owns_its_directory_and_can_be_looked_for_when_it_serves(
    tmp_path: Path,
) -> None:
    zookeeper = embedded.EmbeddedZooKeeper(tmp_path).launch()
    try:
        assert directory.is_owned(tmp_path)
        assert directory.running(tmp_path) is None
        zookeeper.wait_until_served()
        assert directory.running(tmp_path) is not None
        with client_of(zookeeper.hosts) as client:
            client.create("/current", b"7")
    finally:
        zookeeper.stop()


def test_a_launched_server_that_is_stopped_before_it_serves_leaves_the_directory_free(
    tmp_path: Path,
) -> None:
    embedded.EmbeddedZooKeeper(tmp_path).launch().stop()
    assert not directory.is_owned(tmp_path)


@pytest.mark.thorough
def test_a_launched_server_whose_port_was_taken_serves_on_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        with (
            embedded.EmbeddedZooKeeper(tmp_path, choose_port=lambda: next(ports)) as zookeeper,
            client_of(zookeeper.hosts) as client,
        ):
            assert client.exists("/")


@pytest.mark.thorough
def test_a_session_of_one_second_is_granted(tmp_path: Path) -> None:
    # ZooKeeper's ConnectRequest: protocol, last zxid seen, timeout in ms, session id, password,
    # read only.
    request = struct.pack(">iqiqi16s?", 0, 0, 1000, 0, 16, bytes(16), False)
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        with socket.create_connection(
            ("127.0.0.1", int(zookeeper.hosts.partition(":")[2])), PATIENCE_S
        ) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            _length, _protocol, granted_ms = struct.unpack(
                ">iii", connection.makefile("rb").read(12)
            )
    assert granted_ms == 1000


def test_it_listens_at_one_port_of_127_0_0_1_and_nowhere_else(tmp_path: Path) -> None:
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        sockets = set()
        for link in Path(f"/proc/{zookeeper.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                sockets.add(str(link.readlink()))
        listening = []
        for table in ("tcp", "tcp6"):
            for row in Path(f"/proc/{zookeeper.pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *rest = row.split()
                if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                    address, _, local_port = local.partition(":")
                    listening.append((address, int(local_port, 16)))
        port = int(zookeeper.hosts.partition(":")[2])
    # 127.0.0.1 as the kernel writes it, which for Java is an IPv6 socket with a mapped address.
    assert listening in ([("0000000000000000FFFF00000100007F", port)], [("0100007F", port)])


def test_ruok_and_srvr_are_answered(tmp_path: Path) -> None:
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        assert ask(zookeeper.hosts, b"ruok") == b"imok"
        assert b"Mode: standalone" in ask(zookeeper.hosts, b"srvr")


@pytest.mark.thorough
def test_old_logs_and_snapshots_are_purged_at_a_start(tmp_path: Path) -> None:
    for number in range(6):
        with (
            embedded.EmbeddedZooKeeper(tmp_path) as zookeeper,
            client_of(zookeeper.hosts) as client,
        ):
            client.create(f"/n{number}")
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper, client_of(zookeeper.hosts) as client:
        assert len(client.get_children("/")) == 7
        # A start takes a snapshot of its own beside the three that the purge, which may have come
        # first, keeps.
        wait_until(
            lambda: len(list((tmp_path / "zookeeper" / "version-2").glob("snapshot.*"))) <= 4
        )


def test_stop_leaves_no_process_and_no_endpoint(tmp_path: Path) -> None:
    zookeeper = embedded.EmbeddedZooKeeper(tmp_path).start()
    pids = owners.processes_of(tmp_path)
    zookeeper.stop()
    assert len(pids) == 2
    assert owners.processes_of(tmp_path) == []
    assert not (tmp_path / "endpoint.json").exists()
    zookeeper.stop()


def test_an_owner_that_forgets_to_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    program = owners.SERVING.replace("owned.stop()", "")
    with owners.Owner(tmp_path, program) as owner:
        pid = owner.report()["pid"]
        watchdog_pid = owners.parent_of(pid)
        owner.wait()
    assert owners.has_ended(pid)
    assert owners.has_ended(watchdog_pid)


@pytest.mark.thorough
def test_two_directories_are_served_side_by_side_and_know_nothing_of_each_other(
    tmp_path: Path,
) -> None:
    with (
        embedded.EmbeddedZooKeeper(tmp_path / "a") as a,
        embedded.EmbeddedZooKeeper(tmp_path / "b") as b,
    ):
        with client_of(a.hosts) as client_a, client_of(b.hosts) as client_b:
            client_a.create("/only-in-a")
            assert client_b.exists("/only-in-a") is None
        assert a.hosts != b.hosts


def test_a_port_taken_in_between_is_replaced_by_another(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free_port()])
        with embedded.EmbeddedZooKeeper(tmp_path, choose_port=lambda: next(ports)) as zookeeper:
            assert ask(zookeeper.hosts, b"ruok") == b"imok"
    assert next(ports, None) is None


@pytest.mark.thorough
def test_another_zookeeper_on_the_chosen_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    with embedded.EmbeddedZooKeeper(tmp_path / "other") as other:
        ports = iter([int(other.hosts.partition(":")[2]), free_port()])
        with embedded.EmbeddedZooKeeper(tmp_path / "ours", choose_port=lambda: next(ports)) as ours:
            assert ours.hosts != other.hosts
            assert f"dataDir={tmp_path / 'ours' / 'zookeeper'}" in ask(ours.hosts, b"conf").decode()


@pytest.mark.thorough
def test_a_path_with_spaces_and_foreign_letters_works_in_the_c_locale(tmp_path: Path) -> None:
    data_dir = tmp_path / "Zürich \\ 動物園 🐘" / "a=b:c"
    with owners.Owner(data_dir, environment={"LC_ALL": "C", "LANG": "C"}) as owner:
        assert ask(owner.report()["hosts"], b"ruok") == b"imok"
        assert (data_dir / "zookeeper" / "version-2" / "snapshot.0").exists()
        assert owner.wait() == 0


@pytest.mark.thorough
def test_options_meant_for_other_jvms_do_not_reach_the_server(tmp_path: Path) -> None:
    with owners.Owner(
        tmp_path,
        environment={
            "JAVA_TOOL_OPTIONS": "-Xno-such-option",
            "JDK_JAVA_OPTIONS": "-Xno-such-option",
        },
    ) as owner:
        assert ask(owner.report()["hosts"], b"ruok") == b"imok"
        assert owner.wait() == 0


@pytest.mark.thorough
def test_serving_does_not_import_pyspark(tmp_path: Path) -> None:
    with owners.Owner(tmp_path) as owner:
        assert owner.report()["has_pyspark"] is False
        assert owner.wait() == 0


def test_a_server_that_cannot_start_is_reported_with_its_last_words_and_lets_the_directory_go(
    tmp_path: Path,
) -> None:
    (tmp_path / "zookeeper").write_text("a file where the server's data belongs")
    with pytest.raises(errors.ZooKeeperUnavailableError) as caught:
        embedded.EmbeddedZooKeeper(tmp_path).start()
    assert "ended before it served" in str(caught.value).splitlines()[0]
    assert "DatadirException" in str(caught.value)
    assert owners.processes_of(tmp_path) == []
    (tmp_path / "zookeeper").unlink()
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        assert ask(zookeeper.hosts, b"ruok") == b"imok"


def test_a_log_that_cannot_be_written_does_not_stop_the_server(tmp_path: Path) -> None:
    (tmp_path / "zookeeper.log").mkdir()
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
        assert ask(zookeeper.hosts, b"ruok") == b"imok"


def test_a_watchdog_that_fails_is_reported_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "__file__", str(tmp_path / "no-such-program.py"))
    with pytest.raises(errors.ZooKeeperUnavailableError, match=r"no-such-program\.py"):
        embedded.EmbeddedZooKeeper(tmp_path).start()
    assert directory.running(tmp_path) is None


def test_a_java_that_cannot_be_run_by_the_watchdog_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "command", lambda config: [str(tmp_path / "no-such-java")])
    with pytest.raises(errors.ZooKeeperUnavailableError, match="no-such-java"):
        embedded.EmbeddedZooKeeper(tmp_path).start()
    assert directory.running(tmp_path) is None


def test_without_the_jars_of_pyspark_the_cure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(errors.SetupError, match="pip install pyspark"):
        embedded.EmbeddedZooKeeper(tmp_path).start()
    assert directory.running(tmp_path) is None


def test_the_jars_of_a_spark_distribution_are_found_where_pyspark_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in server_process.JARS:
        (jars / f"{name}-1.2.3.jar").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    assert (
        str(jars / "zookeeper-1.2.3.jar") in server_process.command(tmp_path / "zookeeper.cfg")[-3]
    )


def test_asking_for_the_address_before_the_start_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="Call start"):
        _ = embedded.EmbeddedZooKeeper(tmp_path).hosts


@pytest.mark.thorough
def test_a_killed_server_is_not_alive_before_its_watchdog_has_reported_the_end(
    tmp_path: Path,
) -> None:
    with embedded.EmbeddedZooKeeper(tmp_path, choose_port=free_port) as owned:
        guardian = owned._require_server()._watchdog.pid
        os.kill(guardian, signal.SIGSTOP)
        try:
            owners.wait_until_suspended(guardian)
            os.kill(owned.pid, signal.SIGKILL)
            wait_until(lambda: not owned.is_alive, "the end of the server that was killed")
        finally:
            os.kill(guardian, signal.SIGCONT)
        owned.restart()
        assert owned.is_alive
