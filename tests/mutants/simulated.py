"""Mutations that blind the simulator, or make it report false violations."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

PARTS = "tests/unit/test_simulator_parts.py"
READABLE = ("tests/unit/test_simulator_readable.py",)

CLOCKS = ("tests/unit/test_simulator_clocks.py",)
LOOKS = ("tests/unit/test_simulator_looks.py",)
RACES = ("tests/unit/test_simulator_races.py",)
RECOMPUTES = ("tests/unit/test_simulator_recomputes.py",)

SIMULATED = (
    Mutation(
        "the attempts of what only processes are not compared",
        "txtopo/testing/simulator/simulation.py",
        " or parts.check_processing(self.subject)",
        "",
        (PARTS, "-k", "breaks_its_contract_is_told_without_a_schedule"),
    ),
    Mutation(
        "all attempts of a batch run on as many slots",
        "txtopo/testing/simulator/replays.py",
        "conf, watch, 1)",
        "conf, watch, local_run.CORES)",
        (PARTS, "-k", "keeps_something_in_its_class and SharesAListBetweenTasks"),
    ),
    Mutation(
        "all attempts of a batch run in one process",
        "txtopo/testing/simulator/replays.py",
        "            run.seal(run.work)\n        begin_process()\n",
        "            run.seal(run.work)\n",
        (PARTS, "-k", "keeps_something_in_its_class and TakesOverTheLastBatch"),
    ),
    Mutation(
        "a bolt is blamed for what no committer is given",
        "txtopo/testing/simulator/replays.py",
        "    if not committing or blamed.component in committing:\n",
        "    if True:\n",
        (PARTS, "-k", "no_committer_can_notice"),
    ),
    Mutation(
        "a bolt is blamed for how its values are shown",
        "txtopo/testing/simulator/replays.py",
        " or not _is_other(blamed.component, first, second)",
        "",
        (PARTS, "-k", "no_committer_can_notice"),
    ),
    Mutation(
        "a basic bolt downstream of a committer is not checked",
        "txtopo/testing/contracts/probe.py",
        '        if component.kind == "spout" or',
        '        if component.kind != "batch" or',
        ("tests/conformance/test_bolt_checker.py", "-k", "a_basic_bolt_downstream_of_a_committer"),
    ),
    Mutation(
        "what a sink writes is not compared by the simulator",
        "txtopo/testing/simulator/outcome.py",
        "[*_stores(actual, expected), *_rows(actual, expected)]",
        "[*_stores(actual, expected)]",
        (
            "tests/unit/test_simulator_sinks.py",
            "-k",
            "a_wrong_topology_is_found_with_every_store_and_sink",
        ),
    ),
    Mutation(
        "two sinks of one database write to one simulated table",
        "txtopo/testing/simulator/substitutes.py",
        "(type(original), original.guarantee(), *more)",
        "(type(original), original.guarantee().place)",
        (
            "tests/unit/test_simulator_sinks.py",
            "-k",
            "two_sinks_of_one_database_write_to_two_tables",
        ),
    ),
    Mutation(
        "a simulated sink takes nothing back",
        "txtopo/connectors/sql/simulated.py",
        "        table.inserted = [row for row in table.inserted if row.mark != mark]\n",
        "",
        (
            "tests/unit/test_simulator_sinks.py",
            "-k",
            "a_right_topology_passes_with_every_store_and_sink",
        ),
    ),
    Mutation(
        "a committer that writes elsewhere is not named",
        "txtopo/testing/simulator/compared.py",
        " or guarantees.writes_elsewhere(component)]",
        "]",
        LOOKS,
    ),
    Mutation(
        "a destination of a user's own passes for compared",
        "txtopo/testing/simulator/substitutes.py",
        "            self.has_uncompared = self.has_uncompared or not is_compared\n",
        "",
        LOOKS,
    ),
    Mutation(
        "the run without failures is repeated at the same time",
        "txtopo/testing/simulator/simulation.py",
        "self._play(Decisions(), clock_s=clocks.ANOTHER_TIME_S)",
        "self._play(Decisions())",
        CLOCKS,
    ),
    Mutation(
        "the clock does not jump",
        "txtopo/testing/simulator/world.py",
        "        self._clock_s += JUMPS[jump]\n",
        "",
        (
            "tests/unit/test_simulator_clocks.py",
            "-k",
            "time_that_passes_between_two_attempts_is_found",
        ),
    ),
    Mutation(
        "what is imported inside a function has the real clock",
        "txtopo/testing/simulator/clocks.py",
        " in users:\n                return _MODULES[name]\n",
        " in users:\n                pass\n",
        CLOCKS,
    ),
    Mutation(
        "shifted clocks stay in the user's modules",
        "txtopo/testing/simulator/clocks.py",
        "                namespace[name] = value\n",
        "                pass\n",
        ("tests/unit/test_simulator_clocks.py", "-k", "the_users_modules_get_their_own_clock_back"),
    ),
    Mutation(
        "both processes have the same hash seed",
        "txtopo/testing/simulator/recomputation.py",
        "HASH_SEEDS = (1, 2)",
        "HASH_SEEDS = (1, 1)",
        RECOMPUTES,
    ),
    Mutation(
        "routes are not compared between processes",
        "txtopo/testing/simulator/recomputation.py",
        "also_routes=True",
        "also_routes=False",
        RECOMPUTES,
    ),
    Mutation(
        "the task that shows another order is blamed",
        "txtopo/testing/simulator/blame.py",
        "[*upstream, *dealt][:1]",
        "dealt[:1]",
        ("tests/unit/test_simulator_blame.py", "-k", "order_of_a_set"),
    ),
    Mutation(
        "batches that are rightly others are compared between processes",
        "txtopo/testing/simulator/recomputation.py",
        "        if is_other or ours.batches.get(txid) != theirs.batches.get(txid):\n",
        "        if False:\n",
        (
            "tests/unit/test_simulator_recomputes.py",
            "-k",
            "a_source_that_gives_other_batches_in_another_process_is_no_violation",
        ),
    ),
    Mutation(
        "simulate asks no other process",
        "txtopo/testing/simulator/simulation.py",
        "simulation.recompute() if other_processes else None",
        "None",
        RECOMPUTES,
    ),
    Mutation(
        "reads of ZooKeeper never fail in schedules",
        "txtopo/testing/simulator/driver.py",
        "        if how == READ_FAULTS[0]:\n",
        "        if how:\n            return\n        if how == READ_FAULTS[0]:\n",
        RACES,
    ),
    Mutation(
        "batches are made in one piece in schedules",
        "txtopo/testing/simulator/driver.py",
        "            self._aside.append((self._world.commits, turns.current()))\n            turns.park()\n",
        "",
        RACES,
    ),
    Mutation(
        "what is recorded while a batch is planned is passed over",
        "txtopo/engine/batches.py",
        "        committed, positions = self._state.committed_positions()\n        for earlier",
        "        committed, positions = self._state.committed_positions()\n"
        "        in_use = {earlier: self._metadata_in_use(earlier) for earlier in in_use}\n        for earlier",
        RACES,
    ),
    Mutation(
        "what a default of a parameter keeps is not looked at",
        "txtopo/testing/simulator/processes.py",
        "                self._functions.append(value)\n",
        "",
        READABLE,
    ),
    Mutation(
        "what a default of a method's parameter keeps is not looked at",
        "txtopo/testing/simulator/processes.py",
        "            self._functions.extend(functions)\n",
        "",
        READABLE,
    ),
    Mutation(
        "effects that change by themselves are compared",
        "txtopo/testing/simulator/trial.py",
        "effects is None or effects() == effects()",
        "True",
        READABLE,
    ),
    Mutation(
        "a conf that is no configuration is passed over",
        "txtopo/command/target.py",
        "    if not isinstance(value, Mapping):\n",
        "    if not isinstance(value, Mapping):\n        return None\n    if not isinstance(value, Mapping):\n",
        ("tests/unit/test_cli_mistakes.py",),
    ),
)
