"""A topology and a run in a notebook cell: one line as text, and the plan of a topology."""

from __future__ import annotations

import html

import pytest

from tests.topologies.recording import NotingBolt, NotingCommitter, RowsSpout
from txtopo import Fields, TopologyRun, TransactionalTopologyBuilder
from txtopo.engine.status import RunStatus, StatusBoard
from txtopo.plan import compiler, explain
from txtopo.topology.graph import TopologyGraph


@pytest.fixture
def graph() -> TopologyGraph:
    builder = TransactionalTopologyBuilder("a<b>", "rows", RowsSpout(), 3)
    builder.set_bolt("split & join", NotingBolt(), 2).shuffle_grouping("rows")
    builder.set_bolt("count", NotingCommitter()).fields_grouping("split & join", Fields("value"))
    return builder.build_topology()


def test_the_repr_of_a_topology_is_one_line_without_pickled_bytes(graph: TopologyGraph) -> None:
    assert repr(graph) == "<topology 'a<b>': rows x 3, split & join x 2, count x 1>"
    assert "\\x" not in repr(graph.components)


def test_a_notebook_shows_the_plan_of_a_topology_as_explain_does(graph: TopologyGraph) -> None:
    text = explain.explain(compiler.compile_plan(graph, 2))
    shown = graph._repr_mimebundle_()
    assert shown["text/plain"] == text
    assert shown["text/html"] == graph._repr_html_()
    assert html.unescape(graph._repr_html_()) == f"<pre>{text}</pre>"
    assert "topology a&lt;b&gt;, planned for 2 cores" in graph._repr_html_()
    assert "split &amp; join" in graph._repr_html_()


def test_the_repr_of_a_run_is_one_line_that_says_how_it_goes() -> None:
    run = TopologyRun.__new__(TopologyRun)
    run.name, run.topology_id = "nightly", "words"
    run._board = StatusBoard(
        RunStatus(
            "words",
            "nightly",
            state="running",
            current=42,
            active=((42, 0, "processing"),),
            last_error="a\nb",
        )
    )
    assert repr(run) == "<run 'nightly' of topology 'words': running, next txid 42, 1 in flight>"
