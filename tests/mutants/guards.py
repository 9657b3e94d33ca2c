"""The guards: every one is removed, and a test must notice. ``docs/guards.md`` shows this table."""

from __future__ import annotations

from tests.mutants.mutation import (
    COORDINATOR,
    MARIADB,
    MIXED,
    POSTGRESQL,
    READERS,
    REDIS,
    RESULTS,
    SOUNDNESS,
    STANDING,
    STATE,
    STORE,
    ZOMBIES,
    Guard,
    Mutation,
)

_HAZARDS = "tests/fault/test_spark_hazards.py"
_ALONE = "tests/fault/test_spark_hazards_guards.py"
_KILLED = "tests/fault/test_driver_is_killed.py"
_CHECKS = "return [base.Check(paths.marker(self.generation), 0), base.Check(paths.epoch, self._epoch_version), base.Check(paths.lease, 0)]"

GUARDS = (
    # -- one coordinator -------------------------------------------------------------------------------------------------------
    Guard(
        "lease",
        (26,),
        "a second coordinator takes a topology whose holder is alive",
        (
            Mutation(
                "a live holder's lease does not count",
                "txtopo/state/lease.py",
                "        if lease is not None and not self._displaces:\n",
                "        if False:\n",
                STATE,
            ),
        ),
    ),
    Guard(
        "epoch check",
        (26,),
        "a coordinator that lost the topology without noticing goes on writing its state",
        (
            Mutation("epoch check dropped", "txtopo/state/lease.py", _CHECKS, "return []", STATE),
            Mutation(
                "epoch alone not checked",
                "txtopo/state/lease.py",
                _CHECKS,
                "return [base.Check(paths.marker(self.generation), 0), base.Check(paths.lease, 0)]",
                STATE,
            ),
        ),
    ),
    Guard(
        "generation check",
        (27,),
        "a coordinator, or a store, of an earlier incarnation of the state is taken for one of this",
        (
            Mutation(
                "generation of the state not checked",
                "txtopo/state/lease.py",
                _CHECKS,
                "return [base.Check(paths.epoch, self._epoch_version), base.Check(paths.lease, 0)]",
                STATE,
            ),
            Mutation(
                "generation of a store not compared",
                "txtopo/stores/stamps.py",
                "    if fence.generation != mine.generation:\n",
                "    if False:\n",
                STORE,
            ),
        ),
    ),
    Guard(
        "stale answers",
        (6,),
        "a late answer of an attempt that was given up decides about the live one",
        (
            Mutation(
                "stale answers not compared with the live attempt",
                "txtopo/coordinator/coordinator.py",
                "        return entry if entry is not None and entry.attempt == attempt else None\n",
                "        return entry\n",
                COORDINATOR,
            ),
        ),
    ),
    Guard(
        "attempt ids that never come again",
        (1,),
        "an attempt after a restart passes for one before it, at every fence",
        (
            Mutation(
                "attempt ids restart at 0 with every epoch",
                "txtopo/topology/transaction.py",
                "    return (epoch - 1) * ATTEMPTS_PER_EPOCH + n\n",
                "    return n\n",
                ("tests/unit/test_transaction_attempts.py", *COORDINATOR),
            ),
        ),
    ),
    # -- the commit ------------------------------------------------------------------------------------------------------------
    Guard(
        "seal before apply",
        (23, 25),
        "after a crash nobody knows that effects may exist, nor of which batch and attempt",
        (
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
                "an attempt recorded that is not the sealed one",
                "txtopo/state/topology.py",
                "        if sealed is None or (sealed.txid, sealed.attempt_id) != (attempt.txid, attempt.attempt_id):\n",
                "        if False:\n",
                STATE,
            ),
        ),
        (_KILLED,),
    ),
    Guard(
        "sealed task counts",
        (23,),
        "a replay with other parallelism deals the batch to other tasks than its first application",
        (
            Mutation(
                "sealed task counts forgotten after a restart",
                "txtopo/runtime/engine.py",
                "self._sealed_tasks.get(attempt.txid, self._run.graph.task_counts)",
                "self._run.graph.task_counts",
                ("tests/unit/test_sealed_task_counts.py",),
            ),
        ),
        ("tests/integration/test_restart.py",),
    ),
    Guard(
        "size check before effects",
        (25,),
        "a transaction has effects that can then not be recorded",
        (
            Mutation(
                "a seal or record beyond the bound is written",
                "txtopo/state/topology.py",
                "            if size > self._bytes_max:\n                raise self._too_large(what, size, partitions)\n",
                "",
                STATE,
            ),
        ),
    ),
    Guard(
        "outcome read back",
        (25,),
        "a write whose answer was lost is made twice, or taken for another coordinator's",
        (
            Mutation(
                "lost acknowledgement taken for a write that did not happen",
                "txtopo/state/writer.py",
                "        if node.data == write.set_current.data:\n            return True\n",
                "        if node.data == write.set_current.data:\n            return False\n",
                STATE,
            ),
        ),
        (_KILLED,),
    ),
    Guard(
        "unreadable state stops the run",
        (25,),
        "state that cannot be read is taken as the beginning, and everything is counted again",
        (
            Mutation(
                "unreadable state read as absent",
                "txtopo/state/rotating.py",
                "                self._decode_value(path, node.data)\n                data[int(name)] = node.data\n",
                "                try:\n"
                "                    self._decode_value(path, node.data)\n"
                "                    data[int(name)] = node.data\n"
                "                except errors.UnreadableStateError:\n"
                "                    pass\n",
                ("tests/unit/test_state_rotating.py", *STATE),
            ),
        ),
    ),
    # -- stores ----------------------------------------------------------------------------------------------------------------
    Guard(
        "fence",
        (29,),
        "a zombie task writes after another attempt has, and its transaction counts twice or is overwritten",
        (
            Mutation(
                "attempt dropped from the fence",
                "txtopo/stores/stamps.py",
                "    at, here = (fence.txid, fence.attempt), (mine.txid, mine.attempt)\n",
                "    at, here = (fence.txid, 0), (mine.txid, 0)\n",
                STORE,
            ),
            Mutation(
                "a late attempt passes the fence",
                "txtopo/stores/stamps.py",
                '        return "equal" if at == here else "above"\n',
                '        return "equal"\n',
                STORE,
            ),
            Mutation(
                "a late attempt whose update newer ones removed is told that others changed the store",
                "txtopo/stores/transaction.py",
                "        if newer is not None:\n",
                "        if False:\n",
                STORE,
            ),
            Mutation(
                "the fence is not raised",
                "txtopo/stores/base.py",
                "        session.write_fence(stamps.Fence(mine.topology_id, mine.component, mine.generation, mine.txid, mine.attempt))\n",
                "",
                STORE,
            ),
            Mutation(
                "the fence is read without a lock",
                "txtopo/stores/sqlite.py",
                '                raw.execute("BEGIN IMMEDIATE")\n',
                '                raw.execute("BEGIN DEFERRED")\n',
                ("tests/fault/test_store_processes.py", "tests/unit/test_store_sqlite.py", "-k", "sqlite"),
            ),
            Mutation(
                "in PostgreSQL the fence may be raised while a task stands at it",
                "txtopo/stores/relational_statements.py",
                ".with_for_update(read=True),\n",
                ",\n",
                POSTGRESQL,
            ),
            Mutation(
                "in PostgreSQL an attempt that is not at the fence stands at it",
                "txtopo/stores/relational_statements.py",
                ".where(is_fence, is_here)",
                ".where(is_fence)",
                POSTGRESQL,
            ),
            Mutation(
                "in PostgreSQL the only task writes under a fence that it does not have for itself",
                "txtopo/stores/relational.py",
                "        self._taken = self._read_fence(mine.topology_id, mine.component, lock=True)\n",
                "        self._taken = self._read_fence(mine.topology_id, mine.component)\n",
                POSTGRESQL,
            ),
            Mutation(
                "in PostgreSQL a fence is raised without waiting for who stands at it",
                "txtopo/stores/relational.py",
                "            found = self._read_fence(topology_id, component, lock=True)\n",
                "            found = self._read_fence(topology_id, component)\n",
                POSTGRESQL,
            ),
            Mutation(
                "in MariaDB whoever is not at the fence keeps the lock of it",
                "txtopo/stores/mysql.py",
                "        if not stands:\n",
                "        if False:\n",
                MARIADB,
            ),
            Mutation(
                "in Redis what a task writes is applied whatever the fence is by then",
                "txtopo/stores/redis_layout.py",
                "  if fence ~= ARGV[4] then return {'fence', fence} end\n",
                "",
                REDIS,
            ),
            Mutation(
                "in Redis an attempt goes on after another server process took over",
                "txtopo/stores/redis_session.py",
                "        if self._raised is None and layout.fence_of(self._field, self._fence)[1] != self._opened.tenure:\n",
                "        if False:\n",
                REDIS,
            ),
        ),
        (_HAZARDS, "tests/fault/test_store_processes.py"),
    ),
    Guard(
        "stamps",
        (28, 30),
        "a replay applies again what was applied, or builds on what its own first attempt left",
        (
            Mutation(
                "stamp of this transaction is taken for an earlier one",
                "txtopo/stores/stamps.py",
                'stamp.txid < mine.txid:\n        return "undone" if',
                'stamp.txid <= mine.txid:\n        return "undone" if',
                STORE,
            ),
            Mutation(
                "stamp test by equality, so that a later one counts as not applied",
                "txtopo/stores/stamps.py",
                '    if stamp.txid > mine.txid:\n        return "ahead"\n',
                '    if stamp.txid > mine.txid:\n        return "past"\n',
                ("tests/unit/test_store_sqlite.py", *STORE),
            ),
        ),
        (_KILLED,),
    ),
    Guard(
        "take-back",
        (31,),
        "a key that only a failed attempt of an opaque transaction touched keeps its delta, and counts again later",
        (
            Mutation(
                "no take-back of what a failed attempt of an opaque transaction wrote",
                "txtopo/stores/base.py",
                "            self._take_back(session, fence)\n",
                "            pass\n",
                STORE,
            ),
            Mutation(
                "a value that was taken back to is taken for one of a failed attempt",
                "txtopo/stores/stamps.py",
                "    if stamp.attempt > mine.attempt or stamp.attempt == UNKNOWN_ATTEMPT:\n",
                "    if stamp.attempt > mine.attempt:\n",
                STORE,
            ),
            Mutation(
                "what a void attempt left is built upon",
                "txtopo/stores/stamps.py",
                "    return last is None or stamp.txid > last.txid\n",
                "    return False\n",
                ("tests/conformance/test_store_recorded.py", "-k", "memory or sqlite"),
            ),
            Mutation(
                "in Redis what a late task writes while it is being taken back stays",
                "txtopo/stores/redis_layout.py",
                "if ARGV[6] ~= '' and redis.call('LLEN', KEYS[6]) ~= tonumber(ARGV[6]) then return {'written'} end\n",
                "",
                REDIS,
            ),
        ),
    ),
    Guard(
        "known stores",
        (27, 29, 31),
        "a store that was emptied, or restored from another day than ZooKeeper, is written as if nothing had happened",
        (
            Mutation(
                "a store in Redis that lacks what a worker was acknowledged is written",
                "txtopo/stores/redis_session.py",
                "    return reached if reached < known.version else None\n",
                "    return None\n",
                REDIS,
            ),
            Mutation(
                "a store in Redis whose adoption died half way is written",
                "txtopo/stores/redis.py",
                "            session.check_is_not_held()\n",
                "",
                REDIS,
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
                "store newer than ZooKeeper accepted",
                "txtopo/stores/base.py",
                "            raise _unexplained(self, fence, last)\n",
                "            pass\n",
                STORE,
            ),
            Mutation(
                "an attempt that was never sealed is taken for one that was",
                "txtopo/stores/base.py",
                "            raise _never_sealed(self, fence)\n",
                "            pass\n",
                STORE,
            ),
            Mutation(
                "stores that were opened are not remembered",
                "txtopo/state/topology.py",
                "        stores = {**self._known_stores, **dict.fromkeys(touched_stores, attempt)}\n",
                "        stores = {**self._known_stores}\n",
                STATE,
            ),
        ),
    ),
    Guard(
        "readers of recorded transactions",
        (3, 31),
        "a reader who asks for committed transactions sees one that is under way, in one store and not in the other, or one that never counts",
        (
            Mutation(
                "a reader goes by the txid alone",
                "txtopo/stores/visible.py",
                "    return row.curr if last is not None and stamp.txid <= last.txid else row.prev\n",
                "    return row.curr if stamp.txid <= as_of else row.prev\n",
                READERS,
            ),
            Mutation(
                "a reader who comes too late is not told",
                "txtopo/stores/visible.py",
                "    if newest > as_of + 1:\n",
                "    if newest > as_of + 9:\n",
                READERS,
            ),
            Mutation(
                "what is recorded is read at several moments",
                "txtopo/runtime/visibility.py",
                "            if _record(store, paths.current, records.CurrentRecord) == before:\n",
                "            if True:\n",
                ("tests/unit/test_visibility.py",),
            ),
        ),
        ("tests/property/test_several_stores.py", "tests/integration/test_visible_txid.py"),
    ),
    Guard(
        "one writer per key",
        (32,),
        "of two tasks that update one key in one transaction, one is lost when it is replayed",
        (
            Mutation(
                "two writers of one key in one transaction",
                "txtopo/stores/stamps.py",
                '    return "mine" if (stamp.component, stamp.task) == (mine.component, mine.task) else "rival"\n',
                '    return "mine"\n',
                STORE,
            ),
            Mutation(
                "in PostgreSQL a row is written over what another has written since it was read",
                "txtopo/stores/postgresql.py",
                'f" WHERE given.version IS NULL OR kept.{_VERSION} = given.version ORDER BY kept.key FOR UPDATE OF kept)"',
                '" ORDER BY kept.key FOR UPDATE OF kept)"',
                POSTGRESQL,
            ),
            Mutation(
                "in PostgreSQL an integer is combined with what another task has written",
                "txtopo/stores/postgresql_merge.py",
                " AND kept.txid <= CAST(:settled AS bigint)",
                "",
                POSTGRESQL,
            ),
            Mutation(
                "in PostgreSQL a row that was taken back is taken for one that was combined",
                "txtopo/stores/postgresql_merge.py",
                " AND xmin = pg_current_xact_id()::xid AND {stamp}'",
                " AND xmin = pg_current_xact_id()::xid'",
                POSTGRESQL,
            ),
            Mutation(
                "in MariaDB a row that will be written is not locked when it is read",
                "txtopo/stores/mysql.py",
                '            found = self._read(texts, " FOR UPDATE")\n',
                '            found = self._read(texts, "")\n',
                MARIADB,
            ),
            Mutation(
                "in MariaDB a row that somebody else has added is replaced",
                "txtopo/stores/mysql.py",
                "            self._write(new, replacing=False)\n",
                "            self._write(new, replacing=True)\n",
                MARIADB,
            ),
            Mutation(
                "in MariaDB a small table is read, and locked, from its beginning",
                "txtopo/stores/mysql.py",
                " FORCE INDEX (PRIMARY)",
                "",
                MARIADB,
            ),
            Mutation(
                "in Redis a row is written over what another has written since it was read",
                "txtopo/stores/redis_layout.py",
                "  if there ~= ARGV[i + 1] then\n",
                "  if false then\n",
                REDIS,
            ),
        ),
    ),
    Guard(
        "combinations that cannot be right",
        (31, 32),
        "a topology runs whose store cannot take back what an opaque spout's failed batch wrote, or whose tasks share keys",
        (
            Mutation(
                "an opaque spout with a store that does not take back",
                "txtopo/topology/soundness.py",
                '        if spout_kind == "opaque" and not written.takes_back:\n',
                "        if False:\n",
                SOUNDNESS,
            ),
            Mutation(
                "equal keys spread over the tasks of a keyed committer",
                "txtopo/topology/soundness.py",
                "        if grouping.kind in SPREADING:\n",
                "        if False:\n",
                SOUNDNESS,
            ),
            Mutation(
                "a committer grouped by other fields than its key",
                "txtopo/topology/soundness.py",
                "            if others := [name for name in grouping.fields if name not in key_fields]:\n",
                "            if others := []:\n",
                SOUNDNESS,
            ),
            Mutation(
                "fields groupings that part equal keys",
                "txtopo/topology/soundness.py",
                "    if len(by_fields) > 1:\n",
                "    if False:\n",
                SOUNDNESS,
            ),
        ),
    ),
    Guard(
        "stores are written in the commit phase only",
        (32,),
        "transactions write side by side, out of order",
        (
            Mutation(
                "a store written in the processing phase",
                "txtopo/stores/base.py",
                '        if context.phase != "commit":\n',
                "        if False:\n",
                STORE,
            ),
        ),
    ),
    # -- Spark -----------------------------------------------------------------------------------------------------------------
    Guard(
        "required settings",
        (33,),
        "Spark tries tasks and stages again, and starts second copies of slow tasks, within an attempt",
        (
            Mutation(
                "unsafe settings accepted",
                "txtopo/runtime/session.py",
                "        raise errors.SetupError(f\"{where} has {found}\\n  {cure}\")\n",
                "        return\n",
                ("tests/integration/test_session.py", "-k", "settings_that_could_mix"),
            ),
        ),
        (_HAZARDS, _ALONE, "tests/starter/test_spark_submit.py"),
    ),
    Guard(
        "job check",
        (33,),
        "a commit job that lost a block computes the processing phase again, spout included, and commits that",
        (
            Mutation(
                "a closure runs for whatever job",
                "txtopo/runtime/task.py",
                "    if asked != group:\n",
                "    if False:\n",
                ("tests/unit/test_job_check.py",),
            ),
        ),
        (_ALONE,),
    ),
    Guard(
        "local checkpoint",
        (33,),
        "a lost block of a pinned result is computed again, silently, by whatever job reads it",
        (
            Mutation(
                "pinned results keep their lineage",
                "txtopo/runtime/jobs.py",
                "            rdd.localCheckpoint()\n",
                "",
                RESULTS,
            ),
        ),
        (_HAZARDS, _ALONE),
    ),
    Guard(
        "chunk agreement",
        (11, 33),
        "tasks of one attempt work on different emissions of its batch, or on a part of one",
        (
            Mutation(
                "two computations of one slot accepted",
                "txtopo/dataplane/receive.py",
                "        if len({header.task_attempt for header in self.headers}) > 1:\n",
                "        if False:\n",
                MIXED,
            ),
            Mutation(
                "disagreeing lineages accepted",
                "txtopo/dataplane/receive.py",
                "        if into.setdefault(place, task_attempt) != task_attempt:\n",
                "        if into.setdefault(place, task_attempt) is None:\n",
                MIXED,
            ),
            Mutation(
                "missing and doubled chunks accepted",
                "txtopo/dataplane/receive.py",
                "        if len(totals) != 1 or numbers != list(range(totals[0])):\n",
                "        if False:\n",
                MIXED,
            ),
            Mutation(
                "a slot that sent nothing is not missed",
                "txtopo/dataplane/receive.py",
                "    if set(senders) != set(range(sending_slots)):\n",
                "    if set(senders) - set(range(sending_slots)):\n",
                MIXED,
            ),
            Mutation(
                "a chunk of another attempt accepted",
                "txtopo/dataplane/receive.py",
                "            if header.job != job.name or header.level != level - 1:\n",
                "            if header.level != level - 1:\n",
                MIXED,
            ),
            Mutation(
                "the driver does not compare the last level's slots",
                "txtopo/runtime/jobs.py",
                "        receive.merge_lineage(lineage, report.lineage)\n",
                "",
                RESULTS,
            ),
            Mutation(
                "a missing report is not missed",
                "txtopo/runtime/jobs.py",
                "    if sorted(report.slot for report in reports) != list(range(slots)) or any(report.job != job.name for report in reports):\n",
                "    if any(report.job != job.name for report in reports):\n",
                RESULTS,
            ),
        ),
        (_ALONE,),
    ),
    Guard(
        "held-state fence",
        (33,),
        "a pinned result that Spark made again on its own passes for the one the driver was told of",
        (
            Mutation(
                "a pinned result that was computed again accepted",
                "txtopo/dataplane/receive.py",
                "            if task_attempt != expected_task_attempt:\n",
                "            if False:\n",
                MIXED,
            ),
            Mutation(
                "a pinned result without its report accepted",
                "txtopo/dataplane/receive.py",
                "    if expected_task_attempt is not None and reports != 1:\n",
                "    if False:\n",
                MIXED,
            ),
            Mutation(
                "nobody is told who made a pinned result",
                "txtopo/runtime/jobs.py",
                "dataclasses.replace(job, expected=source.task_attempts, ",
                "dataclasses.replace(job, ",
                RESULTS,
            ),
        ),
        (_HAZARDS, _ALONE),
    ),
    Guard(
        "one run of a task with effects",
        (10, 33),
        "Spark runs a commit again by itself, beside the first or after it, when the cluster took its executor away; a whole transaction in one task"
        " may then be two emissions",
        (
            Mutation(
                "a task with effects may be begun again",
                "txtopo/runtime/task.py",
                "    if has_effects and context.attemptNumber() > 0:\n",
                "    if False:\n",
                ("tests/unit/test_job_check.py",),
            ),
            Mutation(
                "a standing task may be begun again",
                "txtopo/runtime/task.py",
                '"a standing task", has_effects=True)\n',
                '"a standing task", has_effects=False)\n',
                ("tests/unit/test_job_check.py",),
            ),
            Mutation(
                "a standing task lets several processes in",
                "txtopo/runtime/standing.py",
                "                    self._stop_listening()\n                    return self._channel\n",
                "                    return self._channel\n",
                STANDING,
            ),
        ),
        (_HAZARDS,),
    ),
    Guard(
        "zombie wait",
        (33,),
        "the tasks of a broken commit and of its replay run side by side: hand-written committers have no other protection",
        (
            Mutation(
                "a commit does not wait for zombies",
                "txtopo/runtime/attempts.py",
                "        self._await_zombies(zombie_wait_s)\n",
                "",
                ZOMBIES,
            ),
            Mutation(
                "a cancelled commit is not waited for",
                "txtopo/runtime/attempts.py",
                "            if part in COMMITTING:\n                self._zombies.append(group)\n        work.release()\n",
                "        work.release()\n",
                ZOMBIES,
            ),
            Mutation(
                "a lost commit is not waited for",
                "txtopo/runtime/attempts.py",
                '            if part in COMMITTING:\n                self._zombies.append(group)\n            raise AttemptFailedError("crash"',
                '            raise AttemptFailedError("crash"',
                ZOMBIES,
            ),
            Mutation(
                "a straight job does not count as a commit",
                "txtopo/dataplane/job.py",
                'COMMITTING: frozenset[Part] = frozenset({"commit", "straight"})\n',
                'COMMITTING: frozenset[Part] = frozenset({"commit"})\n',
                ZOMBIES,
            ),
            Mutation(
                "nobody knows which Spark job served a request that was lost",
                "txtopo/runtime/standing.py",
                "            if task.serving is not None:\n",
                "            if False:\n",
                STANDING,
            ),
            Mutation(
                "nobody knows which Spark job served a request that was cancelled",
                "txtopo/runtime/standing.py",
                "            self._remember(group, task)\n        if task is not None:\n",
                "            self._remember(group, None)\n        if task is not None:\n",
                STANDING,
            ),
            Mutation(
                "a request cancelled beforehand is sent",
                "txtopo/runtime/standing.py",
                '                raise TaskLostError(f"{group} was cancelled before it began")\n',
                "                pass\n",
                STANDING,
            ),
            Mutation(
                "a zombie is waited for without end",
                "txtopo/runtime/attempts.py",
                "        while self._zombies and self._surroundings.now() < deadline:\n",
                "        while self._zombies:\n",
                ZOMBIES,
            ),
        ),
        (_HAZARDS,),
    ),
    # -- user code -------------------------------------------------------------------------------------------------------------
    Guard(
        "a failure is recorded for good",
        (7,),
        "an attempt is committed although user code has failed in it, because somebody upstream caught the exception",
        (
            Mutation(
                "a failure that user code swallowed is forgotten",
                "txtopo/dataplane/task.py",
                "            self.has_failed = True\n",
                "            self.has_failed = False\n",
                ("tests/unit/test_task_failures.py", "tests/unit/test_emit_mistakes.py"),
            ),
        ),
    ),
)
