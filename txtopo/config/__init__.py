"""Settings: their list (``settings``), their names (``names``, ``storm``), their text (``text``),
and their sources (``sources``)."""

from __future__ import annotations

from txtopo.config.settings import Config
from txtopo.config.sources import Resolved, resolve

__all__ = ["Config", "Resolved", "resolve"]
