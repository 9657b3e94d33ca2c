"""Settings: list (``settings``), names (``names``, ``storm``), text (``text``), and sources
(``sources``)."""

from __future__ import annotations

from txtopo.config.settings import Config
from txtopo.config.sources import Resolved, resolve

__all__ = ["Config", "Resolved", "resolve"]
