"""Keyed results that each transaction changes exactly once, kept in databases."""

from __future__ import annotations

from txtopo.stores.base import Store
from txtopo.stores.codecs import Codec
from txtopo.stores.conflicts import StoreConflict
from txtopo.stores.keys import Key
from txtopo.stores.redis.store import RedisStore
from txtopo.stores.results import StoredValue
from txtopo.stores.servers.store import SqlStore
from txtopo.stores.sqlite.store import SqliteStore
from txtopo.stores.transaction import StoreTransaction
from txtopo.stores.updates import Update
from txtopo.stores.visible import VisibleTxid
from txtopo.topology.kept import Fence, StoreChange
from txtopo.topology.merge import ADD, MAX, MIN, Merge

ERROR_PAGE = "stores.html"

__all__ = [
    "ADD",
    "MAX",
    "MIN",
    "Codec",
    "Fence",
    "Key",
    "Merge",
    "RedisStore",
    "SqlStore",
    "SqliteStore",
    "Store",
    "StoreChange",
    "StoreConflict",
    "StoreTransaction",
    "StoredValue",
    "Update",
    "VisibleTxid",
]
