"""Costs of reading and writing topics of Kafka: spouts and sink against clients by hand, topologies
against Structured Streaming.
"""

from __future__ import annotations

import statistics
from functools import partial

from bench import peers, topics
from bench.line import Figure, Line, Measured, Stage
from bench.lines.transactions import checkpoints
from bench.race import interleaved, ratio, values

ROWS = 1_000_000
OF_BATCH = 100
_RECORD = "JSON objects of some 80 bytes, one partition"


def _rows(stage: Stage) -> Measured:
    """One batch of many records."""
    rows = stage.pick(ROWS, ROWS // 5)
    contender = stage.start("kafka_reads:Reads", servers=_server(stage), rows=rows)
    ways = (
        "tuples",
        "by hand",
        "columns",
        "by hand, columns",
        "json columns",
        "by hand, json columns",
    )
    samples = interleaved(
        {way: partial(contender.block, way=way, rows=rows) for way in ways}, stage.pick(5, 3)
    )
    rates = {way: values(samples[way], "rows_per_second") for way in ways}
    ratios = (
        ratio(
            "records/s, spout of tuples : consume(1000) by hand",
            rates["tuples"],
            rates["by hand"],
            "higher",
            0.8,
        ),
        ratio(
            "records/s, spout of columns : consume(1000) into Arrow by hand",
            rates["columns"],
            rates["by hand, columns"],
            "higher",
            0.8,
        ),
        ratio(
            "records/s, JSON in columns : read_json by hand",
            rates["json columns"],
            rates["by hand, json columns"],
            "higher",
        ),
    )
    figures = tuple(
        Figure(way, statistics.median(rate), "records/s") for way, rate in rates.items()
    )
    return Measured(
        ratios,
        figures,
        {"records": f"{rows:,} {_RECORD}", "by hand": "with the spout's settings of the consumer"},
    )


def _small(stage: Stage) -> Measured:
    """Batches of few records, each at a position of its own; and one after another."""
    batches = stage.pick(300, 50)
    contender = stage.start("kafka_reads:Reads", servers=_server(stage), rows=OF_BATCH * batches)
    block = partial(contender.block, rows=OF_BATCH, batches=batches)
    blocks = {
        "going on": partial(block, way="tuples"),
        "elsewhere": partial(block, way="tuples", jumps=True),
        "by hand": partial(block, way="by hand", jumps=True),
    }
    samples = interleaved(blocks, stage.pick(5, 3))
    times = {name: values(sample, "ms_per_batch") for name, sample in samples.items()}
    ratios = (
        ratio(
            "time per batch, spout where the last batch ended : assign and consume by hand",
            times["going on"],
            times["by hand"],
            "lower",
            2.0,
        ),
        ratio(
            "time per batch, spout elsewhere each time : assign and consume by hand",
            times["elsewhere"],
            times["by hand"],
            "lower",
            2.0,
        ),
    )
    figures = tuple(
        Figure(name, statistics.median(time), "ms per batch") for name, time in times.items()
    )
    return Measured(
        ratios,
        figures,
        {"batch": f"{OF_BATCH} {_RECORD}", "by hand": "with the spout's settings of the consumer"},
    )


def _writes(stage: Stage) -> Measured:
    """A sink's transactions, small and large."""
    batches, large = stage.pick(200, 50), stage.pick(100_000, 20_000)
    contender = stage.start("kafka_writes:Writes", servers=_server(stage))
    ways = ("sink", "transactions", "producer")
    small = interleaved(
        {way: partial(contender.block, way=way, rows=OF_BATCH, batches=batches) for way in ways},
        stage.pick(5, 3),
    )
    many = interleaved(
        {way: partial(contender.block, way=way, rows=large, batches=3) for way in ways},
        stage.pick(5, 3),
    )
    times = {way: values(small[way], "ms_per_batch") for way in ways}
    rates = {way: values(many[way], "rows_per_second") for way in ways}
    return Measured(
        (
            ratio(
                f"time per {OF_BATCH} records, sink : begin, produce and commit by hand",
                times["sink"],
                times["transactions"],
                "lower",
                1.3,
            ),
            ratio(
                f"records/s, {large:,} at once, sink : idempotent producer",
                rates["sink"],
                rates["producer"],
                "higher",
                0.8,
            ),
        ),
        (
            *(
                Figure(f"{way}, {OF_BATCH} records", statistics.median(time), "ms")
                for way, time in times.items()
            ),
            *(
                Figure(f"{way}, {large:,} records", statistics.median(rate), "records/s")
                for way, rate in rates.items()
            ),
        ),
        {
            "record": "a JSON object of some 80 bytes, as bytes, for one partition",
            "sink": "with stamp_headers=False, since the programs by hand write no headers either",
            "transactions, producer": "by hand, both idempotent, with the library's settings",
        },
    )


def _counts(stage: Stage) -> Measured:
    """GlobalCount over a topic, against Structured Streaming with its own Kafka source."""
    jars = peers.jars()
    servers, pending = _server(stage), 4
    transactions, large = stage.pick(60, 20), 200_000
    warm = 2 * pending + 5
    topics.make(servers, "small")
    rows = OF_BATCH * (transactions + 2 * warm)
    topics.fill(servers, "small", map(topics.value, range(rows)))
    topics.make(servers, "large", 2)
    for partition in range(2):
        topics.fill(servers, "large", map(topics.value, range(6 * large)), partition)
    ours = stage.start("kafka_topologies:Counts")
    theirs = stage.start(
        "streaming:Streaming",
        python=peers.PYTHON,
        checkpoints=checkpoints(stage),
        more={
            "spark.jars": jars,
            # Its name in that version.
            "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager",
        },
    )
    peer = partial(theirs.block, kind="count-python", servers=servers)
    small = interleaved(
        {
            "txtopo": partial(
                ours.block,
                servers=servers,
                topic="small",
                partitions=1,
                rows_per_batch=OF_BATCH,
                transactions=transactions,
                pending=pending,
                warm=warm,
            ),
            "peer": partial(
                peer, topic="small", rows_per_batch=OF_BATCH, transactions=transactions
            ),
        },
        stage.pick(3, 1),
    )
    many = interleaved(
        {
            "txtopo": partial(
                ours.block,
                servers=servers,
                topic="large",
                partitions=2,
                rows_per_batch=large,
                transactions=5,
                pending=2,
                warm=2,
            ),
            "peer": partial(peer, topic="large", rows_per_batch=large, transactions=5, warm=2),
        },
        stage.pick(3, 1),
    )
    rates = {name: [transactions / s for s in values(small[name], "seconds")] for name in small}
    by_row = {name: [5 * large / s for s in values(many[name], "seconds")] for name in many}
    peer_name = "Structured Streaming, per-row Python"
    return Measured(
        (
            ratio(
                f"transactions/s, txtopo : {peer_name}",
                rates["txtopo"],
                rates["peer"],
                "higher",
                5.0,
            ),
            ratio(
                f"records/s, txtopo : {peer_name}", by_row["txtopo"], by_row["peer"], "higher", 3.0
            ),
        ),
        (
            Figure("txtopo", statistics.median(rates["txtopo"]), "transactions/s"),
            Figure(peer_name, statistics.median(rates["peer"]), "transactions/s"),
            Figure("txtopo, large batches", statistics.median(by_row["txtopo"]), "records/s"),
            Figure(f"{peer_name}, large batches", statistics.median(by_row["peer"]), "records/s"),
        ),
        {
            "small": f"{OF_BATCH} records per batch, one partition; txtopo with max_spout_pending {pending}",
            "large": f"{large:,} records per batch, two partitions; txtopo with max_spout_pending 2",
            "Structured Streaming": "pyspark 4.0.0, the newest version whose Kafka source Maven's repository has whole",
        },
    )


def _chain(stage: Stage) -> Measured:
    """From topic to topic."""
    servers, transactions = _server(stage), stage.pick(200, 40)
    topics.make(servers, "lines")
    rows = OF_BATCH * (transactions + 3 * max(_WIDTHS) + 5)
    topics.fill(servers, "lines", map(topics.value, range(rows)))
    block = {
        "servers": servers,
        "topic": "lines",
        "rows_per_batch": OF_BATCH,
        "transactions": transactions,
    }
    ours, loop = stage.start("kafka_topologies:Chain"), stage.start("kafka_topologies:Loop")
    widths = {f"txtopo, max_spout_pending {n}": n for n in _WIDTHS}
    samples = interleaved(
        {
            **{name: partial(ours.block, pending=n, **block) for name, n in widths.items()},
            "by hand": partial(loop.block, **block),
        },
        stage.pick(3, 1),
    )
    rates = {
        name: [transactions / seconds for seconds in values(each, "seconds")]
        for name, each in samples.items()
    }
    best = max(widths, key=lambda name: statistics.median(rates[name]))
    return Measured(
        (
            ratio(
                "transactions/s, txtopo : the loop by hand",
                rates[best],
                rates["by hand"],
                "higher",
                0.25,
            ),
        ),
        tuple(
            Figure(name, statistics.median(rate), "transactions/s") for name, rate in rates.items()
        ),
        {
            "batch": f"{OF_BATCH} {_RECORD}; the ratio is for {best}",
            "by hand": "records and the consumer's positions in one transaction, one process",
        },
    )


_WIDTHS = (1, 4, 8)


def _server(stage: Stage) -> str:
    return str(stage.start("kafka_reads:Server", name="kafka").block()["address"])


LINES = (
    Line("kafka.rows", "What does reading a topic cost beside a consumer by hand?", _rows),
    Line("kafka.small-batches", "And batches of a hundred records?", _small),
    Line("kafka.sink", "What does writing to a topic cost beside a producer by hand?", _writes),
    Line(
        "kafka.counts",
        "How many records and transactions per second, against Structured Streaming with its Kafka source?",
        _counts,
        in_quick=False,
    ),
    Line("kafka.chain", "From topic to topic, against the loop by hand?", _chain),
)
