"""Several driver processes want the same topology: one works, the others wait for the topology,
take it, or come back from the dead (R26).

ZooKeeper runs apart from them. The final count is exact: ten per committed transaction, by any
driver.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.servers.zookeepers import client_of, end_session
from tests.starter.commands import Command, done
from txtopo.state import server_process
from txtopo.state.embedded import EmbeddedZooKeeper
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.stores import SqliteStore

PROGRAM = Path(__file__).parents[1] / "starter" / "endless.py"
ROWS = 10
SESSION_S = 3600
"""A session outlives its driver, and the test, unless the test ends the session."""


class Scene:
    """One topology over one store, a ZooKeeper, and the drivers started for the topology."""

    def __init__(self, place: Path, zookeeper: EmbeddedZooKeeper) -> None:
        self.place, self.zookeeper = place, zookeeper
        self.store = SqliteStore(place / "numbers.db", "numbers")
        self.state = ZooKeeperStateStore(
            zookeeper.hosts, connect_timeout_s=SESSION_S, session_timeout_s=SESSION_S
        )

    def gate(self, name: str) -> Path:
        """The gate of coordinator ``name``, through which its commits go."""
        gate = self.place / name
        gate.mkdir(exist_ok=True)
        return gate

    def start(self, name: str, *options: str) -> Command:
        """A driver process."""
        where = ["--zookeeper", self.zookeeper.hosts, "--master", "local[2]"]
        for setting in ("zookeeper_connect_timeout_s", "zookeeper_session_timeout_s"):
            where += ["--set", f"{setting}={SESSION_S}"]
        environment = {
            "ENDLESS_STORE": str(self.place / "numbers.db"),
            "ENDLESS_GATE": str(self.gate(name)),
        }
        return Command(
            ["python", PROGRAM, *where, "--name", name, *options], self.place, **environment
        )

    def standby(self, name: str, first: Command) -> Command:
        """A driver process that is started when ``first`` has the topology, and waits for it."""
        first.wait_until_it_says("begins at txid 1")
        return self.start(name, "--standby")

    def ask(self, command: str, *options: str, exit_code: int = 0) -> str:
        """What ``txtopo COMMAND endless`` says, typed elsewhere."""
        where = ["--zookeeper", self.zookeeper.hosts, "--wait", str(PATIENCE_S)]
        if command in ("resume", "status", "history"):
            where = where[:2]
        return done(["txtopo", command, "endless", *where, *options], self.place, exit_code)

    @property
    def committed(self) -> int:
        """The last committed txid, as ZooKeeper has it."""
        node = self.state.get("/endless/current")
        return 0 if node is None else json.loads(node.data)["current"] - 1

    def wait_for_commits(self, command: Command) -> None:
        """Until ``command`` has committed two more."""
        goal = self.committed + 2
        command.wait_until(lambda: self.committed >= goal)

    @property
    def is_held(self) -> bool:
        """Whether there is a lease."""
        return self.state.get("/endless/lease") is not None

    def suspend(self, holder: Command) -> None:
        """Suspend the holder of the lease; its session ends."""
        holder.suspend()
        with client_of(self.zookeeper.hosts) as client:
            _, lease = client.get("/txtopo/endless/lease")
        end_session(self.zookeeper.hosts, lease.ephemeralOwner)

    def everything(self, path: str = "/endless") -> dict[str, tuple[bytes, int]]:
        """Every znode, with its version: unchanged if nothing was written."""
        node = self.state.get(path)
        znodes = {} if node is None else {path: (node.data, node.version)}
        for name in self.state.children(path):
            znodes.update(self.everything(f"{path}/{name}"))
        return znodes

    def check_exact(self) -> None:
        """The count equals the committed tuples."""
        assert self.store.get("count") == ROWS * self.committed


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setitem(server_process.SETTINGS, "maxSessionTimeout", str(SESSION_S * 1000))
    with EmbeddedZooKeeper(tmp_path / "zookeeper", is_private=False) as zookeeper:
        scene = Scene(tmp_path, zookeeper)
        with contextlib.closing(scene.state):
            yield scene


@pytest.mark.rule(26)
def test_a_standby_waits_and_takes_over_at_once_when_the_first_is_killed(scene: Scene) -> None:
    with scene.start("first") as first, scene.standby("second", first) as second:
        second.wait_until_it_says(
            "standing by: topology 'endless' is held by another coordinator: 'first', pid"
        )
        assert f"pid {first.pid} on" in second.said
        scene.wait_for_commits(first)
        refused = done(
            ["python", PROGRAM, "--zookeeper", scene.zookeeper.hosts],
            scene.place,
            4,
            ENDLESS_STORE="x.db",
            ENDLESS_GATE=".",
        )
        assert f"'endless' is held by another coordinator: 'first', pid {first.pid}" in refused
        assert "--standby" in refused
        first.signal(signal.SIGKILL)
        first.wait()
        second.wait_until_it_says("resumes at txid")
        assert "epoch 2" in second.said
        scene.wait_for_commits(second)
        second.signal(signal.SIGTERM)
        assert second.wait() == 0
    assert f"run taken over from 'first', pid {first.pid} on" in scene.ask(
        "history", "--last", "9999"
    )
    scene.check_exact()


@pytest.mark.thorough
@pytest.mark.rule(26)
def test_a_standby_takes_over_when_the_first_has_stopped_and_a_standby_may_stop_too(
    scene: Scene,
) -> None:
    with (
        scene.start("first") as first,
        scene.standby("second", first) as second,
        scene.standby("third", first) as third,
    ):
        second.wait_until_it_says("standing by")
        third.wait_until_it_says("standing by")
        third.signal(signal.SIGTERM)
        assert third.wait() == 0, third.said
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
        second.wait_until_it_says("resumes at txid")
        scene.wait_for_commits(second)
        second.signal(signal.SIGTERM)
        assert second.wait() == 0
    scene.check_exact()


@pytest.mark.rule(26)
def test_a_paused_run_is_handed_over_stays_paused_and_is_resumed_and_drained_from_elsewhere(
    scene: Scene,
) -> None:
    assert "no state of a topology 'endless'" in scene.ask("pause", exit_code=2)
    with scene.start("first") as first:
        first.wait_until_it_says("begins at txid 1")
        scene.wait_for_commits(first)
        line = r" INFO topology=endless component=count task=0 txid=1 attempt=\d+ phase=commit: "
        assert re.search(rf"^[-\d]+ [\d:,]+{line}the count begins$", first.said, re.MULTILINE)
        assert "no run waits" in scene.ask("handover", exit_code=4)
        with scene.standby("second", first) as second:
            second.wait_until(lambda: "standby       pid" in scene.ask("status"))
            assert "is paused" in scene.ask("pause")
            committed = scene.committed
            assert "nothing is in flight: `txtopo resume endless" in scene.ask("status")
            said = scene.ask("handover")
            assert f"pid {first.pid} on" in said, said
            assert f"and pid {second.pid} on" in said, said
            assert first.wait() == 0, first.said
            second.wait_until_it_says("is paused")
            second.wait_until(lambda: "standby" not in scene.ask("status"))
            assert scene.committed == committed
            assert "goes on" in scene.ask("resume")
            scene.wait_for_commits(second)
            assert "has ended" in scene.ask("drain")
            assert second.wait() == 0, second.said
    assert "not running: run 'second', pid" in scene.ask("drain", exit_code=4)
    assert "was not paused" in scene.ask("resume")
    assert f"run taken over from 'first', pid {first.pid} on" in scene.ask(
        "history", "--last", "9999"
    )
    scene.check_exact()


@pytest.mark.thorough
@pytest.mark.rule(26)
def test_handovers_under_load_lose_and_double_nothing(scene: Scene) -> None:
    with contextlib.ExitStack() as drivers:
        holder = drivers.enter_context(scene.start("first"))
        holder.wait_until_it_says("begins at txid 1")
        for number in range(3):
            next_holder = drivers.enter_context(scene.start(f"standby-{number}", "--standby"))
            next_holder.wait_until(lambda: "standby       pid" in scene.ask("status"))
            scene.wait_for_commits(holder)
            committed = scene.committed
            assert f"and pid {next_holder.pid} on" in scene.ask("handover")
            assert holder.wait() == 0, holder.said
            holder = next_holder
            holder.wait_until_it_says("resumes at txid")
            assert scene.committed >= committed
        scene.wait_for_commits(holder)
        assert "has ended" in scene.ask("drain")
        assert holder.wait() == 0, holder.said
    scene.check_exact()


@pytest.mark.thorough
@pytest.mark.rule(26)
def test_a_driver_suspended_beyond_its_session_goes_on_without_a_takeover(scene: Scene) -> None:
    with scene.start("first") as first:
        first.wait_until_it_says("begins at txid 1")
        scene.wait_for_commits(first)
        scene.suspend(first)
        wait_until(lambda: not scene.is_held)
        first.signal(signal.SIGCONT)
        wait_until(lambda: scene.is_held)
        scene.wait_for_commits(first)
        first.signal(signal.SIGTERM)
        assert first.wait() == 0, first.said
    assert json.loads(scene.everything()["/endless/epoch"][0])["epoch"] == 1
    scene.check_exact()


@pytest.mark.rule(26, 29)
def test_a_suspended_driver_that_was_replaced_writes_nothing_neither_itself_nor_by_a_late_task(
    scene: Scene,
) -> None:
    shut = scene.gate("first") / "shut"
    waiting = scene.gate("first") / "waiting"
    with scene.start("first") as first, scene.standby("second", first) as second:
        second.wait_until_it_says("standing by")
        scene.wait_for_commits(first)
        shut.touch()
        first.wait_until(waiting.exists)
        # A task of the first driver is inside its commit. The driver is stopped; its Spark, and the
        # task, are not.
        scene.suspend(first)
        second.wait_until_it_says("resumes at txid")
        scene.wait_for_commits(second)
        second.signal(signal.SIGTERM)
        assert second.wait() == 0
        before = scene.everything(), list(scene.store.items()), scene.store.fences()
        assert "/endless/lease" not in before[0]
        waiting.unlink()
        shut.unlink()
        # Its task goes on now, beyond any cancelling, and tries to write.
        wait_until((scene.gate("first") / "refused").exists, "the late task to try to write")
        first.signal(signal.SIGCONT)
        assert first.wait() == 4, first.said
        assert "is no longer ours (epoch 1)" in first.said
        assert (scene.everything(), list(scene.store.items()), scene.store.fences()) == before
    scene.check_exact()


@pytest.mark.thorough
@pytest.mark.rule(26, 29)
def test_a_takeover_fences_a_live_coordinator_in_the_middle_of_a_commit(scene: Scene) -> None:
    shut = scene.gate("first") / "shut"
    with scene.start("first") as first:
        first.wait_until_it_says("begins at txid 1")
        scene.wait_for_commits(first)
        shut.touch()
        first.wait_until((scene.gate("first") / "waiting").exists)
        with scene.start("second", "--takeover") as second:
            second.wait_until_it_says("resumes at txid")
            # Nothing is written by the first, and its session lives: it finds out because it looks
            # now and then.
            assert first.wait() == 4, first.said
            assert re.search(
                r"another coordinator took the topology in epoch 2, now held by 'second', pid \d+ on",
                first.said,
            ), first.said
            shut.unlink()
            scene.wait_for_commits(second)
            second.signal(signal.SIGTERM)
            assert second.wait() == 0
    taken = f"run taken over from 'first', pid {first.pid} on"
    assert taken in scene.ask("history", "--last", "9999")
    scene.check_exact()


@pytest.mark.thorough
@pytest.mark.rule(26)
def test_a_standby_also_waits_for_a_data_directory_which_cannot_be_taken_over(
    tmp_path: Path,
) -> None:
    environment = {"ENDLESS_STORE": str(tmp_path / "numbers.db"), "ENDLESS_GATE": str(tmp_path)}
    with Command(["python", PROGRAM, "--master", "local[2]"], tmp_path, **environment) as first:
        first.wait_until_it_says("begins at txid 1")
        assert "cannot be taken over" in done(
            ["python", PROGRAM, "--takeover"], tmp_path, 4, **environment
        )
        with Command(["python", PROGRAM, "--standby"], tmp_path, **environment) as bored:
            bored.wait_until_it_says("standing by: the data directory")
            bored.signal(signal.SIGTERM)
            assert bored.wait() == 143
        with Command(
            ["python", PROGRAM, "--master", "local[2]", "--standby"], tmp_path, **environment
        ) as second:
            second.wait_until_it_says("standing by: the data directory")
            first.signal(signal.SIGKILL)
            first.wait()
            second.wait_until_it_says("resumes at txid")
            second.signal(signal.SIGTERM)
            assert second.wait() == 0, second.said
