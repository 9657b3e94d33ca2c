"""What tests of topologies are made of.

Executors import this package to unpickle the memory spouts, so it must not import more than the standard library and ``txtopo.topology``.
"""

from txtopo.testing.spouts import MemoryTransactionalSpout

__all__ = ["MemoryTransactionalSpout"]
