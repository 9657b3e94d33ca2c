"""Named fault points: places before, inside and after the steps of a commit where a test may
strike.

The environment variable ``TXTOPO_FAULT`` arms faults. It is a comma-separated list: each entry is
``POINT@TXID=ACTION``, or ``POINT@TOPOLOGY:TXID=ACTION`` to name one of several topologies.
``apply.after@2=kill`` ends the process with SIGKILL when transaction 2 has been applied but not
recorded.

*Inside* a step its effect is done and not yet reported:

- *seal* and *record*: the write is in ZooKeeper, and ZooKeeper's answer is still on the way.
- *apply*: the commit job has committed one store transaction, whose task has not ended.
- *forget*: half of the results held for an attempt are given back.

The driver reaches all points but ``apply.inside``. A worker reaches ``apply.inside`` each time a
store transaction commits. Workers of a local master inherit the variable.

- ``kill``: the process that reaches the point dies there.
- ``hold``: the process that reaches the point waits there, to be killed from outside. So one
  SIGKILL strikes several topologies, or a worker and its driver.
- ``lose``: only inside *seal* and *record*: ZooKeeper's answer never comes, as if the connection
  were lost. The process lives.

If ``TXTOPO_FAULT_DIR`` names a directory, a fault that strikes leaves an empty file there, called
like the fault. A *kill* or *lose* with an existing file does not strike again, in any process.
Without the directory each fault strikes once in every process that reaches the point. While no
fault is armed, a point costs one look at an empty dictionary. Runs on driver and executors:
standard library only.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Literal, get_args

FaultPoint = Literal[
    "seal.before",  # only the metadata of this txid is durable, if anything
    "seal.inside",
    "seal.after",  # "effects may exist" is durable
    "apply.before",
    "apply.inside",  # some effects are in the stores, the commit job still runs
    "apply.after",  # every effect is in the stores, and ZooKeeper does not know
    "record.before",
    "record.inside",
    "record.after",  # current has moved on
    "forget.before",
    "forget.inside",
    "forget.after",
]
ACTIONS = ("kill", "hold", "lose")

VARIABLE = "TXTOPO_FAULT"
DIRECTORY_VARIABLE = "TXTOPO_FAULT_DIR"

_ANSWERED = ("seal.inside", "record.inside")
"""Points with an answer to lose."""


class AnswerLostError(Exception):
    """The step was done, and a test wants its answer not to arrive."""


def _armed() -> dict[tuple[str, str, int], tuple[str, str]]:
    """``(point, topology or "", txid)`` → action, and the fault as it was written."""
    armed: dict[tuple[str, str, int], tuple[str, str]] = {}
    for spec in filter(None, os.environ.get(VARIABLE, "").split(",")):
        place, _, action = spec.rpartition("=")
        point, _, victim = place.partition("@")
        topology_id, _, txid = victim.rpartition(":")
        if point not in get_args(FaultPoint) or not txid.isdigit() or action not in ACTIONS:
            points, actions = ", ".join(get_args(FaultPoint)), ", ".join(ACTIONS)
            raise ValueError(
                f"{VARIABLE}: {spec!r} is not POINT@TXID=ACTION with POINT one of {points} and ACTION one of {actions}"
            )
        if action == "lose" and point not in _ANSWERED:
            raise ValueError(
                f"{VARIABLE}: {spec!r}: an answer can be lost only at {' and '.join(_ANSWERED)}"
            )
        armed[point, topology_id, int(txid)] = (action, spec)
    return armed


_ARMED = _armed()


def reach(point: FaultPoint, txid: int, topology_id: str = "") -> None:
    """Say that ``topology_id`` reaches ``point`` for ``txid``. Does not return if a test has armed
    the point.

    :raises AnswerLostError: the test armed ``lose``.
    """
    if not _ARMED:
        return
    for topology in (topology_id, ""):
        action, spec = _ARMED.get((point, topology, txid), (None, ""))
        if action is not None and (_claim(spec) or action == "hold"):
            _strike(point, topology, txid, action)


def _claim(spec: str) -> bool:
    """Leave the fault's file. Returns False if the file is there already."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return True
    try:
        Path(directory, spec).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _strike(point: str, topology: str, txid: int, action: str) -> None:
    os.write(
        2, f"fault: {point} at {f'{topology} ' if topology else ''}txid {txid}: {action}\n".encode()
    )
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "hold":
        threading.Event().wait()
    del _ARMED[point, topology, txid]
    raise AnswerLostError(f"the answer is lost at {point}")
