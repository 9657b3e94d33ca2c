"""The metadata of a topology in ZooKeeper: the next transaction, its batch, and the lease of the
driver that may write them.

The only package that knows ZooKeeper's client. From the bottom: ``base`` is the contract of a store
of znodes, ``memory`` and ``zookeeper`` fulfil it; ``records`` is what the znodes say and ``layout``
where they are; ``rotating`` keeps one value per txid, ``positions`` one per partition; ``patience``
waits for ZooKeeper, ``lease`` decides who may write, ``writer`` writes exactly once; ``topology``
puts these together for one topology, and ``administration`` looks at and resets what is stored,
from outside.
"""
