"""The promise of a Kafka sink to a query of Structured Streaming, on a real broker: each
micro-batch once, and no foreign checkpoint."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.kafka import KafkaServer
from tests.topologies.kafka_sinks import Sales
from tests.topologies.micro_batches import Frame, forget_resources, part
from txtopo.connectors.kafka import KafkaSink
from txtopo.errors import RowRefusedError, StateMismatchError, UsageError
from txtopo.sinks.streaming import ForeachBatch, ForeachWriter


@pytest.fixture(autouse=True)
def producers() -> Iterator[None]:
    yield
    forget_resources()


class Shop:
    """A topic of objects with id and cents, and a query that writes to it."""

    def __init__(self, kafka: KafkaServer) -> None:
        self.sales = Sales(kafka)
        self.query = f"q-{self.sales.topology_id}"

    def sink(self, **arguments: Any) -> KafkaSink:
        """A sink of objects."""
        return self.sales.sink(**{"format": "json", "key": "id", **arguments})

    def whole(self, **options: Any) -> ForeachBatch:
        """What a query of whole micro-batches is given."""
        return self.sink().foreach_batch(self.query, **options)

    def parts(self, partitions: int, **options: Any) -> ForeachWriter:
        """What a query of partitions is given, as an executor gets it."""
        writer: ForeachWriter = pickle.loads(
            pickle.dumps(self.sink().foreach_writer(self.query, partitions=partitions, **options))
        )
        return writer

    def clear(self, component: str) -> None:
        """Forget the query."""
        self.sales.kafka.delete_topic(f"txtopo.{self.query}.{component}")

    @property
    def rows(self) -> list[tuple[int, int]]:
        """The committed rows, sorted."""
        objects = [json.loads(value) for value in self.sales.values]
        return sorted((each["id"], each["cents"]) for each in objects)


@pytest.fixture
def shop(kafka: KafkaServer) -> Shop:
    return Shop(kafka)


class TestWholeBatches:
    @pytest.mark.rule(28)
    def test_a_batch_that_comes_again_is_written_once(self, shop: Shop) -> None:
        for batch, rows in enumerate([[(1, 10), (2, 20)], [], [(3, 30)]]):
            for _ in range(3):
                # The driver died: a new process, and rows in another order.
                forget_resources()
                shop.whole()(Frame(reversed(rows)), batch)
        assert shop.rows == [(1, 10), (2, 20), (3, 30)]

    @pytest.mark.rule(28)
    def test_a_batch_that_comes_again_with_other_rows_is_refused(self, shop: Shop) -> None:
        shop.whole()(Frame([(1, 10), (2, 20)]), 0)
        with pytest.raises(
            StateMismatchError,
            match=r"(?s)wrote 2 rows .* now has 1\n.*mend the query.*cannot be removed.*begin_at=0\.",
        ):
            shop.whole()(Frame([(1, 10)]), 0)
        assert shop.rows == [(1, 10), (2, 20)]

    @pytest.mark.in_gate("first", "None")
    @pytest.mark.rule(29)
    @pytest.mark.parametrize("checkpoint", ["first", "second", None])
    def test_a_checkpoint_that_is_new_or_older_is_refused_with_what_to_type(
        self, shop: Shop, checkpoint: str | None
    ) -> None:
        for batch in range(3):
            shop.whole()(Frame([(batch, 1)]), batch)
        said = rf"(?s)does not go with batch 0 of query '{shop.query}'.*txtopo store clear kafka:.* {shop.query}"
        with pytest.raises(StateMismatchError, match=said) as caught:
            shop.whole()(Frame([(7, 7)], checkpoint), 0)
        assert caught.value.exit_code == 6
        assert len(shop.rows) == 3

    @pytest.mark.in_gate("None")
    @pytest.mark.rule(28)
    @pytest.mark.parametrize("checkpoint", ["second", None])
    def test_a_query_that_is_forgotten_begins_anew_in_the_process_that_wrote_it(
        self, shop: Shop, checkpoint: str | None
    ) -> None:
        """As in a notebook. Spark Connect does not tell one checkpoint from another."""
        for now, batches in (("first" if checkpoint else None, 1), (checkpoint, 2)):
            for batch in range(batches):
                shop.whole()(Frame([(batch, 1)], now), batch)
            shop.clear("foreach_batch")
        assert shop.rows == [(0, 1), (0, 1), (1, 1)]

    @pytest.mark.usefixtures("sole_broker")
    @pytest.mark.rule(27)
    def test_an_auxiliary_topic_that_was_emptied_or_is_an_older_copy_is_refused(
        self, shop: Shop
    ) -> None:
        with pytest.raises(
            StateMismatchError, match=rf"(?s)batch 5 of query '{shop.query}'.*begin_at=N"
        ):
            shop.whole()(Frame([(5, 5)]), 5)
        shop.whole(begin_at=5)(Frame([(5, 5)]), 5)
        shop.whole(begin_at=5)(Frame([(6, 6)]), 6)
        with pytest.raises(StateMismatchError, match="is behind"):
            shop.whole(begin_at=5)(Frame([(8, 8)]), 8)
        assert shop.rows == [(5, 5), (6, 6)]

    @pytest.mark.rule(27)
    def test_begin_at_takes_the_topics_as_they_are(self, shop: Shop) -> None:
        for batch, begin_at in ((0, 0), (1, 0), (8, 8), (9, 8)):
            shop.whole(begin_at=begin_at)(Frame([(batch, batch)]), batch)
        assert shop.rows == [(n, n) for n in (0, 1, 8, 9)]

    def test_a_row_that_is_refused_fails_the_query_and_nothing_of_its_batch_is_kept(
        self, shop: Shop
    ) -> None:
        with pytest.raises(
            RowRefusedError, match=f"row 2 of component '{shop.query}', .*plain values are"
        ):
            shop.whole()(Frame([(1, 1), (2, {1})]), 0)
        with pytest.raises(UsageError, match="gets no field 'id'; there are"):
            shop.whole()(Frame([(1,)], columns=["cents"]), 0)
        shop.whole()(Frame([(1, 1), (2, 2)]), 0)
        assert shop.rows == [(1, 1), (2, 2)]


class TestPartitions:
    @pytest.mark.rule(28)
    def test_partitions_of_an_epoch_that_comes_again_are_written_once_each(
        self, shop: Shop
    ) -> None:
        part(shop.parts(3), 1, 0, [(1, 0)])
        part(shop.parts(3), 0, 0, [(2, 0)], error=ValueError("the task failed"))
        for partition in range(3):
            part(shop.parts(3), partition, 0, [(n, 0) for n in range(3) if n == partition])
        for partition in range(3):
            part(shop.parts(3), partition, 1, [(partition, 1)])
            forget_resources()
            part(shop.parts(3), partition, 1, [(partition, 1)])
        assert shop.rows == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]

    @pytest.mark.in_gate("1")
    @pytest.mark.rule(28)
    @pytest.mark.parametrize("handed_over", [0, 1, 2])
    def test_a_part_of_a_partition_never_passes_for_the_whole(
        self, shop: Shop, handed_over: int
    ) -> None:
        """Spark ends a partition whose task failed as if the partition were complete."""
        part(shop.parts(1), 0, 0, [(0, 0)])
        rows = [(1, 0), (2, 0), (3, 0)]
        part(shop.parts(1), 0, 1, rows[:handed_over])
        said = (
            rf"(?s)wrote {handed_over} rows of component 'foreach', task 0, .* now has 3\n.* foreach_batch .*"
            r"batch 1 cannot be removed from a topic.*txtopo store clear kafka:.*begin_at=1\."
        )
        with pytest.raises(StateMismatchError, match=said):
            part(shop.parts(1), 0, 1, rows)
        assert shop.rows == [(0, 0), *rows[:handed_over]]
        shop.clear("foreach")
        part(shop.parts(1, begin_at=1), 0, 1, rows)
        assert shop.rows == sorted([(0, 0), *rows[:handed_over], *rows])

    @pytest.mark.in_gate("3-2")
    @pytest.mark.rule(29)
    @pytest.mark.parametrize(("before", "now"), [(3, 2), (2, 3)])
    def test_an_epoch_that_was_begun_with_another_number_of_partitions_is_refused_and_the_next_may_have_it(
        self, shop: Shop, before: int, now: int
    ) -> None:
        for partition in range(before):
            part(shop.parts(before), partition, 0, [(0, 0)] if partition == 0 else [])
        part(shop.parts(before), 0, 1, [(1, 1)])
        for partition in range(now):
            with pytest.raises(
                StateMismatchError,
                match=f"begun with {before} partitions, and now has {now}\n.*partitions={before}",
            ):
                part(shop.parts(now), partition, 1, [(2, 1)])
        for partition in range(1, before):
            part(shop.parts(before), partition, 1, [(2, 1)] if partition == 1 else [])
        part(shop.parts(now), 0, 2, [(3, 2)])
        assert shop.rows == [(0, 0), (1, 1), (2, 1), (3, 2)]

    @pytest.mark.rule(27, 34)
    def test_an_auxiliary_topic_that_lacks_what_one_partition_wrote_is_refused_there(
        self, shop: Shop
    ) -> None:
        for partition, epoch in ((0, 0), (1, 0), (2, 0), (0, 1), (2, 1)):
            part(shop.parts(3), partition, epoch, [(partition, epoch)])
        with pytest.raises(
            StateMismatchError,
            match=r"(?s)is behind: .* has recorded 2:0.*fewer partitions than partitions=N",
        ):
            part(shop.parts(3), 1, 2, [(1, 2)])
        assert len(shop.rows) == 5

    @pytest.mark.rule(34)
    def test_a_stream_with_fewer_partitions_than_was_said_goes_on_as_the_refusal_says(
        self, shop: Shop
    ) -> None:
        part(shop.parts(3), 0, 0, [(0, 0)])
        forget_resources()
        with pytest.raises(
            StateMismatchError,
            match=r"partitions=N says, give their number, and with it begin_at=1\.",
        ):
            part(shop.parts(1), 0, 1, [(0, 1)])
        for epoch in (1, 2):
            part(shop.parts(1, begin_at=1), 0, epoch, [(0, epoch)])
        assert shop.rows == [(0, 0), (0, 1), (0, 2)]

    @pytest.mark.rule(29)
    def test_a_late_task_of_an_older_epoch_fails_and_changes_nothing(self, shop: Shop) -> None:
        for partition, epoch in ((0, 0), (1, 0), (0, 1)):
            part(shop.parts(2), partition, epoch, [(0, epoch)] if partition == 0 else [])
        forget_resources()
        with pytest.raises(StateMismatchError, match="batch 1 has been written"):
            part(shop.parts(2), 1, 0, [(1, 0)])
        assert shop.rows == [(0, 0), (0, 1)]
