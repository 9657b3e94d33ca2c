"""The memory of a process and of all below it, read from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from types import TracebackType

_LOOK_EVERY_S = 0.1


def below(pid: int) -> list[int]:
    """Every process below ``pid``."""
    descendants: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text(encoding="ascii").split()):
                descendants += [child, *below(child)]
    return descendants


def own_memory(pid: int) -> int:
    """The resident bytes of ``pid`` less its shared bytes; 0 if the process is gone."""
    with contextlib.suppress(OSError):
        _, resident, shared, *_ = map(
            int, Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        )
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def share_of_memory(pid: int) -> int:
    """The bytes of ``pid``, where a page that n processes share counts 1/n for each (the kernel's
    PSS); 0 if it is gone."""
    with contextlib.suppress(OSError):
        match = re.search(
            r"^Pss: +(\d+) kB",
            Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii"),
            flags=re.MULTILINE,
        )
        return 0 if match is None else int(match[1]) * 1024
    return 0


class PeakMemory:
    """Looks ten times a second at everything below ``pid``, while it is entered. ``bytes`` is the
    most there was."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = 0
        self.workers_bytes = 0
        """The same for the Python processes alone."""

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            sizes = {pid: share_of_memory(pid) for pid in below(self._pid)}
            self.bytes = max(self.bytes, sum(sizes.values()))
            self.workers_bytes = max(
                self.workers_bytes,
                sum(size for pid, size in sizes.items() if "python" in _name(pid)),
            )

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
    return ""
