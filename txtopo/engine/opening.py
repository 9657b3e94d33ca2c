"""Asks the spout for new transactions, and asks again after a failure.

Runs on: driver. The spout answers on its own thread, and its answers are handled on the loop's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from txtopo import errors
from txtopo.coordinator import messages
from txtopo.coordinator.coordinator import TransactionCoordinator
from txtopo.engine.batches import Batches
from txtopo.engine.causes import Causes
from txtopo.engine.loop import Loop
from txtopo.engine.surroundings import Threads


@dataclass(eq=False)
class Opening:
    """One run's questions to the spout, on the spout's ``_thread``, and pauses without questions."""

    _loop: Loop
    _thread: Threads
    _batches: Batches
    _coordinator: TransactionCoordinator
    _causes: Causes
    _count: int = 0
    _failures: int = 0
    _is_paused: bool = False
    _unasked: int | None = None
    """The question that waits for the pause's end."""

    # -- from other threads -----------------------------------------------------------------------

    def pause(self) -> None:
        """Begin no new transactions, except one that the spout was just asked about. Transactions
        that have begun go on."""
        self._is_paused = True
        # A spout that had nothing need not be waited for.
        self._loop.surroundings.post(functools.partial(self._loop.handle, messages.Poll()))

    def resume(self) -> None:
        self._is_paused = False
        self._loop.surroundings.post(self._ask_again)

    # -- on the loop's thread ---------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether a transaction could begin now, but for a pause."""
        return self._unasked is not None

    def ask(self, txid: int) -> None:
        """Ask the spout whether ``txid`` may begin. The answer goes to the coordinator."""
        if self._is_paused:
            self._unasked = txid
            return
        self._count += 1
        self._loop.tell(lambda each: each.question(self._count))
        self._thread.submit(functools.partial(self._ask_spout, txid, self._count))

    def _ask_again(self) -> None:
        """Ask the question that waited, unless another pause has begun meanwhile."""
        if not self._is_paused and self._unasked is not None:
            txid, self._unasked = self._unasked, None
            self.ask(txid)

    def _ask_spout(self, txid: int, number: int) -> None:
        """On the spout's thread."""
        post = self._loop.surroundings.post
        try:
            is_ready = self._batches.open(txid)
        except errors.FailedException as error:
            post(functools.partial(self._failed, txid, error))
        except (errors.UserCodeError, errors.InputError) as error:
            is_retried = self._loop.conf.on_error == "replay" and isinstance(
                error, errors.UserCodeError
            )
            post(functools.partial(self._failed if is_retried else self._refused, txid, error))
        except BaseException as error:
            post(functools.partial(self._loop.stop, error))
        else:
            post(functools.partial(self._answered, txid, number, is_ready))

    def _answered(self, txid: int, number: int, is_ready: bool) -> None:
        self._failures = 0
        self._loop.tell(lambda each: each.answered(txid, self._batches.progress))
        if is_ready:
            self._loop.handle(messages.Opened(txid))
            return
        self._loop.handle(messages.NotReady(txid))
        if self._coordinator.idle:
            self._loop.tell(lambda each: each.idle(number))
            if self._loop.conf.until == "exhausted":
                self._loop.drain()
        self._poll_after(self._loop.conf.poll_interval_s)

    def _failed(self, txid: int, error: BaseException) -> None:
        self._failures += 1
        self._loop.tell(lambda each: each.open_failed(txid, error))
        self._loop.handle(messages.NotReady(txid))
        self._poll_after(self._loop.backoff_s(self._failures))

    def _refused(self, txid: int, error: BaseException) -> None:
        self._causes.unopenable = error
        self._loop.handle(messages.Unopenable(txid))

    def _poll_after(self, delay_s: float) -> None:
        self._loop.surroundings.after(
            delay_s, functools.partial(self._loop.handle, messages.Poll())
        )
