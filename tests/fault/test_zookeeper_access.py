"""Real ZooKeeper servers that ask for credentials: by digest, and by SASL; and state of foreign
users."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from kazoo.security import ACL, make_acl, make_digest_acl_credential

from tests.patience import PATIENCE_S, wait_until
from tests.servers.clusters import Journal, fast
from tests.servers.ensemble import Ensemble, Server
from tests.servers.zookeeper_proxy import Proxy
from tests.servers.zookeepers import SESSION_S, client_of
from tests.topologies.spouts import Keep, batches, keeping_topology
from txtopo import (
    Fields,
    LocalCluster,
    TopologyContext,
    TransactionAttempt,
    ZooKeeperAccessError,
    errors,
)
from txtopo.command import cli
from txtopo.state import administration, client
from txtopo.state.credentials import Credentials
from txtopo.state.topology import Holder, TopologyState
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.stores import SqliteStore
from txtopo.testing import MemoryTransactionalSpout

ALICE = Holder("alpha.example", 11, "2024-05-01T10:00:00+00:00")
SECRET = "sesame-5up3r"
OTHER_SECRET = "other-5ecret"
ENDLESS_S = 3600.0
"""A bound that no test lives to see."""
SASL = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}

Scheme = Literal["digest", "sasl"]
SCHEMES = pytest.mark.parametrize("scheme", ["digest", "sasl"])


def jaas(folder: Path, password: str = SECRET) -> str:
    """The option that has a server know ``ann`` and ``bob``."""
    file = folder / "jaas.conf"
    file.write_text(
        f'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_ann="{password}" user_bob="{OTHER_SECRET}"; }};\n'
    )
    return f"-Djava.security.auth.login.config={file}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Knows users by digest and by SASL, and lets in clients without credentials."""
    folder = tmp_path_factory.mktemp("zookeeper")
    with Ensemble(folder, size=1, settings=SASL, flags=[jaas(folder)]) as ensemble:
        yield ensemble.servers[0]


@pytest.fixture
def address(server: Server, request: pytest.FixtureRequest) -> str:
    """A chroot of the test's own, which does not exist yet."""
    return (
        f"{server.hosts}/"
        + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
        + "/inner"
    )


def ann(scheme: Scheme, password: str = SECRET) -> Credentials:
    return Credentials(scheme, "ann", password)


@contextlib.contextmanager
def connected(
    address: str, login: Credentials | None = None, root: str = "/txtopo"
) -> Iterator[ZooKeeperStateStore]:
    with contextlib.closing(
        ZooKeeperStateStore(address, root, ENDLESS_S, SESSION_S, login)
    ) as store:
        yield store


def make(address: str, login: Credentials | None) -> None:
    """The state of a topology that has committed one transaction."""
    with connected(address, login) as store:
        state = TopologyState.open(store, "words", ALICE)
        state.seal(TransactionAttempt(1, 0), {"spout": 1}, None)
        state.record(TransactionAttempt(1, 0), {0: "a"}, {"keep/kept": 1})
        state.close()


def acls(server: Server, login: Credentials | None, path: str) -> dict[str, list[ACL]]:
    """The rights on ``path`` and everything below."""
    other = client.Client(server.hosts, SESSION_S, login).kazoo
    other.start(PATIENCE_S)
    try:
        rights = {}
        waiting = [path]
        while waiting:
            path = waiting.pop()
            rights[path] = other.get_acls(path)[0]
            waiting += [f"{path}/{name}" for name in other.get_children(path)]
        return rights
    finally:
        other.stop()
        other.close()


