"""Settings: what there is to set (``settings``), under which names (``names``, ``storm``), as text
(``text``), and from where (``sources``)."""

from __future__ import annotations

from txtopo.config.settings import Config
from txtopo.config.sources import Resolved, resolve

__all__ = ["Config", "Resolved", "resolve"]
