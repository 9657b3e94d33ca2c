"""The metadata of a topology in ZooKeeper: the next transaction, its batch, and the lease of the
driver that may write them.

The only package that knows ZooKeeper's client. From the bottom: ``base`` is the contract of a store
of znodes, ``memory`` and ``zookeeper`` fulfil the contract; ``records`` is the content of the
znodes and ``layout`` their paths; ``rotating`` keeps one value per txid, ``positions`` one per
partition; ``retry`` waits for ZooKeeper, ``lease`` decides who may write, ``writer`` writes exactly
once; ``topology`` puts these together for one topology, and ``administration`` shows and resets
stored state, from outside.
"""
