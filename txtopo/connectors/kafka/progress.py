"""Publishes a spout's committed positions as a consumer group's offsets, for lag dashboards.

Runs on: driver. Nothing else reads these offsets, so a publication that fails only warns.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from txtopo import errors
from txtopo.connectors.kafka import client
from txtopo.connectors.kafka.log import Log, Partition

LOGGER = logging.getLogger("txtopo.kafka")

_PAUSE_S = 1.0
"""The least time between two publications."""
_LAST_S = 2.0
"""How long a run's end waits until the last positions are published."""


class Progress:
    """Publishes positions to consumer group ``group``: at once, or a pause after the last
    publication. What is refused or not answered is published again after the pause."""

    def __init__(self, log: Log, group: str, clock: Callable[[], float]) -> None:
        self._log, self._group, self._clock = log, group, clock
        self._kafka = log.cluster.confluent_kafka()
        self._lock = threading.Lock()
        self._offsets: dict[Partition, int] = {}
        self._published: dict[Partition, int] = {}
        self._begun_at = -float("inf")
        self._under_way: tuple[concurrent.futures.Future[Any], dict[Partition, int]] | None = None
        self._later: threading.Timer | None = None
        self._has_warned = self._is_closed = False

    def publish(self, offsets: dict[Partition, int]) -> None:
        """Publish ``offsets``. Never fails, and waits for no answer."""
        with self._lock:
            self._offsets = offsets
            if not self._is_closed:
                self._go_on()

    def close(self) -> None:
        """Publish what is not published, and wait for the answer."""
        with self._lock:
            self._is_closed = True
            if self._later is not None:
                self._later.cancel()
            deadline = time.monotonic() + _LAST_S
            if self._is_answered(_LAST_S) and self._offsets != self._published:
                self._begin()
                self._is_answered(deadline - time.monotonic())
            if self._under_way is not None:
                self._warn(f"no answer for {_LAST_S:g} s")

    def _go_on(self) -> None:
        """Begin a publication if there is something to publish, now or when it is time."""
        pause = self._begun_at + _PAUSE_S - self._clock()
        if self._is_answered(0) and self._offsets != self._published and pause <= 0:
            self._begin()
            pause = _PAUSE_S
        if self._offsets != self._published and self._later is None:
            later = threading.Timer(max(0.0, pause) or _PAUSE_S, self._go_on_later)
            later.daemon = True
            try:
                later.start()
                self._later = later
            except RuntimeError as error:  # no room for a thread, or the process ends
                self._warn(error)

    def _go_on_later(self) -> None:
        with self._lock:
            self._later, self._begun_at = None, -float("inf")
            if not self._is_closed:
                self._go_on()

    def _begin(self) -> None:
        self._begun_at = self._clock()
        places = [
            self._kafka.TopicPartition(*place, offset) for place, offset in self._offsets.items()
        ]
        try:
            request = self._kafka.ConsumerGroupTopicPartitions(self._group, places)
            (future,) = self._log.admin.alter_consumer_group_offsets(
                [request], request_timeout=client.CALL_TIMEOUT_S
            ).values()
            self._under_way = future, self._offsets
        except (self._kafka.KafkaException, errors.TxtopoError) as error:
            self._warn(error)

    def _is_answered(self, wait_s: float) -> bool:
        """Whether no publication is under way after ``wait_s``."""
        if self._under_way is None:
            return True
        future, offsets = self._under_way
        if not concurrent.futures.wait([future], max(0.0, wait_s)).done:
            return False
        self._under_way, error = None, future.exception()
        if error is None:
            refused = [each.error for each in future.result().topic_partitions]
            error = next((each for each in refused if each is not None), None)
        if error is None:
            self._published, self._has_warned = offsets, False
        else:
            self._warn(error)
        return True

    def _warn(self, error: Any) -> None:
        """Warn that positions were not published, once until they are."""
        if not self._has_warned:
            LOGGER.warning(
                "the offsets of consumer group %s could not be published: %s", self._group, error
            )
        self._has_warned = True