@pytest.mark.thorough
@SCHEMES
def test_everything_we_make_is_ours_alone_chroots_root_and_lease_included(
    scheme: Scheme, server: Server, address: str
) -> None:
    with connected(address, ann(scheme)) as store:
        state = TopologyState.open(store, "words", ALICE)
        state.seal(TransactionAttempt(1, 0), {"spout": 1}, None)
        state.record(TransactionAttempt(1, 0), {0: "a"}, {"keep/kept": 1})
        top = "/" + address.split("/")[1]
        rights_at = acls(server, ann(scheme), top)
        assert {
            top,
            f"{top}/inner",
            f"{top}/inner/txtopo",
            f"{top}/inner/txtopo/words/lease",
            f"{top}/inner/txtopo/words/txids",
        } <= set(rights_at)
        assert len(rights_at) > 12
        for path, rights in rights_at.items():
            assert [right.perms for right in rights] == [31], path
            assert [(right.id.scheme, right.id.id.split(":")[0]) for right in rights] == [
                (scheme, "ann")
            ], path
        state.close()


@pytest.mark.thorough
def test_without_credentials_everything_we_make_is_everybodys(server: Server, address: str) -> None:
    make(address, None)
    rights = {
        right for each in acls(server, None, "/" + address.split("/")[1]).values() for right in each
    }
    assert {(right.perms, right.id.scheme, right.id.id) for right in rights} == {
        (31, "world", "anyone")
    }


@pytest.mark.thorough
@SCHEMES
def test_state_made_with_credentials_is_refused_to_everybody_else_with_the_cure(
    scheme: Scheme, address: str
) -> None:
    with connected(address):
        pass  # so that the root is open to all, and the topology in it is ann's
    make(address, ann(scheme))
    others: list[tuple[Credentials | None, str]] = [
        (None, r"without credentials\)\n  The znode was made with credentials"),
        (
            Credentials(scheme, "bob", OTHER_SECRET),
            rf"as {scheme} user 'bob'\)\n  The znode was made with another",
        ),
        (
            Credentials("sasl" if scheme == "digest" else "digest", "ann", SECRET),
            r"as \w+ user 'ann'\)\n  The znode was made with another",
        ),
    ]
    for login, message in others:
        with connected(address, login) as store:
            calls: list[Callable[[], object]] = [
                functools.partial(TopologyState.open, store, "words", ALICE),
                functools.partial(administration.show, store, "words"),
                functools.partial(administration.reset, store, "words"),
            ]
            for call in calls:
                with pytest.raises(
                    ZooKeeperAccessError,
                    match=rf"does not allow us to \w+ /words\S*: NoAuthError \({message}",
                ) as refused:
                    call()
                assert refused.value.exit_code == 5
                assert SECRET not in str(refused.value)
    with connected(address, ann(scheme)) as store:
        assert administration.show(store, "words")["current"] == 2


@pytest.mark.thorough
def test_the_root_of_another_user_is_refused_too(address: str) -> None:
    make(address, ann("digest"))
    with pytest.raises(
        ZooKeeperAccessError, match=r"does not allow us to .*NoAuthError \(without credentials\)"
    ):
        make(address, None)
    with pytest.raises(ZooKeeperAccessError, match="Name a place of your own with zookeeper_root"):
        make(address, Credentials("digest", "bob", OTHER_SECRET))


def test_a_wrong_password_is_another_user_by_digest_and_is_refused_by_sasl(address: str) -> None:
    make(address, ann("digest"))
    with pytest.raises(ZooKeeperAccessError, match="another name, password"):
        make(address, ann("digest", "wr0ng"))
    with pytest.raises(
        ZooKeeperAccessError,
        match=r"does not let us in \(as sasl user 'ann'\)\n  The name or the password is wrong",
    ) as refused:
        make(address, ann("sasl", "wr0ng"))
    assert "wr0ng" not in str(refused.value)


@pytest.mark.thorough
def test_a_server_that_insists_on_sasl_refuses_the_wrong_and_the_nameless_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = [jaas(tmp_path), "-Dzookeeper.sessionRequireClientSASLAuth=true"]
    with Ensemble(tmp_path, size=1, settings=SASL, flags=flags) as strict:
        make(strict.hosts, ann("sasl"))
        capfd.readouterr()
        for login, message in (
            (ann("sasl", "wr0ng"), "password is wrong"),
            (None, "It wants credentials"),
            (ann("digest"), "does not let us in"),
        ):
            with pytest.raises(ZooKeeperAccessError, match=message):
                ZooKeeperStateStore(strict.hosts, connect_timeout_s=ENDLESS_S, login=login)
        assert "".join(capfd.readouterr()) == ""


