"""Messages of the coordinator: events go in, commands come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from txtopo.topology.transaction import TransactionAttempt

FailureKind = Literal["failed", "timeout", "crash", "outgrown", "fatal"]
"""failed: user code asked for a replay · timeout: a phase took too long · crash: workers died ·
outgrown: the batch must travel another way, which is no fault and not counted · fatal: the topology
must stop."""


@dataclass(frozen=True, slots=True)
class _OfTxid:
    """A message about a transaction."""

    txid: int


@dataclass(frozen=True, slots=True)
class _OfAttempt:
    """A message about an attempt."""

    attempt: TransactionAttempt


class Opened(_OfTxid):
    """A new txid's metadata is made, or the spout is ready for a txid whose attempts make their own
    metadata."""


class NotReady(_OfTxid):
    """The spout has nothing for ``txid`` now, or failed to make metadata (R5)."""


class Unopenable(_OfTxid):
    """The spout's own code failed when asked about ``txid``, in a way that ends the run."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Time to ask the spout again."""


class Resume(_OfTxid):
    """The back-off of ``txid`` is over."""


class Emitted(_OfAttempt):
    """The attempt's metadata is known."""


class Processed(_OfAttempt):
    """The processing phase ended well."""


class Sealed(_OfAttempt):
    """ "Effects may exist" is durable."""


class Applied(_OfAttempt):
    """The commit job ended well: every effect is in its store."""


class Recorded(_OfAttempt):
    """``current`` has moved past the attempt's txid."""


@dataclass(frozen=True, slots=True)
class Failed(_OfAttempt):
    """The attempt failed, in any phase."""

    kind: FailureKind


@dataclass(frozen=True, slots=True)
class Defer:
    """From now on (``on``), or no longer: processing costs less than its own job, and may wait
    until the turn to commit has come."""

    on: bool


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop: finish commits in flight, abandon the rest."""


Event = (
    Opened
    | NotReady
    | Unopenable
    | Poll
    | Resume
    | Emitted
    | Processed
    | Sealed
    | Applied
    | Recorded
    | Failed
    | Defer
    | Drain
)


class Open(_OfTxid):
    """Ask whether the spout is ready for ``txid`` and, where metadata belongs to the txid, make the
    metadata.

    Answer: Opened, NotReady or Unopenable.
    """


class Emit(_OfAttempt):
    """Make the attempt's own metadata. Answer: Emitted or Failed."""


class Process(_OfAttempt):
    """Run the processing phase. Answer: Processed or Failed."""


class Seal(_OfAttempt):
    """Make "effects may exist" durable. Answer: Sealed or Failed."""


class Apply(_OfAttempt):
    """Run the commit job. Deferred processing comes before the commit, in the same job. Answer:
    Applied or Failed."""


@dataclass(frozen=True, slots=True)
class Record(_OfAttempt):
    """Advance ``current``. In the same write, seal ``seal_next`` if given. Answer: Recorded."""

    seal_next: TransactionAttempt | None


class Forget(_OfAttempt):
    """The attempt is committed: release everything kept for the attempt."""


class Cancel(_OfAttempt):
    """The attempt is discarded: stop its work, and release everything kept for the attempt. The
    coordinator awaits no answer."""


@dataclass(frozen=True, slots=True)
class BackOff(_OfTxid):
    """Wait before the next try of ``txid``, which has failed ``failures`` times. Answer: Resume."""

    failures: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over. ``cause`` is the attempt whose failure ended the run, ``None`` if no failure
    did.

    Unless a Drain came between, every transaction before that of ``cause`` has committed (R7).
    """

    cause: TransactionAttempt | None
    reason: Literal["drained", "done", "fatal", "poison", "crashes", "unopenable"]
    count: int = 0


Command = Open | Emit | Process | Seal | Apply | Record | Forget | Cancel | BackOff | Stop
