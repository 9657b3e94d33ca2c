"""Named fault points: places between and inside the steps of a commit where a test may kill the process.

Armed by the environment variable ``TXTOPO_FAULT``, a comma-separated list of ``POINT@TXID=ACTION``; for example
``apply.after@2=kill`` ends the process with SIGKILL when transaction 2 has been applied but not recorded. ``kill`` is the
only action that needs no cooperation from the program, and the only one there is. Unarmed, a point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from typing import Literal, get_args

FaultPoint = Literal[
    "seal.before",  # nothing of this txid is durable but its metadata, perhaps
    "seal.after",  # "effects may exist" is durable
    "apply.before",
    "apply.after",  # every effect is in the stores; ZooKeeper does not know
    "record.before",
    "record.after",  # current has moved on
    "forget.before",
    "forget.after",
]

VARIABLE = "TXTOPO_FAULT"


def _armed() -> dict[tuple[str, int], str]:
    armed: dict[tuple[str, int], str] = {}
    for spec in filter(None, os.environ.get(VARIABLE, "").split(",")):
        point, _, rest = spec.partition("@")
        txid, _, action = rest.partition("=")
        if point not in get_args(FaultPoint) or not txid.isdigit() or action != "kill":
            raise ValueError(f"{VARIABLE}: {spec!r} is not POINT@TXID=kill with POINT one of {', '.join(get_args(FaultPoint))}")
        armed[point, int(txid)] = action
    return armed


_ARMED = _armed()


def reach(point: FaultPoint, txid: int) -> None:
    """Say that ``point`` is reached for ``txid``; does not return if a test armed it."""
    if (point, txid) in _ARMED:
        os.write(2, f"fault: {point} at txid {txid}: kill\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
