"""Count every word in the Python standard library's sources, then check the result against plain
Python.

::

    lines ×2 ──none──► split ×2 ──word──► count ×2 (committer) ──none──► bucketize ×1 ──bucket──► buckets ×2 (committer)

Every .py file in the running interpreter's standard library, without installed packages, is read
line by line. A *word* is any run of letters, digits and underscores that does not begin with a
digit, in code, comments and texts alike. About thirty transactions read a megabyte each. A
``split`` task first adds up its part of the batch, so that few rows travel. The buckets say how
many words occur 1, 2–3, 4–7, 8–15 … times. Counts and buckets are txtopo aggregates.

``txtopo demo`` runs the topology, prints the results, and counts again without txtopo: every count
must be equal. Kill the demo at any moment and run it again. ``python -m txtopo.demo.stdlib_words
report`` prints the results again. The store is the file named by TXTOPO_STARTER_STORE, otherwise
.txtopo/demo/words.db, with tables ``stdlib_counts`` and ``stdlib_buckets``.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import txtopo
from txtopo import (
    BaseBasicBolt,
    BaseBatchBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    Config,
    Fields,
    OutputFieldsDeclarer,
    Sum,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.connectors.files import FileTransactionalSpout
from txtopo.stores import SqliteStore

PARTITIONS = 4
BYTES_PER_BATCH = 320 * 1024
"""Per partition. The four partitions read 1.25 MiB per transaction."""
NOT_OURS = frozenset({"site-packages", "dist-packages"})
STORE_PATH = ".txtopo/demo/words.db"
WORD = re.compile(r"[^\W\d]\w*")


def stdlib_files() -> list[str]:
    """The standard library's sources, sorted."""
    sources: list[str] = []
    for directory, below, files in os.walk(sysconfig.get_path("stdlib")):
        below[:] = [name for name in below if name not in NOT_OURS]
        sources.extend(os.path.join(directory, name) for name in files if name.endswith(".py"))
    return sorted(sources)


class SplitWords(BaseBatchBolt):
    """Counts the words in its part of the batch. Emits each word once, with its count."""

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.collector, self.attempt = collector, attempt
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts.update(WORD.findall(tup[1]))

    def finish_batch(self) -> None:
        for word, count in self.counts.items():
            self.collector.emit([self.attempt, word, count])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "count"))


class Bucketize(BaseBasicBolt):
    """Takes a word's changed count, and emits bucket changes: +1 for the word's new bucket, -1 for
    the old bucket."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        attempt, _, prev, count = tup.values
        bucket = bucket_of(count)
        if prev is None:
            collector.emit([attempt, bucket, 1])
        elif bucket_of(prev) != bucket:
            collector.emit([attempt, bucket, 1])
            collector.emit([attempt, bucket_of(prev), -1])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "bucket", "delta"))


def bucket_of(count: int) -> int:
    """The bucket for ``count``. Bucket b holds the words that occur 2**b … 2**(b + 1) - 1 times."""
    return count.bit_length() - 1


def open_stores(path: str | Path | None = None) -> tuple[SqliteStore, SqliteStore]:
    """The stores word → count and bucket → number of words: two tables in one file."""
    file = Path(path or os.environ.get("TXTOPO_STARTER_STORE") or STORE_PATH).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(file, "stdlib_counts"), SqliteStore(file, "stdlib_buckets")


def make_topology(store_path: str | Path | None = None, spout: Any = None) -> Any:
    """The topology, over ``spout`` (default: the standard library), counting into the stores at
    ``store_path``."""
    counts, buckets = open_stores(store_path)
    spout = spout or FileTransactionalSpout(
        stdlib_files(), bytes_per_batch=BYTES_PER_BATCH, partitions=PARTITIONS, errors="replace"
    )
    builder = TransactionalTopologyBuilder("stdlib-words", "lines", spout, 2)
    builder.set_bolt("split", SplitWords(), 2).none_grouping("lines")
    builder.set_aggregate("count", Sum("count"), counts, 2).group_by("split", Fields("word"))
    builder.set_bolt("bucketize", Bucketize()).none_grouping("count")
    builder.set_aggregate("buckets", Sum("delta"), buckets, 2).group_by(
        "bucketize", Fields("bucket")
    )
    return builder.build_topology()


def independent_count() -> dict[str, int]:
    """The same counts, made by one process in plain Python."""
    counts: Counter[str] = Counter()
    for file in stdlib_files():
        counts.update(WORD.findall(Path(file).read_text(encoding="utf-8", errors="replace")))
    return dict(counts)


def report(
    counts: Mapping[str, int], buckets: Mapping[int, int], expected: Mapping[str, int]
) -> tuple[str, bool]:
    """The stores' contents as text, and whether every word and every bucket has its ``expected``
    count."""
    lines = [f"{len(counts)} words, {sum(counts.values())} occurrences", "", "the 20 most frequent"]
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines.extend(
        f"{rank:>4}  {word:<24} {count:>9}" for rank, (word, count) in enumerate(ranked[:20], 1)
    )
    lines.extend(["", "words by how often they occur"])
    most = max(buckets.values(), default=0)
    for bucket in sorted(bucket for bucket, words in buckets.items() if words):
        span = f"{2**bucket} – {2 ** (bucket + 1) - 1}" if bucket else "1"
        lines.append(f"{span:>19} {buckets[bucket]:>9}  {'█' * -(-buckets[bucket] * 50 // most)}")
    different = sorted(
        word for word in counts.keys() | expected.keys() if counts.get(word) != expected.get(word)
    )
    misplaced = Counter(map(bucket_of, expected.values())) != Counter(
        {bucket: words for bucket, words in buckets.items() if words}
    )
    lines.append("")
    if different:
        lines.append(
            f"NOT EQUAL: {len(different)} of {len(expected)} words differ from a plain count (stored, counted):"
        )
        lines.extend(
            f"      {word:<24} {counts.get(word)!s:>9} {expected.get(word)!s:>9}"
            for word in different[:20]
        )
    if misplaced:
        lines.append("NOT EQUAL: the buckets differ from a plain count")
    if not different and not misplaced:
        lines.append(
            f"equal: a plain count gives the same number for each of the {len(expected)} words, and the same buckets"
        )
    return "\n".join(lines), not different and not misplaced


def main_report() -> int:
    """Print the report on the stores. Returns 0 if all counts are equal, otherwise 1."""
    counts, buckets = open_stores()
    text, is_equal = report(
        dict[Any, int](counts.items()), dict[Any, int](buckets.items()), independent_count()
    )
    print(text)
    return 0 if is_equal else 1


conf = Config(max_spout_pending=3, until="exhausted", message_timeout_s=120)
"""A first batch waits until Spark has started its Python workers. On a busy machine, this may take
longer than the usual 30 s."""

if __name__ == "__main__" and sys.argv[1:] == ["report"]:
    sys.exit(main_report())

topology = make_topology()

if __name__ == "__main__":
    txtopo.main(topology, conf)
