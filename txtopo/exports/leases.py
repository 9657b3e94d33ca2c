"""Shares a queue's buckets among exporters, by rows in the store.

An exporter holds a bucket while the bucket's row names it, and changes the row's beat. Another one
takes free buckets, buckets without a beat for :data:`LEASE_S`, and some buckets of a holder with more
than its share. Taking raises the bucket's epoch, so that the earlier holder, if it still lives,
changes nothing any more: each of its changes expects the known row. So time decides only
about the work's division, never about results. Standard library only.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence

from txtopo import errors
from txtopo.exports import layout
from txtopo.stores import direct, stamps
from txtopo.stores.visible import VisibleTxid

LOGGER = logging.getLogger("txtopo")

LEASE_S = 15.0
"""How long a holder may show no beat, in seconds, before another exporter takes its buckets."""

PATIENCE_MAX_S = 8 * LEASE_S
"""How long an exporter that was overtaken waits at most, in seconds."""

BEAT_S = LEASE_S / 4
"""How often a holder beats, and looks for buckets to take."""


@dataclasses.dataclass(slots=True)
class Held:
    """A bucket in this exporter's hands."""

    number: int
    text: str
    """The row, as stored."""
    state: layout.Bucket


class Leases:
    """The buckets that the exporter ``holder`` holds. ``clock`` gives seconds."""

    def __init__(
        self,
        names: layout.Names,
        address: str,
        buckets: int,
        holder: str,
        clock: Callable[[], float],
    ) -> None:
        self._names, self._buckets, self._holder, self._clock = names, buckets, holder, clock
        self._address = address
        self.held: dict[int, Held] = {}
        """By number."""
        self._seen: dict[int, tuple[int, int, float]] = {}
        """Of other holders' buckets: epoch, beat, and when both were first seen together."""
        self._due = clock()
        self._patience_s = LEASE_S
        """After how long without a beat a bucket is taken. Exporters that overtake each other grow
        patient, or calls that take longer than a lease would never be followed by a change."""

    def tend(self, rows: direct.Direct, visible: VisibleTxid) -> None:
        """Beat, and take or lose buckets, if it is time."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + BEAT_S
        (tallies, stored) = rows.read_ranges(
            [self._names.all_of("a"), self._names.all_of("b")], layout.ROWS_MAX
        )
        if not tallies:
            self._due = now
            return  # nothing was ever added, and perhaps there is no store yet
        added = [layout.Tally.of(row.curr or "") for row in tallies]
        added[0].check(self._names.queue, self._address, self._buckets)
        begun = {tally.generation for tally in added}
        if (writer := tallies[0].stamp.topology_id) != visible.topology_id:
            raise errors.UsageError(
                f"export queue {self._names.queue!r} in {self._address} has entries of topology {writer!r}, not {visible.topology_id!r}\n"
                "  Give each topology's queue an id of its own."
            )
        texts = {row.key: row.curr for row in stored if row.curr is not None}
        states = {
            number: layout.Bucket.of(text)
            for number in range(self._buckets)
            if (text := texts.get(self._names.bucket(number))) is not None
        }
        self._keep(rows, visible, states, texts)
        for number in self._to_take(states, now):
            # Entries that were never exported belong to the generation in which they were added.
            own = layout.generation_of(visible)
            of = min(begun - {own}, default=own)
            self._take(rows, visible, number, texts.get(self._names.bucket(number)), of)

    def holds(self, held: Held) -> bool:
        """Whether ``held`` is still this exporter's, and unchanged."""
        return self.held.get(held.number) is held

    def lose(self, number: int) -> None:
        """Forget a bucket whose row is not as known, or perhaps not. The next :meth:`tend` comes at
        once, and finds it if it is still this exporter's."""
        self.held.pop(number, None)
        self._due = self._clock()

    def change(
        self,
        rows: direct.Direct,
        visible: VisibleTxid,
        new: Mapping[int, layout.Bucket],
        removed: Sequence[str] = (),
    ) -> bool:
        """Exchange the states of held buckets, and remove rows, in one step. False if another
        exporter, or a person, has changed one of the buckets."""
        held = [self.held[number] for number in new]
        expected: dict[str, str | None] = {
            self._names.bucket(bucket.number): bucket.text for bucket in held
        }
        texts = {self._names.bucket(number): state.text() for number, state in new.items()}
        try:
            done = rows.exchange(
                expected,
                [row(key, text, visible, self._names) for key, text in texts.items()],
                removed,
            )
        except BaseException:
            for number in new:
                self.lose(number)
            raise
        for bucket in held:
            if done:
                bucket.state = new[bucket.number]
                bucket.text = texts[self._names.bucket(bucket.number)]
            else:
                self.lose(bucket.number)
        if removed or not done:
            self._patience_s = LEASE_S if done else min(2 * self._patience_s, PATIENCE_MAX_S)
        return done

    def release(self, rows: direct.Direct, visible: VisibleTxid) -> None:
        """Leave all buckets to others."""
        if self.held:
            self.change(
                rows,
                visible,
                {
                    number: dataclasses.replace(held.state, holder="")
                    for number, held in self.held.items()
                },
            )
        self.held.clear()

    def _keep(
        self,
        rows: direct.Direct,
        visible: VisibleTxid,
        states: Mapping[int, layout.Bucket],
        texts: Mapping[str, str],
    ) -> None:
        """Find this exporter's buckets among ``states``, and beat in them."""
        known, self.held = self.held, {}
        for number, state in states.items():
            if state.holder == self._holder:
                text = texts[self._names.bucket(number)]
                held = known.get(number)
                is_known = held is not None and held.text == text
                self.held[number] = known[number] if is_known else Held(number, text, state)
        if self.held:
            beats = {
                number: dataclasses.replace(held.state, beat=held.state.beat + 1)
                for number, held in self.held.items()
            }
            self.change(rows, visible, beats)

    def _to_take(self, states: Mapping[int, layout.Bucket], now: float) -> list[int]:
        """The buckets to take: all free ones, and a part of the richest holder's, so that both
        then have about the same number."""
        free, live = [], collections.defaultdict[str, list[int]](list)
        for number in range(self._buckets):
            state = states.get(number)
            if state is None or not state.holder:
                free.append(number)
            elif state.holder != self._holder:
                epoch, beat, since = self._seen.get(number, (-1, -1, now))
                if (epoch, beat) != (state.epoch, state.beat):
                    self._seen[number] = state.epoch, state.beat, now
                elif now - since > self._patience_s:
                    LOGGER.warning(
                        "export queue %r: this exporter takes bucket %d from %s, which shows no beat",
                        self._names.queue,
                        number,
                        state.holder,
                    )
                    free.append(number)
                    continue
                live[state.holder].append(number)
        richest = max(live.values(), key=len, default=[])
        more = (len(richest) - len(self.held) - len(free)) // 2
        return free + richest[: max(more, 0)]

    def _take(
        self, rows: direct.Direct, visible: VisibleTxid, number: int, text: str | None, begun: str
    ) -> None:
        old = layout.Bucket(generation=begun) if text is None else layout.Bucket.of(text)
        new = dataclasses.replace(old, epoch=old.epoch + 1, holder=self._holder, beat=old.beat + 1)
        key = self._names.bucket(number)
        if rows.exchange({key: text}, [row(key, new.text(), visible, self._names)]):
            self.held[number] = Held(number, new.text(), new)


def row(key: str, text: str, visible: VisibleTxid, names: layout.Names) -> stamps.Row:
    """A row that an exporter writes. It goes when the topology's results are cleared."""
    stamp = stamps.Stamp(
        visible.topology_id, visible.generation, f"~{names.queue}", 0, 0, stamps.UNKNOWN_ATTEMPT
    )
    return stamps.Row(key, stamp, None, 0, [text])
