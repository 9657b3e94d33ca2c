"""The machine of a run: absolute figures depend on it, and ratios should not."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

_PACKAGES = ("txtopo", "pyspark", "kazoo", "cloudpickle", "pyarrow")


def described() -> dict[str, Any]:
    """Processor, memory, versions, the date, and how busy the machine was before."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "processor": _found(r"^model name\s*: (.*)$", "/proc/cpuinfo") or platform.machine(),
        "memory_gib": round(int(_found(r"^MemTotal: +(\d+) kB$", "/proc/meminfo") or 0) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
        "versions": {
            "Python": platform.python_version(),
            "Java": _java(),
            **{name: _version(name) for name in _PACKAGES},
        },
    }


def _found(pattern: str, path: str) -> str:
    try:
        match = re.search(pattern, Path(path).read_text(encoding="utf-8"), flags=re.MULTILINE)
    except OSError:
        return ""
    return match[1].strip() if match else ""


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    command = [f"{home}/bin/java" if home else "java", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stderr
    match = re.search(r'version "([^"]+)"', said)
    return match[1] if match else "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
