"""The source rows every contender reads: text files of words, one to a line, the same on every
machine; and what must come out.

Words are drawn from a vocabulary of a thousand with Zipf's frequencies, as those of a text are: a
few words make up much of it.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections import Counter
from pathlib import Path

VOCABULARY = 1_000
_SEED = 20


def _vocabulary() -> list[str]:
    """A thousand different words of 3 to 10 letters, in the order of how common they are."""
    source = random.Random(_SEED)
    vocabulary: dict[str, None] = {}
    while len(vocabulary) < VOCABULARY:
        vocabulary[
            "".join(source.choices("etaoinshrdlucmfwypvbgkqjxz", k=source.randint(3, 10)))
        ] = None
    return list(vocabulary)


def words(count: int) -> list[str]:
    """The first ``count`` words of the source."""
    source, vocabulary = random.Random(_SEED + 1), _vocabulary()
    bounds = list(itertools.accumulate(1.0 / rank for rank in range(1, VOCABULARY + 1)))
    drawn = (source.random() * bounds[-1] for _ in range(count))
    return [vocabulary[bisect.bisect(bounds, where)] for where in drawn]


def write_batches(
    directory: Path, batches: int, rows_per_batch: int, files_per_batch: int
) -> list[list[str]]:
    """Text files for ``batches`` batches of equal contents: the paths of each batch. Every file has
    the same number of lines, and of bytes.

    Batches repeat each other, so that the truth about n batches is n times the truth about one. A
    last line padded with ``=`` makes their bytes equal: a batch is then a number of bytes, as
    txtopo cuts files into batches.
    """
    directory.mkdir(parents=True, exist_ok=True)
    parts = [words(rows_per_batch)[part::files_per_batch] for part in range(files_per_batch)]
    if len({len(part) for part in parts}) != 1:
        raise ValueError(f"{rows_per_batch} rows do not make {files_per_batch} equal files")
    longest = max(sum(map(len, part[:-1])) for part in parts) + 10
    texts = [
        "\n".join([*part[:-1], part[-1] + "=" * (longest - sum(map(len, part)))]) + "\n"
        for part in parts
    ]
    paths: list[list[str]] = []
    for batch in range(batches):
        paths.append(
            [str(directory / f"batch-{batch:06}-{part}.txt") for part in range(files_per_batch)]
        )
        for path, text in zip(paths[-1], texts, strict=True):
            Path(path).write_text(text, encoding="utf-8")
    return paths


def counted(paths: list[str]) -> Counter[str]:
    """How often each line is in ``paths``: the truth."""
    counts: Counter[str] = Counter()
    for path in paths:
        counts.update(Path(path).read_text(encoding="utf-8").split("\n")[:-1])
    return counts