class ImpatientStore(ZooKeeperStateStore):
    """Its time to connect ends as soon as a server has hung up while it authenticated, which the
    server does when the session ends."""

    def wait_until_connected(self, timeout_s: float) -> bool:
        return not self._link.hang_ups and super().wait_until_connected(timeout_s)


@pytest.mark.thorough
def test_a_server_without_sasl_is_named_as_the_cause_within_the_time_to_connect(
    tmp_path: Path,
) -> None:
    with Ensemble(tmp_path, size=1) as plain:
        with pytest.raises(
            ZooKeeperAccessError,
            match=r"hangs up while we authenticate \(as sasl user 'ann'\)\n  Is it configured for SASL\?",
        ):
            ImpatientStore(
                plain.hosts, connect_timeout_s=ENDLESS_S, session_timeout_s=1.0, login=ann("sasl")
            )


@pytest.mark.thorough
def test_a_connection_that_breaks_while_we_authenticate_is_made_again_in_the_same_session(
    server: Server, address: str
) -> None:
    with Proxy(server.hosts) as proxy:
        through = address.replace(server.hosts, proxy.hosts)
        with connected(through, ann("sasl")) as store:
            state = TopologyState.open(store, "words", ALICE)
            session = store.session

            def lost(number: int) -> Callable[[], bool]:
                return lambda: proxy.lost == number

            for number in range(1, 4):
                proxy.lose_next_greeting()
                proxy.cut()
                wait_until(lost(number))
                state.seal(TransactionAttempt(1, number), {"spout": 1}, None)
            assert store.session == session
            state.close()


@pytest.mark.thorough
def test_a_password_that_is_changed_ends_the_coordinator_instead_of_having_it_wait(
    tmp_path: Path,
) -> None:
    with Ensemble(tmp_path, size=1, settings=SASL, flags=[jaas(tmp_path)]) as ensemble:
        with connected(ensemble.hosts, ann("sasl")) as store:
            state = TopologyState.open(store, "words", ALICE, wait_s=ENDLESS_S)
            ensemble.servers[0].kill()
            jaas(tmp_path, "changed")
            ensemble.servers[0].start()
            wait_until(lambda: store._link.is_refused)
            with pytest.raises(ZooKeeperAccessError, match="does not let us in"):
                state.seal(TransactionAttempt(1, 0), {"spout": 1}, None)
            state.close()


# -- state that was made without credentials -----------------------------------------------------


@pytest.mark.thorough
def test_open_state_is_refused_once_there_are_credentials_until_it_is_protected(
    server: Server, address: str
) -> None:
    make(address, None)
    with connected(address, ann("digest")) as store:
        with pytest.raises(
            errors.StateMismatchError,
            match=r"every client may write .*/txtopo/words[\s\S]*setAcl -R [\s\S]*state reset",
        ) as refused:
            store.require_protected("/words")
        assert refused.value.exit_code == 6
        store.require_protected("/another")
        with client_of(server.hosts) as other:
            paths = list(acls(server, None, "/" + address.partition("/")[2] + "/txtopo/words"))
            for path in sorted(paths, reverse=True)[:-1]:
                other.set_acls(
                    path,
                    [
                        make_acl("digest", make_digest(), all=True),
                        make_acl("world", "anyone", read=True),
                    ],
                )
            with pytest.raises(errors.StateMismatchError, match="every client may write"):
                store.require_protected("/words")
            other.set_acls(min(paths), [make_acl("digest", make_digest(), all=True)])
        store.require_protected("/words")
        state = TopologyState.open(store, "words", ALICE)
        assert (state.epoch, state.current) == (2, 2)
        state.close()


