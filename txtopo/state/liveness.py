"""Tells whether a process that left its name in a record has certainly died.

A lease outlives its holder by the session time-out, because ZooKeeper cannot tell a dead process
from a silent process. The machine where the process ran can: there the pid is free, or belongs to
another process. So a restart after a crash need not wait. In doubt, a process counts as alive. Even
a wrong answer would be safe, because the epoch fences.

A process is known by its machine's boot, its pid namespace, its pid and its start, in clock ticks
since boot (proc(5)). So a container with the same host name, or a process that got the pid later,
is never taken for that process.
"""

from __future__ import annotations

import os
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def process_identity() -> str:
    """This process, as ``boot/namespace/pid/start``. Empty where the system cannot say (anything
    but Linux)."""
    pid = os.getpid()
    scope = _scope(pid)
    start = _start_of(pid)
    return f"{scope}/{pid}/{start}" if scope and start else ""


def has_certainly_died(identity: str) -> bool:
    """Whether ``identity``, made by :func:`process_identity`, was a process on this machine that
    has ended, reaped by its parent or not."""
    scope, _, start = identity.rpartition("/")
    scope, _, pid = scope.rpartition("/")
    if not scope or scope != _scope(os.getpid()) or not pid.isdecimal():
        return False
    try:
        # Ask the kernel, since /proc may hide other users' processes.
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    start_now = _start_of(int(pid))
    return start_now is None or (start_now != "" and start_now != start)


def can_tell(identity: str) -> bool:
    """Whether this machine can tell if the process ``identity`` lives."""
    return identity.rsplit("/", 2)[0] == _scope(os.getpid()) != ""


def _scope(own_pid: int) -> str:
    """The scope in which a pid means the same process: one boot, one namespace. Empty if unknown,
    or if ``/proc`` shows another namespace."""
    try:
        if os.readlink("/proc/self") != str(own_pid):
            return ""
        return f"{_BOOT.read_text().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """When the process started. None if the process has ended and only waits for its parent to
    notice. Empty if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The second field is a name in parentheses, which may itself contain parentheses and spaces.
    # The 3rd is the state, the 22nd the start.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
