"""Clocks are shifted under the user's code: dependence on the time of day is found, dependence on
``opened_at`` is allowed."""

from __future__ import annotations

import datetime
import inspect
import pickle
import time
from typing import Any

import pytest

from tests.wrong import clock_bolts, clock_helper, readers
from tests.wrong.clock_bolts import RIGHT, WAYS, ByTime, Impatient, topology
from tests.wrong.readers import Reader
from txtopo.testing import Simulation
from txtopo.testing.simulator import mistakes
from txtopo.testing.simulator.clocks import Clocks
from txtopo.testing.simulator.decisions import Script

HOUR_S = 3600.0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.rule(28, 36)
def test_a_bolt_that_asks_for_the_time_is_found(way: str) -> None:
    with Simulation(topology(ByTime(way))) as simulation:
        violation = simulation.run(0).violation
    assert violation is not None
    assert (violation.component, violation.mistakes) == ("clicks", (mistakes.CLOCK.name,))
    assert "context.opened_at" in str(violation)


def line_of(reader: type[Reader]) -> str:
    lines, first = inspect.getsourcelines(reader)
    return f"line {next(number for number, line in enumerate(lines, first) if line.endswith('# here' + chr(10)))} of readers.py"


@pytest.mark.in_gate("Today", "Imported", "ByHelper", "Urandom")
@pytest.mark.parametrize(
    "reader", [*readers.CLOCKS, *readers.DICE], ids=lambda reader: reader.__name__
)
@pytest.mark.rule(10, 36)
def test_the_component_and_the_line_that_read_the_clock_or_draw_a_number_are_named(
    reader: type[Reader],
) -> None:
    mistake = mistakes.CLOCK if reader in readers.CLOCKS else mistakes.CHANCE
    line = "clock_helper.py" if reader is readers.ByHelper else line_of(reader)
    for checks_parts in (True, False):
        with Simulation(readers.topology(reader)) as simulation:
            violation = (simulation.check_parts() if checks_parts else None) or simulation.run(
                5
            ).violation
        assert violation is not None
        assert (violation.component, violation.mistakes) == ("read", (mistake.name,)), str(
            violation
        )
        assert line in str(violation)


@pytest.mark.in_gate("opened_at")
@pytest.mark.parametrize("way", RIGHT)
@pytest.mark.rule(36)
def test_independence_of_the_moment_is_no_finding(way: str) -> None:
    with Simulation(topology(ByTime(way))) as simulation:
        report = simulation.run(80)
    assert report.violation is None, str(report)
    assert report.faults["clock"] > 0


def test_time_that_passes_between_two_attempts_is_found() -> None:
    with Simulation(topology(Impatient(""))) as simulation:
        assert simulation.run(0).violation is None, (
            "without failures the clock is another, but does not jump"
        )
        report = simulation.run(80)
        assert report.violation is not None
        assert simulation.replay(report.violation.script), "a jump can be played again"
        assert simulation.replay(Script()) == [], "and is over then"
    assert report.violation.mistakes[0] == mistakes.CLOCK.name
    assert any(fault.kind == "clock" for fault in report.violation.script.faults)
    assert any("the clock jumps" in line for line in report.violation.trace)


# -- what is put in the place of time and datetime -----------------------------------------------


@pytest.fixture
def shifted() -> Any:
    namespace: dict[str, Any] = {"__builtins__": __builtins__}
    source = "import time, datetime\nfrom datetime import datetime as Moment, date\nfrom time import time as now\n"
    exec(source, namespace)
    clocks = Clocks([namespace])
    clocks.shift(1000 * HOUR_S)
    yield namespace
    clocks.restore()


def evaluated(namespace: dict[str, Any], text: str) -> Any:
    return eval(text, namespace)


def test_the_clock_of_a_namespace_is_shifted_and_no_other(shifted: dict[str, Any]) -> None:
    for text in (
        "time.time()",
        "now()",
        "Moment.now().timestamp()",
        "datetime.datetime.now(datetime.UTC).timestamp()",
        "time.time_ns() / 1e9",
    ):
        assert 999 * HOUR_S < evaluated(shifted, text) - time.time() < 1001 * HOUR_S
    assert evaluated(shifted, "date.today()") - datetime.date.today() >= datetime.timedelta(days=41)
    assert abs(evaluated(shifted, "time.monotonic()") - time.monotonic()) < HOUR_S
    assert abs(datetime.datetime.now().timestamp() - time.time()) < HOUR_S


def test_a_shifted_clock_returns_ordinary_values(shifted: dict[str, Any]) -> None:
    texts = (
        "Moment(2026, 1, 2, 3)",
        "Moment.fromtimestamp(0)",
        "Moment.strptime('2026', '%Y')",
        "Moment.combine(date(2026, 1, 2), Moment.min.time())",
    )
    for text in ("Moment.now()", *texts):
        moment = evaluated(shifted, text)
        assert type(moment) is datetime.datetime
        assert pickle.loads(pickle.dumps(moment)) == moment
        assert evaluated(
            {**shifted, "moment": moment}, "isinstance(moment, Moment) and isinstance(moment, date)"
        )
    assert type(evaluated(shifted, "date.today()")) is datetime.date
    assert evaluated(shifted, "issubclass(Moment, date)")
    assert not evaluated(shifted, "isinstance(date(2026, 1, 2), Moment)")


def test_the_users_modules_get_their_own_clock_back() -> None:
    with Simulation(topology(ByTime("time.time"))) as simulation:
        simulation.run(5)
    for module in (clock_bolts, clock_helper):
        assert vars(module)["time"] is time
    assert vars(clock_bolts)["Moment"] is datetime.datetime
