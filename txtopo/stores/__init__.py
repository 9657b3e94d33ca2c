"""Where results are kept: keyed values that each transaction changes exactly once."""

from __future__ import annotations

from txtopo.stores.base import Store, StoreChange, StoredValue
from txtopo.stores.keys import Key
from txtopo.stores.redis import RedisStore
from txtopo.stores.sql import SqlStore
from txtopo.stores.sqlite import SqliteStore
from txtopo.stores.stamps import Fence
from txtopo.stores.transaction import StoreConflict, StoreTransaction, Update

__all__ = [
    "Fence", "Key", "RedisStore", "SqlStore", "SqliteStore", "Store", "StoreChange", "StoreConflict", "StoreTransaction", "StoredValue", "Update",
]  # fmt: skip
