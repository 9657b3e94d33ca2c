"""Mutations at the edges: refusals before a start, hidden secrets, and bounds."""

from __future__ import annotations

from tests.mutants.mutation import RESIDENT, STORE, Mutation

_CONNECT = ("tests/unit/test_spark_connect.py",)
_BACK_OFF = ("tests/unit/test_engine_backs_off.py",)
_REDACTION = ("tests/property/test_redaction.py",)
_SPELLING = ("tests/conformance/test_sql_sink_spelling.py",)
_DISCARDS = ("tests/unit/test_engine_discards.py",)
STOPS = ("tests/unit/test_coordinator_stops.py", "tests/property/test_coordinator_machine.py")

EDGES = (
    # -- Spark Connect -----------------------------------------------------------------------------
    Mutation(
        "Spark Connect in the settings is let in",
        "txtopo/spark/connect.py",
        "        if is_connect.get(key):\n",
        "        if False:\n",
        _CONNECT,
    ),
    Mutation(
        "Spark Connect in the environment is let in",
        "txtopo/spark/connect.py",
        "        if asked:\n",
        "        if False:\n",
        _CONNECT,
    ),
    Mutation(
        "a local cluster with the address of Spark Connect is let in",
        "txtopo/spark/connect.py",
        '    if master.lower().startswith("sc://"):\n',
        "    if False:\n",
        _CONNECT,
    ),
    # -- custom groupings --------------------------------------------------------------------------
    Mutation(
        "a custom grouping may choose a task that does not exist",
        "txtopo/dataplane/route.py",
        '    if not hasattr(task, "__index__") or not 0 <= task < tasks:\n',
        "    if False:\n",
        ("tests/unit/test_emit_mistakes.py", "-k", "custom_grouping"),
    ),
    Mutation(
        "a custom grouping of columns may choose a task that does not exist",
        "txtopo/dataplane/columns/routing.py",
        "                    route.check_choice(custom, task, len(lanes), memory.edge)\n",
        "",
        ("tests/unit/test_emit_mistakes.py", "-k", "custom_grouping"),
    ),
    # -- where a run stops -------------------------------------------------------------------------
    Mutation(
        "a run stops before the transactions before the one that stops it have committed",
        "txtopo/coordinator/coordinator.py",
        "            self.doomed, self._doom = txid, stop\n",
        "            self._begin_stop(stop, commands)\n",
        (*STOPS, "tests/property/test_simulator_stops.py"),
    ),
    Mutation(
        "of several transactions that stop a run the last to fail is named",
        "txtopo/coordinator/coordinator.py",
        "        elif self.doomed is None or txid < self.doomed:\n",
        "        else:\n",
        STOPS,
    ),
    Mutation(
        "what comes after a transaction that stops the run is begun",
        "txtopo/coordinator/coordinator.py",
        "            end = min(end, self.doomed)\n",
        "            pass\n",
        STOPS,
    ),
    # -- failures in texts of Spark's --------------------------------------------------------------
    Mutation(
        "what a text of Spark's quotes is unpickled without the signature of the run",
        "txtopo/dataplane/outcome.py",
        "        if hmac.compare_digest(match[1], _signature(match[2], secret)):\n",
        "        if True:\n",
        ("tests/unit/test_task_failures.py",),
    ),
    Mutation(
        "the secret of a run is shown",
        "txtopo/dataplane/job.py",
        "secrets.token_bytes(32), repr=False)",
        "secrets.token_bytes(32))",
        ("tests/unit/test_task_failures.py",),
    ),
    # -- back-off ----------------------------------------------------------------------------------
    Mutation(
        "a replay waits for nothing",
        "txtopo/engine/loop.py",
        "        return bound * (0.5 + self.rng.random() / 2)\n",
        "        return 0.0\n",
        _BACK_OFF,
    ),
    Mutation(
        "the back-off has no bound",
        "txtopo/engine/loop.py",
        "min(self.conf.backoff_max_s, self.conf.backoff_min_s * 2.0 ** min(failures - 1, 30))",
        "self.conf.backoff_min_s * 2.0 ** min(failures - 1, 30)",
        _BACK_OFF,
    ),
    Mutation(
        "the back-off is the same for all",
        "txtopo/engine/loop.py",
        "        return bound * (0.5 + self.rng.random() / 2)\n",
        "        return bound\n",
        _BACK_OFF,
    ),
    # -- stores ------------------------------------------------------------------------------------
    Mutation(
        "check_sink kills a task nowhere",
        "txtopo/testing/contracts/sink.py",
        "            if left == 0:\n",
        "            if left == 0 and not files:\n",
        ("tests/conformance/test_sink_checker.py", "-k", "Halving"),
    ),
    Mutation(
        "SQLite never forgets the lists of what was written",
        "txtopo/stores/sqlite/store.py",
        "        if self.is_listed:\n            self._forget_written(stamp.topology_id, stamp.component)\n",
        "",
        ("tests/unit/test_store_sqlite.py",),
    ),
    Mutation(
        "a reader looks at the fences before it reads",
        "txtopo/stores/results.py",
        "            first = list(itertools.islice(rows, 1))\n            recorded = self._check_reaches(as_of)\n",
        "            recorded = self._check_reaches(as_of)\n            first = list(itertools.islice(rows, 1))\n",
        STORE,
    ),
    Mutation(
        "SQLite combines integers of any length",
        "txtopo/stores/sqlite/bulk.py",
        "length(curr) < 16 AND ",
        "",
        STORE,
    ),
    Mutation(
        "only the last block's steps are remembered",
        "txtopo/stores/base.py",
        "{**earlier, **steps} if earlier else steps\n",
        "steps\n",
        STORE,
    ),
    Mutation(
        "SQLite reads the key that is the prefix itself in a state of its own",
        "txtopo/stores/sqlite/store.py",
        '            connection.execute("BEGIN")  # both statements see one state\n',
        "",
        STORE,
    ),
    # -- what is not shown -------------------------------------------------------------------------
    Mutation(
        "a password in an address ends at the first slash",
        "txtopo/topology/redaction.py",
        '(?::|%3a)).*(?=@)")',
        '(?::|%3a))[^/@\\s]+(?=@)")',
        _REDACTION,
    ),
    Mutation(
        "a password in an address with a slash is taken for a port",
        "txtopo/topology/redaction.py",
        "(?::\\d{1,5})?",
        "(?::[^/@]*)?",
        _REDACTION,
    ),
    Mutation(
        "a password that is named in an address is shown",
        "txtopo/topology/redaction.py",
        "    return _NAMED.sub(hide, PASSWORD_IN_URL",
        "    return (lambda hide, text: text)(hide, PASSWORD_IN_URL",
        _REDACTION,
    ),
    Mutation(
        "what follows an option that takes a secret is shown",
        "txtopo/topology/redaction.py",
        "        yield redacted(item, option)\n",
        "        yield redacted(item)\n",
        _REDACTION,
    ),
    # -- statements of users -----------------------------------------------------------------------
    Mutation(
        "a name between dollar quotes is a value of the statement",
        "txtopo/connectors/sql/parameters.py",
        'r"(?<![\\w$])\\$(?P<tag>(?:[^\\W\\d]\\w*)?)\\$.*?\\$(?P=tag)\\$", _LINE',
        "_LINE",
        ("tests/unit/test_sql_sink.py",),
    ),
    Mutation(
        "a backslash does not keep the quote of an E text",
        "txtopo/connectors/sql/parameters.py",
        'r"(?<![\\w$])[eE]" + _ESCAPED.format("\'")',
        '_DOUBLED.format("\'")',
        ("tests/unit/test_sql_sink.py",),
    ),
    Mutation(
        "two spellings of one SQLite file are two files",
        "txtopo/stores/sqlite/store.py",
        "        self.path = os.path.realpath(os.path.expanduser(path_text))\n",
        "        self.path = os.path.abspath(os.path.expanduser(path_text))\n",
        ("tests/unit/test_store_sqlite.py",),
    ),
    Mutation(
        "an undo log knows transactions from before its sink was adopted",
        "txtopo/connectors/sql/ledger.py",
        "            if fence is None or fence.attempt == stamps.CLOSED_ATTEMPT:\n",
        "            if False:\n",
        ("tests/conformance/test_sql_sink.py", "-k", "sqlite and adopted"),
    ),
    Mutation(
        "a sink leaves it to the driver what becomes of a value",
        "txtopo/connectors/sql/ledger.py",
        "                values.check(work)\n",
        "",
        ("tests/conformance/test_values.py", "-k", "sqlite"),
    ),
    # -- keys that a table compares loosely --------------------------------------------------------
    Mutation(
        "two spellings of a key are one row in SQLite",
        "txtopo/connectors/sql/sqlite.py",
        "        if stored is not None:\n            raise work.misspelt(number, row, stored)\n",
        "",
        (*_SPELLING, "-k", "sqlite"),
    ),
    Mutation(
        "two spellings of a key are one row in PostgreSQL",
        "txtopo/connectors/sql/postgresql.py",
        "    if (misspelt := cursor.fetchone()) is not None:\n        raise work.misspelt(0,",
        "    if (misspelt := cursor.fetchone()) is not None and False:\n        raise work.misspelt(0,",
        (*_SPELLING, "-k", "postgresql"),
    ),
    Mutation(
        "two spellings of a key are one row in MariaDB",
        "txtopo/connectors/sql/mysql.py",
        "            if all(isinstance(text, str) for text in spelt) and spelt not in stored:\n",
        "            if False:\n",
        (*_SPELLING, "-k", "mariadb"),
    ),
    # -- attempts discarded during a wait ----------------------------------------------------------
    Mutation(
        "a plan that comes too late decides what the batch is",
        "txtopo/engine/engine.py",
        "if isinstance(event, messages.Emitted) and self._coordinator.active.get(event.attempt.txid) == (event.attempt, Status.EMITTING):",
        "if isinstance(event, messages.Emitted) and event.attempt in self._attempts:",
        _DISCARDS,
    ),
    Mutation(
        "a discarded attempt that waited for its thread is worked on",
        "txtopo/engine/steps.py",
        "        if work.discarded:\n",
        "        if False:\n",
        _DISCARDS,
    ),
    Mutation(
        "a discarded attempt is sealed",
        "txtopo/engine/commit_writes.py",
        "        if not work.discarded:\n",
        "        if True:\n",
        _DISCARDS,
    ),
    # -- unexpected errors -------------------------------------------------------------------------
    Mutation(
        "an unexpected error ends a thread, and the run waits for the thread",
        "txtopo/spark/threads.py",
        "                self._failed(error)\n",
        "                raise\n",
        ("tests/unit/test_engine_ends.py", "-k", "tells_the_error"),
    ),
    Mutation(
        "an unexpected error of a simulated driver is raised in its schedule",
        "txtopo/testing/simulator/driver.py",
        "            self._failed(error)\n",
        "            raise\n",
        ("tests/unit/test_simulator_driver.py",),
    ),
    Mutation(
        "what was cancelled is remembered without a bound",
        "txtopo/spark/resident_task.py",
        "            while len(remembered) > _REMEMBERED_MAX:\n",
        "            while False:\n",
        RESIDENT,
    ),
    Mutation(
        "a simulated driver that is dead writes on",
        "txtopo/testing/simulator/driver.py",
        "    def multi(self, operations: Sequence[base.Operation]) -> None:\n        self._driver.require_alive()\n",
        "    def multi(self, operations: Sequence[base.Operation]) -> None:\n",
        ("tests/unit/test_simulator_driver.py",),
    ),
    Mutation(
        "a killed ZooKeeper is alive until its watchdog has reported the end",
        "txtopo/state/embedded.py",
        " and not self._server.is_gone()",
        "",
        ("tests/integration/test_embedded_zookeeper.py", "-k", "before_its_watchdog_has_reported"),
    ),
)
