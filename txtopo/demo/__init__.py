"""The demo: a topology that counts every word in Python's own library. The package has the demo, so
that ``txtopo demo`` runs without a checkout.

The file runs like any TARGET file: its classes travel by value.
"""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("stdlib_words.py")
"""The topology, which also compares its results with a plain count."""

DATA_DIR = ".txtopo/demo"
"""Where the demo keeps its state and results, below the current directory."""

__all__ = ["DATA_DIR", "FILE"]
