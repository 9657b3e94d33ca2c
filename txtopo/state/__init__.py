"""Keeps a topology's metadata in ZooKeeper: the next transaction, its batch, and the lease for the
driver that may write.

Only this package knows ZooKeeper's client. The modules, from the bottom:

- ``base`` is the contract for a znode store; ``memory`` and ``zookeeper`` fulfil the contract.
- ``records`` has the znodes' content, ``layout`` their paths.
- ``rotating`` keeps one value per txid, ``positions`` one value per partition.
- ``retry`` waits for ZooKeeper, ``lease`` decides which coordinator may write, and ``writer``
  writes exactly once.
- ``topology`` combines these modules for one topology. ``administration`` shows and resets stored
  state, from outside.
"""