def make_digest() -> str:
    return str(make_digest_acl_credential("ann", SECRET))


# -- runs and commands ---------------------------------------------------------------------------


class Nosy(Keep):
    """Writes down all that it can see of the settings."""

    def prepare(
        self, conf: Any, context: TopologyContext, collector: Any, attempt: TransactionAttempt
    ) -> None:
        super().prepare(conf, context, collector, attempt)
        self.journal.write(f"conf {dict(conf)!r}")


@pytest.mark.thorough
@SCHEMES
def test_a_run_and_the_commands_use_the_credentials_and_never_show_the_password(
    scheme: Scheme,
    cluster: LocalCluster,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(1)
    monkeypatch.chdir(tmp_path)
    password = tmp_path / "password"
    password.write_text(SECRET + "\n")
    id = f"secretive-{scheme}"
    store, journal = SqliteStore(tmp_path / "kept.db", "kept"), Journal(tmp_path / "journal")
    settings: dict[str, Any] = {
        "zookeeper_auth": scheme,
        "zookeeper_user": "ann",
        "zookeeper_password_file": str(password),
    }

    def topology(end: int) -> Any:
        spout = MemoryTransactionalSpout({0: [(n,) for n in range(end)]}, Fields("n"), 1)
        return keeping_topology(id, spout, Nosy(store, journal))

    with LocalCluster(zookeeper=address, master="local[2]") as ours:
        run = ours.submit_topology(id, fast(**settings, until="exhausted"), topology(3))
        run.join(PATIENCE_S)
        said = [repr(run.conf), repr(run.status()), str(vars(run))]
        with pytest.raises(ZooKeeperAccessError) as refused:
            ours.submit_topology(id, fast(), topology(3))
        said.append(str(refused.value))
    assert batches(store) == {txid: [txid - 1] for txid in range(1, 4)}

    where = ["--zookeeper", address]
    commands = [["status", id, "--json"], ["state", "show", id], ["state", "reset", id]]
    for command in [*commands, ["pause", id]]:
        assert cli.main([*command, *where]) == 5
        assert "The znode was made with credentials" in capsys.readouterr().err
    for key, value in settings.items():
        monkeypatch.setenv(f"TXTOPO_{key.upper()}", value)
    for command in [*commands, ["config", "show", "--origin"], ["state", "reset", id, "--execute"]]:
        assert cli.main(command if command[0] == "config" else [*command, *where]) == 0, command
    said.append("".join(capsys.readouterr()))
    assert f"removed from {address}" in said[-1]
    said += [journal.path.read_text(), caplog.text]
    assert "conf {" in said[-2]
    assert "zookeeper_user" in said[-2]
    assert "Sending request" in caplog.text
    for text in said:
        assert SECRET not in text


RUN = """
from txtopo.command import cli
import sys
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.thorough
def test_a_run_with_a_wrong_password_ends_with_exit_code_5_before_spark_is_started(
    server: Server, address: str, tmp_path: Path
) -> None:
    make(address, ann("sasl"))
    command = [
        "run",
        "starter.transactional_global_count",
        "--zookeeper",
        address,
        "--until-exhausted",
    ]
    environment = {
        "TXTOPO_ZOOKEEPER_AUTH": "sasl",
        "TXTOPO_ZOOKEEPER_USER": "ann",
        "TXTOPO_ZOOKEEPER_PASSWORD": "wr0ng",
    }
    no_spark = {"SPARK_LAUNCHER_OPTS": "-Xno-such-option", "SPARK_SUBMIT_OPTS": "-Xno-such-option"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command],
        env={**os.environ, **environment, **no_spark, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert "does not let us in (as sasl user 'ann')" in done.stderr
    assert "wr0ng" not in done.stderr + done.stdout
    assert "no-such-option" not in done.stderr, "a Spark was started"
