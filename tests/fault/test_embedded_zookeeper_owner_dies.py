"""The owner of the embedded ZooKeeper dies at any moment, alone or with others: no process and no
loss stays behind, and the next owner serves."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.processes import owners
from tests.servers.ports import free_port
from tests.servers.zookeepers import client_of
from txtopo import errors
from txtopo.state import directory, embedded

KILLED_AT = """
import os, pathlib, signal, sys, threading
from txtopo.state import directory, embedded, server_process
def die(*arguments, **keywords):
    while {words!r} not in (log.read_text() if (log := pathlib.Path(sys.argv[1], "zookeeper.log")).exists() else ""):
        threading.Event().wait(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(*{place}, die)
embedded.EmbeddedZooKeeper(sys.argv[1]).start()
"""
"""An owner that dies where it calls ``place``, once the server has logged ``words``."""


@pytest.mark.rule(23)
def test_after_kill_9_the_server_ends_and_the_next_owner_serves_all_writes(tmp_path: Path) -> None:
    with owners.Owner(tmp_path) as owner:
        report = owner.report()
        with client_of(report["hosts"], tmp_path) as client:
            client.create("/current", b"7")
        watchdog_pid = owners.parent_of(report["pid"])
        owner.kill()
        with (
            embedded.EmbeddedZooKeeper(tmp_path) as zookeeper,
            client_of(zookeeper.hosts) as client,
        ):
            value, _ = client.get("/current")
            assert value == b"7"
    assert owners.has_ended(report["pid"])
    assert owners.has_ended(watchdog_pid)
    assert owners.processes_of(tmp_path) == []


def test_after_kill_9_no_process_is_left_and_a_reader_finds_no_server(tmp_path: Path) -> None:
    with owners.Owner(tmp_path) as owner:
        pid = owner.report()["pid"]
        watchdog_pid = owners.parent_of(pid)
        owner.kill()
        assert directory.running(tmp_path) is None
    assert owners.has_ended(pid)
    assert owners.has_ended(watchdog_pid)
    assert (tmp_path / "endpoint.json").exists(), "the stale file that running() is not to believe"


@pytest.mark.in_gate(
    "the watchdog just started", "the server just started", "before the endpoint is published"
)
@pytest.mark.parametrize(
    ("place", "words"),
    [
        pytest.param(
            '(directory, "write_durably")', "", id="owning the directory, before the first write"
        ),
        pytest.param(
            '(embedded.EmbeddedZooKeeper, "_wait_for_earlier_server")',
            "",
            id="before the server is locked",
        ),
        pytest.param('(server_process, "ServerProcess")', "", id="before the watchdog is started"),
        pytest.param(
            '(server_process.ServerProcess, "has_ended")', "", id="the watchdog just started"
        ),
        pytest.param('(server_process, "answers")', "", id="the server just started"),
        pytest.param(
            '(server_process, "answers")',
            "Reading configuration",
            id="the server reading its configuration",
        ),
        pytest.param(
            '(server_process, "answers")', "binding to port", id="the server binding its port"
        ),
        pytest.param(
            '(server_process, "answers")', "Snapshotting", id="the server taking a snapshot"
        ),
        pytest.param(
            '(server_process, "answers")',
            "PrepRequestProcessor",
            id="the server beginning to serve",
        ),
        pytest.param(
            '(embedded.EmbeddedZooKeeper, "_sync_data")', "", id="the server serving, nobody knows"
        ),
        pytest.param(
            '(directory.DataDirectory, "publish")', "", id="before the endpoint is published"
        ),
    ],
)
def test_killed_anywhere_in_its_start_an_owner_does_not_hinder_the_next(
    tmp_path: Path, place: str, words: str
) -> None:
    with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper, client_of(zookeeper.hosts) as client:
        client.create("/current", b"7")
    (tmp_path / "zookeeper.log").unlink()
    with owners.Owner(tmp_path, KILLED_AT.format(place=place, words=words)) as owner:
        assert owner.wait() == -signal.SIGKILL
        with (
            embedded.EmbeddedZooKeeper(tmp_path) as zookeeper,
            client_of(zookeeper.hosts) as client,
        ):
            value, _ = client.get("/current")
            assert value == b"7"
    owners.wait_until_none_is_left(tmp_path)


@pytest.mark.thorough
def test_killed_in_its_very_first_start_an_owner_does_not_hinder_the_next(tmp_path: Path) -> None:
    with owners.Owner(
        tmp_path, KILLED_AT.format(place='(server_process, "answers")', words="Snapshotting")
    ) as owner:
        assert owner.wait() == -signal.SIGKILL
        with (
            embedded.EmbeddedZooKeeper(tmp_path) as zookeeper,
            client_of(zookeeper.hosts) as client,
        ):
            assert client.get_children("/") == ["zookeeper"]


@pytest.mark.thorough
@pytest.mark.rule(23)
def test_every_acknowledged_write_survives_kill_9_again_and_again(tmp_path: Path) -> None:
    acknowledged = 0
    for _ in range(5):
        with owners.Owner(tmp_path) as owner:
            with client_of(owner.report()["hosts"], tmp_path) as client:
                client.ensure_path("/count")
                assert int(client.get("/count")[0] or b"0") == acknowledged
                for _ in range(25):
                    acknowledged += 1
                    client.set("/count", str(acknowledged).encode())
                owner.kill()
    assert acknowledged == 125


def test_the_owner_and_the_watchdog_killed_together_leave_no_server(tmp_path: Path) -> None:
    with owners.Owner(tmp_path) as owner:
        pid = owner.report()["pid"]
        os.kill(owners.parent_of(pid), signal.SIGKILL)
        owner.kill()
    assert owners.has_ended(pid)


@pytest.mark.thorough
def test_a_server_whose_watchdog_hangs_is_ended_by_the_next_owner(tmp_path: Path) -> None:
    with owners.Owner(tmp_path) as owner:
        pid = owner.report()["pid"]
        watchdog_pid = owners.parent_of(pid)
        os.kill(watchdog_pid, signal.SIGSTOP)
        owners.wait_until_suspended(watchdog_pid)
        try:
            owner.kill()
            assert not owners.has_ended(pid, patience_s=0)
            with (
                embedded.EmbeddedZooKeeper(tmp_path) as zookeeper,
                client_of(zookeeper.hosts) as client,
            ):
                assert owners.has_ended(pid)
                assert zookeeper.pid != pid
                assert client.exists("/")
        finally:
            os.kill(watchdog_pid, signal.SIGCONT)
    assert owners.has_ended(watchdog_pid)


@pytest.mark.thorough
def test_a_process_that_only_inherited_the_pid_of_a_server_is_not_killed(tmp_path: Path) -> None:
    program = """
import fcntl, os, sys
lock = open(sys.argv[1] + "/server.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(str(os.getpid()))
lock.flush()
print("{}", flush=True)
sys.stdin.read()
"""
    with owners.Owner(tmp_path, program) as bystander:
        bystander.report()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("txtopo.state.server_process.END_TIMEOUT_S", 0.05)
            with pytest.raises(
                errors.ZooKeeperUnavailableError,
                match=f"process {bystander.pid}, still has the data",
            ) as caught:
                embedded.EmbeddedZooKeeper(tmp_path).start()
        assert f"kill -9 {bystander.pid}" in str(caught.value)
        assert bystander.wait() == 0


@pytest.mark.thorough
def test_a_fork_of_the_owner_keeps_neither_the_lock_nor_the_server(tmp_path: Path) -> None:
    program = """
import json, os, sys
from txtopo.state import embedded
with embedded.EmbeddedZooKeeper(sys.argv[1]) as owned:
    report = {"pid": owned.pid, "fork": (fork := os.fork())}
    if fork:
        print(json.dumps(report), flush=True)
    sys.stdin.read()
"""
    with owners.Owner(tmp_path, program) as owner:
        report = owner.report()
        owner.kill()
        assert owners.has_ended(report["pid"])
        assert not owners.has_ended(report["fork"], patience_s=0)
        with embedded.EmbeddedZooKeeper(tmp_path) as zookeeper:
            assert not owners.has_ended(zookeeper.pid, patience_s=0)
    assert owners.has_ended(report["fork"])


@pytest.mark.thorough
def test_a_fork_that_leaves_the_with_statement_does_not_stop_the_server(tmp_path: Path) -> None:
    program = """
import json, os, sys
from txtopo.state import embedded
with embedded.EmbeddedZooKeeper(sys.argv[1]) as owned:
    fork = os.fork()
    if fork:
        _, code = os.waitpid(fork, 0)
        print(json.dumps({"pid": owned.pid, "code": code}), flush=True)
        sys.stdin.read()
"""
    with owners.Owner(tmp_path, program) as owner:
        report = owner.report()
        assert report["code"] == 0
        server = directory.running(tmp_path)
        assert server is not None
        assert server.pid == report["pid"]
        with client_of(server.hosts, tmp_path) as client:
            assert client.exists("/")
        assert owner.wait() == 0
    assert owners.has_ended(report["pid"])


@pytest.mark.thorough
def test_ctrl_c_in_the_terminal_does_not_reach_the_server(tmp_path: Path) -> None:
    with owners.Owner(
        tmp_path, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + owners.SERVING
    ) as owner:
        report = owner.report()
        os.killpg(owner.pid, signal.SIGINT)
        with client_of(report["hosts"], tmp_path) as client:
            assert client.exists("/")
        assert os.getsid(report["pid"]) != os.getsid(owner.pid)
        assert owner.wait() == 0


def test_a_killed_server_is_restarted_at_the_same_address_and_its_clients_go_on(
    tmp_path: Path,
) -> None:
    with (
        embedded.EmbeddedZooKeeper(tmp_path, choose_port=free_port) as zookeeper,
        client_of(zookeeper.hosts) as client,
    ):
        client.create("/current", b"7")
        session = client.client_id
        hosts, pid = zookeeper.hosts, zookeeper.pid
        assert zookeeper.is_alive
        os.kill(pid, signal.SIGKILL)
        assert owners.has_ended(pid)
        zookeeper.restart()
        assert zookeeper.is_alive
        assert (zookeeper.hosts, zookeeper.pid != pid) == (hosts, True)
        server = directory.running(tmp_path)
        assert server is not None
        assert server.pid == zookeeper.pid
        value, _ = client.retry(client.get, "/current")
        assert value == b"7"
        assert client.client_id == session


def test_a_killed_server_is_noticed_and_stopping_it_is_harmless(tmp_path: Path) -> None:
    zookeeper = embedded.EmbeddedZooKeeper(tmp_path).start()
    watchdog_pid = owners.parent_of(zookeeper.pid)
    os.kill(zookeeper.pid, signal.SIGKILL)
    assert owners.has_ended(watchdog_pid)
    assert not zookeeper.is_alive
    zookeeper.stop()
    assert not zookeeper.is_alive
    assert owners.processes_of(tmp_path) == []
    assert directory.running(tmp_path) is None


@pytest.mark.thorough
def test_a_restart_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    with embedded.EmbeddedZooKeeper(tmp_path, choose_port=free_port) as zookeeper:
        hosts = zookeeper.hosts
        (tmp_path / "zookeeper").rename(tmp_path / "elsewhere")
        (tmp_path / "zookeeper").write_text("a file where the server's data belongs")
        with pytest.raises(errors.ZooKeeperUnavailableError):
            zookeeper.restart()
        assert not zookeeper.is_alive
        (tmp_path / "zookeeper").unlink()
        (tmp_path / "elsewhere").rename(tmp_path / "zookeeper")
        zookeeper.restart()
        assert (zookeeper.hosts, zookeeper.is_alive) == (hosts, True)
    assert owners.processes_of(tmp_path) == []


@pytest.mark.thorough
def test_a_watchdog_that_hangs_does_not_keep_stop_from_ending_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txtopo.state.server_process.END_TIMEOUT_S", 0.05)
    zookeeper = embedded.EmbeddedZooKeeper(tmp_path).start()
    pid = zookeeper.pid
    os.kill(owners.parent_of(pid), signal.SIGSTOP)
    zookeeper.stop()
    assert owners.has_ended(pid)
    assert directory.running(tmp_path) is None
