"""Worker processes, simulated: globals, class attributes and resources of their own."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import Any

import pytest

from txtopo.testing.simulator.processes import Processes, Variables, is_users
from txtopo.topology.graph import Subscription

counter = 0
words: list[str] = ["a"]
shared = words
by_word: collections.Counter[str] = collections.Counter()
lock_like = object()


class Bolt:
    """A user's class."""

    seen: list[int] = []  # noqa: RUF012 - the mistake this is about

    def work(self, n: int) -> None:
        global counter
        counter += n
        words.append(str(n))
        by_word["x"] += n
        Bolt.seen.append(n)


class Other(Bolt):
    """Found by its base."""


def state() -> Any:
    return counter, list(words), dict(by_word), list(Bolt.seen)


class Colour(enum.Enum):
    """Members of an enumeration cannot be replaced, nor changed."""

    RED = 1

    def told(self) -> str:
        return self.name.lower()


class Paints:
    """A user's class that names an enumeration of the user."""

    colour = Colour.RED
    kinds = Colour

    def work(self) -> str:
        return self.colour.told()


@dataclasses.dataclass(frozen=True)
class Paint:
    """A user's class whose methods are all made by ``dataclass``."""

    colour: str


PRISTINE: Any = (0, ["a"], {}, [])


def test_every_process_has_variables_of_its_own_and_the_program_gets_its_back() -> None:
    processes = Processes([Other])
    outside = words
    processes.switch_to("one")
    Bolt().work(1)
    processes.switch_to("two")
    assert state() == PRISTINE
    Bolt().work(5)
    processes.switch_to("one")
    assert state() == (1, ["a", "1"], {"x": 1}, [1])
    processes.leave()
    assert state() == PRISTINE
    assert words is outside
    processes.switch_to("two")
    assert state() == (5, ["a", "5"], {"x": 5}, [5])
    assert shared is words, "what was one object still is"
    processes.end_all()
    assert state() == PRISTINE


def test_a_process_that_ended_begins_afresh_and_its_resources_are_closed() -> None:
    closed: list[str] = []

    class Connection:
        def close(self) -> None:
            closed.append("closed")

    processes = Processes([Bolt])
    process = processes.switch_to("one")
    Bolt().work(1)
    resource = process.resources.get("connection", Connection)
    assert process.resources.get("connection", Connection) is resource
    processes.end("one")
    assert (state(), closed) == (PRISTINE, ["closed"])
    processes.switch_to("one")
    assert state() == PRISTINE
    processes.end_all()


def test_outside_is_for_a_while_only() -> None:
    processes = Processes([Bolt])
    processes.switch_to("one")
    Bolt().work(1)
    with processes.outside():
        assert state() == PRISTINE
    assert counter == 1
    processes.end_all()


def test_changes_are_told_by_name() -> None:
    processes = Processes([Bolt])
    processes.switch_to("one")
    before = processes.shown()
    Bolt().work(1)
    changed = processes.changed_between(before, processes.shown())
    processes.end_all()
    module = __name__
    assert sorted(changed) == sorted(
        [
            "Bolt.seen",
            f"{module}.by_word",
            f"{module}.counter",
            f"{module}.shared",
            f"{module}.words",
        ]
    )


def test_code_of_libraries_and_objects_that_cannot_be_copied_are_left_alone() -> None:
    assert not is_users(collections.namedtuple)
    assert not is_users(pytest.raises)
    assert not is_users(Processes.leave)
    assert is_users(Bolt.work)
    names = Variables([Bolt]).names()
    assert not [name for name in names if name.endswith(("lock_like", "collections", "Bolt"))]


def test_the_methods_that_dataclass_makes_belong_to_the_classs_module() -> None:
    methods: list[Any] = [Paint.__init__, Subscription.__init__]
    assert [is_users(method) for method in methods] == [True, False]


class Positive:
    """A descriptor that serves objects only."""

    def __get__(self, owner: Any, cls: type) -> int:
        assert owner is not None, "asked for the class"
        return 1


class Limited:
    """A user's class with a descriptor."""

    limit = Positive()

    def work(self) -> int:
        return self.limit


def test_a_change_of_processes_asks_no_descriptor() -> None:
    processes = Processes([Limited])
    processes.switch_to("one")
    assert Limited().work() == 1
    processes.end_all()
    assert "Limited.limit" in processes.variables.names()


def test_members_of_an_enumeration_are_no_variables() -> None:
    processes = Processes([Paints])
    processes.switch_to("one")
    assert Paints().work() == "red"
    processes.end_all()
    assert "Colour.RED" not in processes.variables.names()


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_environment_are_libraries(folder: str) -> None:
    namespace: dict[str, Any] = {}
    exec(compile("def work(): ...", f"/opt/other/lib/{folder}/module.py", "exec"), namespace)
    assert not is_users(namespace["work"])
