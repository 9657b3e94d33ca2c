"""Explains errors about full memory or disks, with the settings to change.

A Python worker says ``MemoryError`` and no more. Spark reports that a process has died, or that a
Java heap is full. The reader wants to know which setting to change. A task explains its own errors,
and the driver explains Spark's reports about a dead task.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from txtopo import errors

_SMALLER = (
    "make the batches smaller (by the spout's take_per_partition, bytes_per_batch, or own metadata)"
)
_WORKER = "raise spark.executor.pyspark.memory, lower spill_bytes"

RAN_OUT = (MemoryError, errors.LocalDiskError)
"""The exceptions raised around user code when memory or disk runs out."""


def of_memory(error: MemoryError) -> str:
    """The message for a ``MemoryError`` in this process."""
    bound = os.environ.get("PYSPARK_EXECUTOR_MEMORY_MB", "")
    whose = (
        f"its bound is {bound} MiB, from spark.executor.pyspark.memory"
        if bound
        else "the machine gives no more"
    )
    text = f"MemoryError: {error}" if str(error) else "MemoryError"
    return f"{text}: the Python worker has no memory left ({whose})\n  Cure: {_SMALLER}, or {_WORKER}. The transaction is not committed."


DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
"""An ``OSError`` with such a number says that a disk, or a user's quota, is full."""

_FREE_BYTES_MIN = 1024 * 1024
"""A file system with less free space counts as full."""

_STDOUT = 1


def of(error: BaseException) -> str | None:
    """The message for a task's ``error`` if memory or disk ran out, otherwise ``None``."""
    if isinstance(error, MemoryError):
        return of_memory(error)
    if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
        return f"{of_disk(error)} This is host {socket.gethostname()}."
    return None


def of_disk(error: OSError) -> str:
    """The message for an ``error`` with a number in ``DISK_IS_FULL``. Names the full directory if
    it can be found."""
    temporary = os.environ.get("TMPDIR", "/tmp")
    if error.filename is not None:
        place = f"in {_existing(Path(os.fsdecode(error.filename)))}"
    else:
        # After a write to an open file, the error names no file.
        full = [
            f"in {os.path.abspath(directory)}"
            for directory in dict.fromkeys((temporary, os.curdir))
            if _is_full(directory)
        ]
        place = " and ".join([*full, *(["for standard output"] if _is_full(_STDOUT) else [])])
    find = f"Find it with `df -h` and `df -i` (temporary files are in {temporary}, and the output may go to a file), make room there"
    return (
        f"there is no room left {place or 'on a disk'}: {error.strerror}\n"
        f"  {'Make room there' if place else find}, and try again. Committed transactions are safe."
    )


def explained(error: BaseException) -> BaseException:
    """``error`` or, for a full disk, an error that names the directory and the cure."""
    if not isinstance(error, OSError) or error.errno not in DISK_IS_FULL:
        return error
    told = errors.TxtopoError(of_disk(error))
    told.__cause__ = error
    return told


def _existing(path: Path) -> Path:
    """The nearest existing directory above ``path``."""
    return next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))


def _is_full(place: str | int) -> bool:
    """Whether the file system of ``place``, a directory or an open file, is full."""
    with contextlib.suppress(OSError):
        usage = os.statvfs(place)
        return usage.f_blocks > 0 and (
            usage.f_bavail * usage.f_frsize < _FREE_BYTES_MIN
            or (usage.f_files > 0 and usage.f_favail == 0)
        )
    return False


# The order matters: Java's OutOfMemoryError also contains the word MemoryError.
_SPARKS_WORDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("spark.driver.maxResultSize", "Total size of serialized results"),
        "Spark refused the size of the results that travel through the driver: lower inline_bytes_max or max_spout_pending, or raise"
        " spark.driver.maxResultSize.",
    ),
    (
        (
            "No space left on device",
            "Disk quota exceeded",
            "a batch larger than memory cannot be spilled",
        ),
        "A disk is full: make room where Spark's local directories are, or put them on a larger disk (spark.local.dir).",
    ),
    (
        (
            "java.lang.OutOfMemoryError",
            "GC overhead limit exceeded",
            "Cannot allocate a page",
            "SparkOutOfMemoryError",
            "JVM_OUT_OF_MEMORY",
        ),
        "A Java heap is full: raise spark.executor.memory (with a local master spark.driver.memory), lower blob_bytes_max, or use fewer cores per"
        " executor.",
    ),
    (("MemoryError",), f"A Python worker has no memory left: {_SMALLER}, or {_WORKER}."),
    (
        (
            "OOMKilled",
            "exceeding memory limits",
            "exceeding physical memory limits",
            "exceeding virtual memory limits",
        ),
        f"An executor was killed for its memory: raise spark.executor.memoryOverhead or spark.executor.pyspark.memory, or {_SMALLER}.",
    ),
    (
        ("code 137", "code: 137", "status: 137"),
        "An executor was ended by SIGKILL (exit code 137). Spark does not know the sender. If the system killed the executor for its memory"
        f" (dmesg on the executor's host says so): raise spark.executor.memoryOverhead, or {_SMALLER}.",
    ),
    (
        ("exited with code 52", "exit code 52", "code 52 ("),
        "An executor's Java heap was full: raise spark.executor.memory, lower blob_bytes_max, or use fewer cores per executor.",
    ),
    (
        (
            "Python worker exited unexpectedly",
            "Python worker process terminated",
            "PYTHON_WORKER_EXITED",
            "Python worker has exited",
        ),
        f"A Python worker died. If the system killed the worker for its memory (dmesg says so): {_SMALLER}, or give executors more memory"
        " (spark.executor.memoryOverhead), or bound the workers (spark.executor.pyspark.memory).",
    ),
    (
        (
            "Answer from Java side is empty",
            "Error while sending or receiving",
            "connect to the Java server",
        ),
        "The driver's JVM is gone. If its heap was full: raise spark.driver.memory, or lower inline_bytes_max or max_spout_pending.",
    ),
)


def cure_of(text: str) -> str | None:
    """The cure for a job that Spark lost with the message ``text``, if its words say that memory or
    disk ran out. Otherwise ``None``."""
    return next(
        (cure for words, cure in _SPARKS_WORDS if any(word in text for word in words)), None
    )
