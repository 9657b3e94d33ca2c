"""Bolts that read a clock or draw numbers, each on the line that ends with ``# here``, and emit
what they get in front of a committer that does neither."""

from __future__ import annotations

import datetime
import importlib
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from datetime import date
from datetime import datetime as Moment
from typing import Any

from tests.wrong import clock_helper
from txtopo import (
    BaseBasicBolt,
    BasicOutputCollector,
    Fields,
    OutputFieldsDeclarer,
    TransactionalTopologyBuilder,
    Tuple,
)
from txtopo.connectors.sql import SqlSink
from txtopo.testing import MemoryTransactionalSpout
from txtopo.topology.graph import TopologyGraph


class Reader(BaseBasicBolt):
    """Emits its word with something that differs from attempt to attempt, or from day to day."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word", "read"))

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        deadline = Moment.strptime("2026-01-01", "%Y-%m-%d") + datetime.timedelta(days=1)
        collector.emit([tup[0], tup["word"], f"{deadline} {self.read()}"])

    def read(self) -> Any:
        raise NotImplementedError


class Now(Reader):
    def read(self) -> Any:
        return Moment.now()  # here


class NowOfModule(Reader):
    def read(self) -> Any:
        return datetime.datetime.now(datetime.UTC).hour  # here


class Today(Reader):
    def read(self) -> Any:
        return date.today()  # here


class Utcnow(Reader):
    def read(self) -> Any:
        return Moment.utcnow().date()  # here


class Time(Reader):
    def read(self) -> Any:
        return int(time.time()) // 3600  # here


class TimeNs(Reader):
    def read(self) -> Any:
        return time.time_ns() // 10**15  # here


class Imported(Reader):
    def read(self) -> Any:
        return __import__("datetime").datetime.now().date()  # here


class ImportedByImportlib(Reader):
    def read(self) -> Any:
        return importlib.import_module("datetime").date.today()  # here


class ImportedInside(Reader):
    def read(self) -> Any:
        from datetime import datetime

        return datetime.now().month  # here


class OfSysModules(Reader):
    def read(self) -> Any:
        return sys.modules["time"].time()  # here


class ByHelper(Reader):
    def read(self) -> Any:
        return clock_helper.minute()


class Uuid(Reader):
    def read(self) -> Any:
        return uuid.uuid4()  # here


class Urandom(Reader):
    def read(self) -> Any:
        return os.urandom(8).hex()  # here


class Random(Reader):
    def read(self) -> Any:
        return random.random()  # here


class RandomImported(Reader):
    def read(self) -> Any:
        return __import__("random").random()  # here


CLOCKS: list[type[Reader]] = [
    Now,
    NowOfModule,
    Today,
    Utcnow,
    Time,
    TimeNs,
    Imported,
    ImportedByImportlib,
    ImportedInside,
    OfSysModules,
    ByHelper,
]
DICE: list[type[Reader]] = [Uuid, Urandom, Random, RandomImported]


def topology(reader: Callable[[], Reader]) -> TopologyGraph:
    """words → read ×2 → sink."""
    words = MemoryTransactionalSpout(
        {0: [(word,) for word in ("the", "cat", "the", "dog")]}, ["word"], 2
    )
    builder = TransactionalTopologyBuilder("read", "words", words)
    builder.set_bolt("read", reader(), 2).shuffle_grouping("words")
    builder.set_bolt(
        "sink", SqlSink("/nowhere/read.db", "reads", ["word", "read"])
    ).global_grouping("read")
    return builder.build_topology()
