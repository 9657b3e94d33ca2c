"""Keys of Storm without a setting here, each with its replacement.

The keys are those of ``org.apache.storm.Config`` in v1.2.4. Refusing them beats ignoring them: a
user of ``topology.workers`` expects an effect.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

_NONE = "There is no counterpart. Leave it out."

_INSTEAD = {
    "topology.name": "The name of a run is the first argument of submit_topology, or --name of txtopo run.",
    "topology.transactional.id": "The id is the first argument of TransactionalTopologyBuilder.",
    "topology.workers": "Spark has the processes: give --master local[N], or give spark-submit --num-executors and --executor-cores.",
    "topology.tasks": "The task count is the parallelism given to the builder.",
    "topology.max.task.parallelism": "The task count is the parallelism given to the builder. --master local[N] bounds how many tasks run at once.",
    "topology.acker*": "Nothing is acked: a batch is complete when every task has all its tuples. Leave it out.",
    "topology.enable.message.timeouts": "Time-outs are always on: set message_timeout_s, as long as you like.",
    "topology.debug": "Tuples are not logged. txtopo explain TARGET shows where components run, and -v shows an error's traceback.",
    "topology.spout.wait.strategy": "A spout that was not ready is asked again after poll_interval_s.",
    "topology.trident.batch.emit.interval.millis": (
        "Batches begin as soon as max_spout_pending has room. A spout that was not ready is asked again after poll_interval_s."
    ),
    "topology.tick.tuple.freq.secs": "There are no tick tuples: finish_batch is called at the end of every batch.",
    "topology.max.error.report.per.interval": "on_error and max_attempts set an error's effect.",
    "topology.error.throttle.interval.secs": "on_error and max_attempts set an error's effect.",
    "topology.kryo.*": "Tuples are pickled and metadata is JSON: there is nothing to register. Leave it out.",
    "topology.fall.back.on.java.serialization": "Tuples are pickled and metadata is JSON. Leave it out.",
    "topology.skip.missing.kryo.registrations": "Tuples are pickled and metadata is JSON. Leave it out.",
    "topology.tuple.serializer": "Tuples are pickled. Leave it out.",
    "topology.multilang.serializer": "Bolts are Python objects: there are no other processes to speak to. Leave it out.",
    "topology.shellbolt.*": "Bolts are Python objects: there are no other processes to speak to. Leave it out.",
    "topology.disable.loadaware.messaging": "A shuffle grouping deals evenly, under any load. Leave it out.",
    "topology.backpressure.*": "max_spout_pending bounds the transactions in flight, and spill_bytes the tuples in memory.",
    "topology.executor.*.buffer.size": "blob_bytes_max and spill_bytes bound tuples in memory.",
    "topology.transfer.buffer.size": "blob_bytes_max and spill_bytes bound tuples in memory.",
    "topology.disruptor.*": "blob_bytes_max and spill_bytes bound tuples in memory.",
    "topology.bolts.*": "Windows are your own bolts, over batches.",
    "topology.state.*": "State is kept in ZooKeeper, and results in stores: see SqliteStore.",
    "topology.worker.*childopts": "Give spark.executor.extraJavaOptions to spark-submit.",
    "topology.worker.max.heap.size.mb": "Give spark.executor.memory to spark-submit.",
    "topology.component.resources.*": "Give spark.executor.memory and spark.executor.cores to spark-submit.",
    "topology.component.cpu.*": "Give spark.executor.cores to spark-submit.",
    "topology.priority": "Spark schedules. Leave it out.",
    "topology.scheduler.*": "Spark schedules. Leave it out.",
    "topology.environment": "Give spark.executorEnv.NAME to spark-submit.",
    "topology.classpath": "Give --jars, or --py-files, to spark-submit.",
    "topology.metrics.*": "txtopo status shows how far a topology has come. Leave it out.",
    "topology.stats.sample.rate": "Everything is counted. Leave it out.",
    "storm.local.dir": "Where the embedded ZooKeeper keeps its data is data_dir.",
    "storm.zookeeper.root": "Where the state is kept is zookeeper_root, or transactional.zookeeper.root.",
    "storm.zookeeper.retry.*": "How long a ZooKeeper that is away is waited for is zookeeper_wait_s.",
    "storm.zookeeper*.auth.scheme": "How ZooKeeper knows us is zookeeper_auth, zookeeper_user and zookeeper_password_file.",
    "storm.cluster.mode": "--master says whether Spark is local.",
}
"""By pattern, the replacement for the matching keys."""

_FAMILIES = (
    "topology",
    "storm",
    "transactional",
    "nimbus",
    "supervisor",
    "worker",
    "ui",
    "logviewer",
    "drpc",
    "pacemaker",
    "zmq",
)


def instead_of(key: str) -> str | None:
    """The replacement for ``key``. ``None`` if ``key`` is not listed."""
    return next((cure for pattern, cure in _INSTEAD.items() if fnmatchcase(key, pattern)), None)


def without_counterpart(key: str) -> str | None:
    """The message for a key that looks like Storm's. ``None`` for any other key."""
    return _NONE if key.partition(".")[0] in _FAMILIES and "." in key else None
