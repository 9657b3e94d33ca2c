"""The mutations: each breaks one thing that exactly-once rests on, and names the tests that must notice.

``tests`` are the quickest that should; they run on a copy of the tree with nothing else changed.
"""

from __future__ import annotations

from dataclasses import dataclass

COORDINATOR = ("tests/unit/test_coordinator_commits.py", "tests/unit/test_coordinator_failures.py", "tests/unit/test_coordinator_window.py")
EXECUTE = (
    "tests/unit/test_execute_phases.py",
    "tests/unit/test_execute_spouts.py",
    "tests/unit/test_hold.py",
    "tests/property/test_dataplane_model.py",
)
STORE = ("tests/conformance/test_store_contract.py", "tests/conformance/test_store_recorded.py")
STATE = ("tests/conformance/test_state_topology.py", "-k", "memory")


@dataclass(frozen=True)
class Mutation:
    """Replace ``old``, which occurs once in ``file``, by ``new``; one of ``tests`` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    # -- stores ----------------------------------------------------------------------------------------------------------------
    Mutation(
        "stamp of this transaction is taken for an earlier one",
        "txtopo/stores/stamps.py",
        "if stamp.generation != mine.generation or stamp.txid < mine.txid:",
        "if stamp.generation != mine.generation or stamp.txid <= mine.txid:",
        STORE,
    ),
    Mutation(
        "stamp test by equality, so that a later one counts as not applied",
        "txtopo/stores/stamps.py",
        '    if stamp.txid > mine.txid:\n        return "ahead"\n',
        '    if stamp.txid > mine.txid:\n        return "past"\n',
        (*STORE, "tests/unit/test_store_sqlite.py"),
    ),
    Mutation(
        "no take-back of what a failed attempt of an opaque transaction wrote",
        "txtopo/stores/base.py",
        '        elif where == "void" or (where == "replayed" and self.opaque):\n            session.take_back(fence)\n',
        "",
        STORE,
    ),
    Mutation(
        "attempt dropped from the fence",
        "txtopo/stores/stamps.py",
        "    at, here = (fence.txid, fence.attempt), (mine.txid, mine.attempt)\n",
        "    at, here = (fence.txid, 0), (mine.txid, 0)\n",
        STORE,
    ),
    Mutation(
        "generation of a store not compared",
        "txtopo/stores/stamps.py",
        "    if fence.generation != mine.generation:\n",
        "    if False:\n",
        STORE,
    ),
    Mutation(
        "emptied store accepted",
        "txtopo/stores/base.py",
        "                raise _emptied(self, mine)\n",
        "                pass\n",
        STORE,
    ),
    Mutation(
        "store older than ZooKeeper accepted",
        "txtopo/stores/base.py",
        "            raise _behind(self, fence, last)\n",
        "            pass\n",
        STORE,
    ),
    Mutation(
        "two writers of one key in one transaction",
        "txtopo/stores/stamps.py",
        '    return "mine" if (stamp.component, stamp.task) == (mine.component, mine.task) else "rival"\n',
        '    return "mine"\n',
        STORE,
    ),
    # -- coordinator -----------------------------------------------------------------------------------------------------------
    Mutation(
        "attempt ids restart at 0 with every epoch",
        "txtopo/topology/transaction.py",
        "    return (epoch - 1) * ATTEMPTS_PER_EPOCH + n\n",
        "    return n\n",
        ("tests/unit/test_transaction_attempts.py", *COORDINATOR),
    ),
    Mutation(
        "stale answers not compared with the live attempt",
        "txtopo/coordinator/coordinator.py",
        "        return entry if entry is not None and entry.attempt == attempt else None\n",
        "        return entry\n",
        COORDINATOR,
    ),
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
        "seal skipped",
        "txtopo/coordinator/coordinator.py",
        "            commands.append(messages.Seal(head.attempt))\n",
        "            head.status = Status.APPLYING\n            commands.append(messages.Apply(head.attempt))\n",
        COORDINATOR,
    ),
    Mutation(
        "record before apply",
        "txtopo/coordinator/coordinator.py",
        "            case messages.Sealed(attempt):\n                self._on_sealed(attempt, commands)\n",
        "            case messages.Sealed(attempt):\n"
        "                if self._step(attempt, Step.SEALED):\n"
        "                    commands.append(messages.Record(attempt, None))\n",
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
        "epoch check dropped",
        "txtopo/state/lease.py",
        "return [base.Check(paths.marker(self.generation), 0), base.Check(paths.epoch, self._epoch_version), base.Check(paths.lease, 0)]",
        "return []",
        STATE,
    ),
    Mutation(
        "clean-up without leaving the base of the next transaction",
        "txtopo/state/topology.py",
        "        self.txids.cleanup_before(attempt.txid)\n",
        "        self.txids.cleanup_before(attempt.txid + 1)\n",
        STATE,
    ),
    Mutation(
        "unreadable state read as absent",
        "txtopo/state/rotating.py",
        "                self._decode_value(path, node.data)\n                data[int(name)] = node.data\n",
        "                try:\n"
        "                    self._decode_value(path, node.data)\n"
        "                    data[int(name)] = node.data\n"
        "                except errors.UnreadableStateError:\n"
        "                    pass\n",
        ("tests/unit/test_state_rotating.py", "tests/conformance/test_state_topology.py"),
    ),
    Mutation(
        "lost acknowledgement taken for a write that did not happen",
        "txtopo/state/writer.py",
        "        if node.data == write.set_current.data:\n            return True\n",
        "        if node.data == write.set_current.data:\n            return False\n",
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
        "txtopo/dataplane/emit.py",
        "            yield slot, wire.pack_chunk(ChunkHeader(*self._identity, number=len(handles),",
        "            if handles or frames:\n                yield slot, wire.pack_chunk(ChunkHeader(*self._identity, number=len(handles),",
        EXECUTE,
    ),
    Mutation(
        "two computations of one slot accepted",
        "txtopo/dataplane/receive.py",
        "        if len({header.task_attempt for header in self.headers}) > 1:\n",
        "        if False:\n",
        ("tests/unit/test_receive_mixed.py",),
    ),
    Mutation(
        "disagreeing lineages accepted",
        "txtopo/dataplane/receive.py",
        "        if into.setdefault(place, task_attempt) != task_attempt:\n",
        "        if into.setdefault(place, task_attempt) is None:\n",
        ("tests/unit/test_receive_mixed.py",),
    ),
    Mutation(
        "a pinned result that was computed again accepted",
        "txtopo/dataplane/receive.py",
        "            if task_attempt != expected_task_attempt:\n",
        "            if False:\n",
        ("tests/unit/test_receive_mixed.py",),
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
        "                send(self._copy(row))\n",
        "                send(row)\n",
        ("tests/unit/test_emit_freezes.py",),
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
        "txtopo/plan/compiler.py",
        "        if component.committer or any(subscription.source in held - {graph.spout.id} for subscription in component.inputs):\n",
        "        if component.committer:\n",
        ("tests/unit/test_plan_levels.py", *EXECUTE),
    ),
    Mutation(
        "a failure that user code swallowed is forgotten",
        "txtopo/dataplane/task.py",
        "            self.has_failed = True\n",
        "            self.has_failed = False\n",
        ("tests/unit/test_task_failures.py", "tests/unit/test_emit_mistakes.py"),
    ),
)
