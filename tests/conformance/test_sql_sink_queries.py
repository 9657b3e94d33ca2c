"""The promise of a sink to a query of Structured Streaming, over every database: each micro-batch
once, and no foreign checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.micro_batches import Frame, forget_resources, part
from tests.topologies.sinks import BACKENDS, KINDS, LOOSE, SALES, Shop, cases, shop
from txtopo.connectors.sql import SqlSink
from txtopo.errors import RowRefusedError, SetupError, StateMismatchError, UsageError
from txtopo.sinks.streaming import ForeachBatch, ForeachWriter


@pytest.fixture(autouse=True)
def connections() -> Iterator[None]:
    yield
    forget_resources()


@pytest.fixture(params=BACKENDS)
def sales(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return shop(request.param, tmp_path, LOOSE)


def whole(sales: Shop, **options: Any) -> ForeachBatch:
    return sales.sink(columns=None).foreach_batch("q", **options)


class TestWholeBatches:
    @pytest.mark.rule(28)
    def test_a_batch_that_comes_again_is_written_once(self, sales: Shop) -> None:
        for batch, rows in enumerate([[(1, 10), (2, 20)], [], [(3, 30)]]):
            for _ in range(3):
                # The driver died: a new process, and rows in another order.
                whole(sales)(Frame(reversed(rows)), batch)
        assert sales.sales == [(1, 10), (2, 20), (3, 30)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(28)
    def test_a_batch_that_comes_again_with_other_rows_is_refused(self, sales: Shop) -> None:
        whole(sales)(Frame([(1, 10), (2, 20)]), 0)
        with pytest.raises(
            StateMismatchError,
            match=r"(?s)wrote 2 rows .* now has 1\n.*mend the query.*begin_at=0\.",
        ):
            whole(sales)(Frame([(1, 10)]), 0)
        assert sales.sales == [(1, 10), (2, 20)]

    @pytest.mark.in_gate("sqlite*")
    def test_a_column_may_have_any_name_and_a_frame_that_was_mended_is_taken(
        self, sales: Shop
    ) -> None:
        sales.execute("CREATE TABLE lots (id INTEGER, batch TEXT)")
        query = SqlSink(sales.address, "lots").foreach_batch("q")
        with pytest.raises(SetupError, match="nowhere"):
            query(Frame([(1, "a")], columns=["id", "nowhere"]), 0)
        query(Frame([(1, "a"), (2, "b")], columns=["id", "batch"]), 0)
        assert sorted(sales.execute("SELECT id, batch FROM lots")) == [(1, "a"), (2, "b")]

    @pytest.mark.in_gate("sqlite*")
    def test_columns_are_those_of_the_frame_or_those_that_were_named(self, sales: Shop) -> None:
        whole(sales)(Frame([(10, 1)], columns=["cents", "id"]), 0)
        sales.sink(columns={"id": "number", "cents": "price"}).foreach_batch("r")(
            Frame([("x", 20, 2)], columns=["article", "price", "number"]), 0
        )
        assert sales.sales == [(1, 10), (2, 20)]
        with pytest.raises(UsageError, match="gets no field 'cents'; there are id"):
            sales.sink().foreach_batch("s")(Frame([(1,)], columns=["id"]), 0)

    @pytest.mark.in_gate("sqlite*")
    def test_queries_of_different_ids_write_to_one_table(self, sales: Shop) -> None:
        for query in ("a", "b"):
            sales.sink().foreach_batch(query)(Frame([(1, 1)]), 0)
        assert sales.sales == [(1, 1), (1, 1)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(29)
    @pytest.mark.parametrize("checkpoint", ["first", "second", None])
    def test_a_checkpoint_that_is_new_or_older_is_refused_with_what_to_type(
        self, sales: Shop, checkpoint: str | None
    ) -> None:
        for batch in range(3):
            whole(sales)(Frame([(batch, 1)]), batch)
        said = r"(?s)does not go with batch 0 of query 'q'.*txtopo store clear .* sink_transactions --topology q"
        with pytest.raises(StateMismatchError, match=said) as caught:
            whole(sales)(Frame([(7, 7)], checkpoint), 0)
        assert caught.value.exit_code == 6
        assert len(sales.sales) == 3

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(27)
    def test_a_new_checkpoint_at_the_very_batch_the_table_has_is_refused_too(
        self, sales: Shop
    ) -> None:
        whole(sales)(Frame([(1, 1)]), 0)
        with pytest.raises(StateMismatchError, match="generation first"):
            whole(sales)(Frame([(2, 2)], "second"), 0)
        sales.sink().ledger.clear("q")
        whole(sales)(Frame([(2, 2)], "second"), 0)
        assert sales.sales == [(1, 1), (2, 2)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(27)
    def test_a_database_that_was_emptied_or_is_an_older_copy_is_refused(self, sales: Shop) -> None:
        with pytest.raises(StateMismatchError, match=r"(?s)batch 5 of query 'q'.*begin_at=N"):
            whole(sales)(Frame([(5, 5)]), 5)
        whole(sales, begin_at=5)(Frame([(5, 5)]), 5)
        whole(sales, begin_at=5)(Frame([(6, 6)]), 6)
        with pytest.raises(StateMismatchError, match="is behind"):
            whole(sales, begin_at=5)(Frame([(8, 8)]), 8)
        assert sales.sales == [(5, 5), (6, 6)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(27)
    @pytest.mark.parametrize(("backend", "kind"), cases(KINDS))
    def test_begin_at_keeps_all_rows_of_the_table(
        self, tmp_path: Path, backend: str, kind: str
    ) -> None:
        strict = shop(backend, tmp_path, SALES)
        for batch, begin_at in ((0, 0), (1, 0), (8, 8), (9, 8)):
            strict.sink(kind).foreach_batch("q", begin_at=begin_at)(Frame([(batch, batch)]), batch)
        for epoch, begin_at in ((10, 10), (15, 15), (16, 15)):
            part(
                strict.sink(kind).foreach_writer("q", partitions=1, begin_at=begin_at),
                0,
                epoch,
                [(epoch, epoch)],
            )
        assert strict.sales == [(n, n) for n in (0, 1, 8, 9, 10, 15, 16)]

    def test_a_row_that_is_refused_fails_the_query_and_nothing_of_its_batch_is_kept(
        self, tmp_path: Path
    ) -> None:
        for backend in BACKENDS:
            strict = shop(backend, tmp_path, SALES)
            with pytest.raises(RowRefusedError, match="row 2 of component 'foreach_batch'"):
                whole(strict)(Frame([(1, 1), (2, -2)]), 0)
            whole(strict)(Frame([(1, 1), (2, 2)]), 0)
            assert strict.sales == [(1, 1), (2, 2)]


class TestPartitions:
    @pytest.mark.rule(28)
    def test_partitions_of_an_epoch_that_comes_again_are_written_once_each(
        self, sales: Shop
    ) -> None:
        def writer() -> ForeachWriter:
            return sales.sink(columns=None).foreach_writer("q", partitions=3)

        part(writer(), 1, 0, [(1, 0)])
        part(writer(), 0, 0, [(2, 0)], error=ValueError("the task failed"))
        for partition in range(3):
            part(writer(), partition, 0, [(n, 0) for n in range(3) if n == partition])
        for partition in range(3):
            part(writer(), partition, 1, [(partition, 1)])
            part(writer(), partition, 1, [(partition, 1)])
        assert sales.sales == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(28)
    @pytest.mark.parametrize("handed_over", [0, 1, 2])
    def test_a_part_of_a_partition_never_passes_for_the_whole(
        self, sales: Shop, handed_over: int
    ) -> None:
        """Spark ends a partition whose task failed as if the partition were complete."""
        part(sales.sink().foreach_writer("q", partitions=1), 0, 0, [(0, 0)])
        rows = [(1, 0), (2, 0), (3, 0)]
        part(sales.sink().foreach_writer("q", partitions=1), 0, 1, rows[:handed_over])
        said = (
            rf"(?s)wrote {handed_over} rows of component 'foreach', task 0, .* now has 3\n.* foreach_batch .*"
            r"Remove the rows of batch 1 .*txtopo store clear .*begin_at=1\."
        )
        with pytest.raises(StateMismatchError, match=said):
            part(sales.sink().foreach_writer("q", partitions=1), 0, 1, rows)
        assert sales.sales == [(0, 0), *rows[:handed_over]]
        sales.execute("DELETE FROM sales WHERE id > 0")
        sales.sink().ledger.clear("q")
        part(sales.sink().foreach_writer("q", partitions=1, begin_at=1), 0, 1, rows)
        assert sales.sales == [(0, 0), *rows]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(29)
    @pytest.mark.parametrize(("before", "now"), [(3, 2), (2, 3)])
    def test_an_epoch_that_was_begun_with_another_number_of_partitions_is_refused_and_the_next_may_have_it(
        self, sales: Shop, before: int, now: int
    ) -> None:
        sink = sales.sink()
        for partition in range(before):
            part(
                sink.foreach_writer("q", partitions=before),
                partition,
                0,
                [(0, 0)] if partition == 0 else [],
            )
        part(sink.foreach_writer("q", partitions=before), 0, 1, [(1, 1)])
        with pytest.raises(
            StateMismatchError,
            match=f"begun with {before} partitions, and now has {now}\n.*partitions={before}",
        ):
            part(sink.foreach_writer("q", partitions=now), 1, 1, [(2, 1)])
        for partition in range(1, before):
            part(
                sink.foreach_writer("q", partitions=before),
                partition,
                1,
                [(2, 1)] if partition == 1 else [],
            )
        part(sink.foreach_writer("q", partitions=now), 0, 2, [(3, 2)])
        assert sales.sales == [(0, 0), (1, 1), (2, 1), (3, 2)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(27, 34)
    def test_a_database_that_lacks_what_one_partition_wrote_is_refused_by_the_next_epoch(
        self, sales: Shop
    ) -> None:
        writer = sales.sink().foreach_writer("q", partitions=3)
        for partition, epoch in ((0, 0), (1, 0), (2, 0), (0, 1), (2, 1)):
            part(writer, partition, epoch, [(partition, epoch)])
        said = r"(?s)behind: it holds 2 store transactions of attempt 2:3 .*has recorded 3.*fewer partitions than partitions=N"
        for partition in range(3):
            with pytest.raises(StateMismatchError, match=said):
                part(writer, partition, 2, [(partition, 2)])
        part(writer, 1, 1, [(1, 1)])
        part(writer, 1, 2, [(1, 2)])
        assert len(sales.sales) == 7

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(34)
    def test_a_stream_with_fewer_partitions_than_was_said_goes_on_as_the_refusal_says(
        self, sales: Shop
    ) -> None:
        part(sales.sink().foreach_writer("q", partitions=3), 0, 0, [(0, 0)])
        with pytest.raises(
            StateMismatchError,
            match=r"partitions=N says, give their number, and with it begin_at=1\.",
        ):
            part(sales.sink().foreach_writer("q", partitions=1), 0, 1, [(0, 1)])
        for epoch in (1, 2):
            part(sales.sink().foreach_writer("q", partitions=1, begin_at=1), 0, epoch, [(0, epoch)])
        assert sales.sales == [(0, 0), (0, 1), (0, 2)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(27, 34)
    def test_a_table_that_was_adopted_is_taken_as_it_is(self, sales: Shop) -> None:
        writer = sales.sink().foreach_writer("q", partitions=2)
        part(writer, 0, 0, [(0, 0)])
        sales.sink().ledger.adopt("q", "unknown", 1, ["foreach"])
        part(writer, 0, 1, [(0, 1)])
        assert sales.sales == [(0, 0), (0, 1)]

    @pytest.mark.in_gate("sqlite*")
    @pytest.mark.rule(29)
    def test_a_late_task_of_an_older_epoch_fails_and_changes_nothing(self, sales: Shop) -> None:
        writer = sales.sink().foreach_writer("q", partitions=2)
        for partition, epoch in ((0, 0), (1, 0), (0, 1)):
            part(writer, partition, epoch, [(0, epoch)] if partition == 0 else [])
        with pytest.raises(StateMismatchError, match="batch 1 has been written"):
            part(writer, 1, 0, [(1, 0)])
        assert sales.sales == [(0, 0), (0, 1)]
