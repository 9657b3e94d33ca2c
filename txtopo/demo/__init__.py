"""The demo: a topology that counts every word of Python's own library, in the package so that
``txtopo demo`` runs without a checkout.

The file is run like any TARGET that is a file: its classes travel by value.
"""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("stdlib_words.py")
"""The topology, and the comparison of its results with a plain count."""

DATA_DIR = ".txtopo/demo"
"""Where the demo keeps its state and its results, below the current directory."""

__all__ = ["DATA_DIR", "FILE"]
