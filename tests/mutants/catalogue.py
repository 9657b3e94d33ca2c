"""The mutations: each breaks one thing that exactly-once rests on, and names the tests that must notice.

``tests`` are the quickest that should; they run on a copy of the tree with nothing else changed. Those that remove a guard are in ``guards``;
here are the others, which make the ordinary course of things wrong.
"""

from __future__ import annotations

from tests.mutants.guards import GUARDS
from tests.mutants.mutation import COORDINATOR, DEFERS, ENGINE_DEFERS, EXECUTE, STANDING, STATE, STRAIGHT, Mutation

MUTATIONS = (
    *(mutation for guard in GUARDS for mutation in guard.mutations),
    # -- coordinator -----------------------------------------------------------------------------------------------------------
    Mutation(
        "later transactions kept after a failure",
        "txtopo/coordinator/coordinator.py",
        "sorted((t for t in self._active if t >= txid), reverse=True)",
        "sorted((t for t in self._active if t == txid), reverse=True)",
        COORDINATOR,
    ),
    Mutation(
        "readiness scan not stopped by the first no",
        "txtopo/coordinator/coordinator.py",
        "                self._opening, self._spout_said_no = None, True\n",
        "                self._opening = None\n",
        COORDINATOR,
    ),
    Mutation(
        "window one too wide",
        "txtopo/coordinator/coordinator.py",
        "        end = self.current + self.policy.max_spout_pending\n",
        "        end = self.current + self.policy.max_spout_pending + 1\n",
        COORDINATOR,
    ),
    Mutation(
        "two emissions at once",
        "txtopo/coordinator/coordinator.py",
        "            if emits and is_emitting:\n                return\n",
        "",
        COORDINATOR,
    ),
    # -- state -----------------------------------------------------------------------------------------------------------------
    Mutation(
        "clean-up without leaving the base of the next transaction",
        "txtopo/state/topology.py",
        "        self.txids.cleanup_before(attempt.txid)\n",
        "        self.txids.cleanup_before(attempt.txid + 1)\n",
        STATE,
    ),
    Mutation(
        "None stored as a partition's metadata",
        "txtopo/runtime/batches.py",
        "for p, m in sorted(metadata.items()) if m is not None}",
        "for p, m in sorted(metadata.items())}",
        ("tests/unit/test_batches.py",),
    ),
    # -- data plane ------------------------------------------------------------------------------------------------------------
    Mutation(
        "an empty chunk is not sent",
        "txtopo/dataplane/outbox.py",
        "            yield slot, wire.pack_chunk(ChunkHeader(*self._identity, number=len(handles),",
        "            if handles or frames:\n                yield slot, wire.pack_chunk(ChunkHeader(*self._identity, number=len(handles),",
        EXECUTE,
    ),
    Mutation(
        "columns overtake the tuples emitted before them",
        "txtopo/dataplane/column_task.py",
        "        self.flush()\n        self._give(batch, source)\n",
        "        self._give(batch, source)\n",
        ("tests/property/test_columns_model.py",),
    ),
    Mutation(
        "a bolt of columns is held before it has executed everything",
        "txtopo/dataplane/column_task.py",
        "        self.flush()\n        super().hold(pieces)\n",
        "        super().hold(pieces)\n",
        ("tests/property/test_columns_model.py",),
    ),
    Mutation(
        "a null key in columns routed as another one",
        "txtopo/dataplane/column_routing.py",
        "        values.append(None)\n",
        "        values.append(0)\n",
        ("tests/property/test_columns_routing.py",),
    ),
    Mutation(
        "a Parquet file may have changed since its batch was planned",
        "txtopo/connectors/parquet_files.py",
        "            footer.check(identity)\n",
        "",
        ("tests/unit/test_parquet_files.py",),
    ),
    Mutation(
        "prepare called again after hold",
        "txtopo/dataplane/task.py",
        '            self.instance = self.call("restoring the held bolt", hold.load, held, self.bindings)\n        else:',
        '            self.instance = self.call("restoring the held bolt", hold.load, held, self.bindings)\n        if True:',
        EXECUTE,
    ),
    Mutation(
        "routing by Python's own hash",
        "txtopo/topology/grouping.py",
        '    return int.from_bytes(blake2b(encode_key(values), digest_size=8).digest(), "big") % num_tasks\n',
        "    return hash(tuple(values)) % num_tasks\n",
        ("tests/unit/test_key_encoding.py",),
    ),
    Mutation(
        "values not frozen at emit",
        "txtopo/dataplane/emit.py",
        "            send(copy)\n",
        "            send(row)\n",
        ("tests/unit/test_emit_freezes.py",),
    ),
    Mutation(
        "a tuple that a bolt keeps is used again for the next row that arrived",
        "txtopo/dataplane/task.py",
        "                if getrefcount(tup) != _ALONE_IN_LOCAL:\n",
        "                if False:\n",
        ("tests/unit/test_emit_paths.py",),
    ),
    Mutation(
        "a tuple that a bolt keeps is used again for the next row of a neighbour",
        "txtopo/dataplane/task.py",
        "            if getrefcount(tup) != _ALONE_IN_CELL:\n",
        "            if False:\n",
        ("tests/unit/test_emit_paths.py",),
    ),
    Mutation(
        "rows that wait are never counted",
        "txtopo/dataplane/execute.py",
        "        task.collector.on_many = self.outbox.pack_if_many\n",
        "",
        ("tests/unit/test_bounded_memory.py",),
    ),
    Mutation(
        "texts are joined also where one has the separator in it",
        "txtopo/dataplane/transposed.py",
        "        if text.count(_SEPARATOR) == len(values) - 1:\n",
        "        if True:\n",
        ("tests/property/test_rows_transposed.py",),
    ),
    Mutation(
        "heavy rows wait in memory until there are many of them",
        "txtopo/dataplane/execute.py",
        "        if self.heavy_bytes > outbox.Outbox.PACK_BYTES:\n",
        "        if False:\n",
        ("tests/unit/test_bounded_memory.py",),
    ),
    Mutation(
        "finish skipped where no tuple came",
        "txtopo/dataplane/execute.py",
        "                bolt.finish()\n",
        "                if bolt.executed:\n                    bolt.finish()\n",
        EXECUTE,
    ),
    Mutation(
        "opaque metadata of a discarded attempt stays in use",
        "txtopo/runtime/batches.py",
        "            self._in_use[attempt.txid] = (attempt, metadata)\n",
        "            self._in_use.setdefault(attempt.txid, (attempt, metadata))\n",
        ("tests/unit/test_batches.py",),
    ),
    Mutation(
        "lanes not in the order of source and task",
        "txtopo/dataplane/inbox.py",
        "key=lambda key: (order[key[0]], key[1]))",
        "key=lambda key: (-order[key[0]], -key[1]))",
        EXECUTE,
    ),
    Mutation(
        "what is downstream of a committer is not held",
        "txtopo/topology/soundness.py",
        "any(source in found and source != spout for source in above)",
        "False",
        ("tests/unit/test_plan_levels.py", "tests/unit/test_soundness.py", *EXECUTE),
    ),
    # -- small transactions ----------------------------------------------------------------------------------------------------
    Mutation(
        "a deferred attempt applied without being sealed first",
        "txtopo/coordinator/coordinator.py",
        "            head.status = transitions.next_status(str(head.attempt), head.status, Step.TURN)\n"
        "            commands.append(messages.Seal(head.attempt))\n",
        "            was = head.status\n"
        "            head.status = Status.APPLYING if was is Status.WAITING else transitions.next_status(str(head.attempt), was, Step.TURN)\n"
        "            commands.append(messages.Apply(head.attempt) if was is Status.WAITING else messages.Seal(head.attempt))\n",
        DEFERS,
    ),
    Mutation(
        "a transaction that failed is deferred again",
        "txtopo/coordinator/coordinator.py",
        " and self._tries[txid] == 1\n",
        "\n",
        (*DEFERS, *ENGINE_DEFERS),
    ),
    Mutation(
        "what waits is not started when nothing is deferred any more",
        "txtopo/coordinator/coordinator.py",
        "        if not self._defers:\n            self._start_waiting(commands)\n",
        "",
        DEFERS,
    ),
    Mutation(
        "what is learnt by emitting is deferred",
        "txtopo/coordinator/coordinator.py",
        "self._defers and not self.policy.emits_metadata and",
        "self._defers and",
        DEFERS,
    ),
    Mutation(
        "a job that takes long does not end the deferring",
        "txtopo/runtime/engine.py",
        "            self._pace.late()\n            self._set_pace()\n",
        "            pass\n",
        ENGINE_DEFERS,
    ),
    Mutation(
        "a transaction that is late is small all the same",
        "txtopo/runtime/pace.py",
        '        """A transaction takes longer than one that is small could."""\n        self._small_in_a_row = 0\n',
        '        """A transaction takes longer than one that is small could."""\n',
        ("tests/unit/test_pace.py",),
    ),
    Mutation(
        "the parts of a straight job go on after one that failed",
        "txtopo/dataplane/straight.py",
        "        return made if self.report.failure is None else None\n",
        "        return made\n",
        STRAIGHT,
    ),
    Mutation(
        "the late part of a straight job is skipped",
        "txtopo/dataplane/straight.py",
        "            if made is not None and self.parts[-1].report.late_rows:\n",
        "            if False:\n",
        STRAIGHT,
    ),
    Mutation(
        "a straight job takes what any task attempt has made",
        "txtopo/dataplane/straight.py",
        "        expected = (self.task_attempt,) if self.parts else None\n",
        "        expected = (self.parts[-1].task_attempt,) if self.parts else None\n",
        STRAIGHT,
    ),
    Mutation(
        "a standing task keeps its slot although others want it",
        "txtopo/runtime/standing.py",
        "            stays = self._others == 0 and task.used",
        "            stays = task.used",
        STANDING,
    ),
    Mutation(
        "on one slot all tasks get the same list",
        "txtopo/dataplane/execute.py",
        '                    if grouping.kind in ("all", "custom") and receiver.parallelism > 1:\n',
        "                    if False:\n",
        STRAIGHT,
    ),
    Mutation(
        "own copies are no copies",
        "txtopo/dataplane/emit.py",
        "        send(row if is_immutable(row) else wire.load_values(wire.dump_values(row, run)))\n",
        "        send(row)\n",
        STRAIGHT,
    ),
)
