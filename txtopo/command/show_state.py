"""Shows the topologies' stored state, as JSON-able values and as text for people."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from txtopo import errors
from txtopo.command import output
from txtopo.engine.logged import first_line
from txtopo.journal import live
from txtopo.state import acceptance, administration, opening
from txtopo.state.opening import Opened

_ERROR_LINES_MAX = 6


def status_of(opened: Opened, topology_id: str) -> dict[str, Any]:
    """A topology's status, as JSON-able values.

    Keys: ``topology_id``, ``running``, ``current`` (the next txid to commit), ``committed`` (the
    last committed txid, 0 if none), ``generation``, ``epoch``, ``lease`` (the running
    coordinator's, or None), ``ended`` (the newest run's end, None while a run is alive, and after a
    death without a word), ``died`` (whether the newest run died without a word), ``failing`` (see
    :func:`failing`), ``paused`` (by whom and when, or None), ``standbys`` (runs that wait for the
    topology), ``transactions`` (the uncommitted transactions by txid: status and sealing attempt).
    An unreadable record is shown as in ``administration.show``.
    """
    shown = administration.show(opened.store, topology_id)
    current, lease = shown["current"], opening.living(shown["lease"]) if opened.is_live else None
    known = isinstance(current, int)
    open_records = {
        txid: record
        for txid, record in shown["records"].items()
        if not (known and txid.isdecimal() and int(txid) < current)
    }
    return {
        "topology_id": topology_id,
        "running": lease is not None,
        "current": current,
        "committed": current - 1 if known else current,
        "generation": shown["generation"],
        "epoch": shown["epoch"],
        "lease": lease,
        **_end_of(shown, lease is not None),
        "failing": None,
        "paused": shown["paused"],
        "standbys": shown["standbys"] if opened.is_live else [],
        "transactions": {txid: _brief(record) for txid, record in open_records.items()},
    }


def failing(status: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """The transaction that fails now in a run with the journal in ``path``: ``txid``, ``attempts``
    that have ended, and the newest ``error``. None if none fails, or another run writes there."""
    try:
        now = live.of_run(path, status) if status["running"] else None
    except OSError:
        return None
    if now is None:
        return None
    shown, tried = now["status"], now["tried"]
    if not tried or shown["last_error"] is None or shown["last_error_txid"] != shown["current"]:
        return None
    return {"txid": shown["current"], "attempts": tried, "error": shown["last_error"]}


def _end_of(shown: dict[str, Any], is_running: bool) -> dict[str, Any]:
    epoch, ended = shown["epoch"], shown["ended"]
    if is_running or not isinstance(epoch, int) or (ended and "unreadable" in ended):
        return {"ended": None, "died": False}
    last = 0 if ended is None else ended["epoch"]
    # A restored copy raises the epoch, without a run.
    died = 0 < epoch - last < administration.RESTORED_EPOCHS
    return {"ended": ended if last == epoch else None, "died": died}


def _brief(record: dict[str, Any]) -> dict[str, Any]:
    return (
        record
        if "unreadable" in record
        else {"status": record["status"], "attempt_id": record["attempt_id"]}
    )


# -- as text -------------------------------------------------------------------------------------


def status_text(status: dict[str, Any], data_dir: str = "", zookeeper: str = "") -> str:
    """One topology, in a few lines. ``data_dir`` and ``zookeeper``: the options by which other
    commands reach the state, see ``whereabouts.reaching``."""
    current = status["current"]
    lines = [
        f"topology {status['topology_id']}",
        f"  committed     {plain(status['committed']) if status['committed'] != 0 else 'nothing yet'}",
        f"  next txid     {plain(current)}",
        f"  coordinator   {holder_text(status['lease'])}{ended_text(status)}",
        f"  generation    {plain(status['generation'])}, epoch {plain(status['epoch'])}",
        *_end_lines(status, data_dir, zookeeper),
    ]
    if status["paused"]:
        pause = status["paused"]
        reach = f"{shlex.quote(status['topology_id'])}{data_dir}{zookeeper}"
        lines.append(
            f"  paused        {plain(pause) if 'unreadable' in pause else _pause_text(pause, reach)}"
        )
    lines += [f"  standby       {holder_text(each)}" for each in status["standbys"]]
    if status["transactions"]:
        lines.append(
            f"  open          {', '.join(f'{txid} {_open_text(record)}' for txid, record in status['transactions'].items())}"
        )
    if (fails := status["failing"]) is not None:
        error, txid, id = fails["error"], fails["txid"], shlex.quote(status["topology_id"])
        lines += [
            f"  failing       {txid}, attempts ended: {fails['attempts']}, newest error: {first_line(error)}",
            f"  to learn more, type: txtopo why {id} {txid}{data_dir}{zookeeper}",
        ]
    return "\n".join(lines)


def ended_text(status: dict[str, Any]) -> str:
    """How the newest run of a topology that does not run has ended."""
    ended = status["ended"]
    if ended is None:
        return ": the run died without a word" if status["died"] else ""
    how = (
        "was aborted"
        if ended["exit_code"] is None
        else f"ended with exit code {ended['exit_code']}"
    )
    return f": run {ended['name']!r}, pid {ended['pid']} on {ended['host']}, {how} at {ended['at']}"


def _end_lines(status: dict[str, Any], data_dir: str, zookeeper: str) -> list[str]:
    """The newest run's counts and error, and the command that tells more."""
    ended, id = status["ended"], shlex.quote(status["topology_id"])
    if ended is None:
        story = f"txtopo history {id}{data_dir}{zookeeper}"
        return [f"  to learn more, type: {story}"] if status["died"] else []
    lines = [
        f"  its run       {ended['committed']} transactions committed; attempts: {ended['failed']} failed, {ended['behind']} behind"
    ]
    if ended["error"] is not None:
        lines += [
            f"  {'its error' if not number else '':<13} {line}"
            for number, line in enumerate(ended["error"].splitlines()[:_ERROR_LINES_MAX])
        ]
    if command := _telling_more(ended, id, plain(status["current"]), data_dir, zookeeper):
        lines.append(f"  to learn more, type: txtopo {command}")
    return lines


def _telling_more(
    ended: dict[str, Any], id: str, current: str, data_dir: str, zookeeper: str
) -> str:
    """The command that tells more about how a run has ended. Empty if nothing failed."""
    code, error = ended["exit_code"], ended["error"]
    place = f" --data-dir {shlex.quote(ended['data_dir'])}" if ended["data_dir"] else ""
    if code == errors.ZooKeeperUnavailableError.exit_code:
        return f"doctor{place}"
    if code == errors.StateMismatchError.exit_code or (error and not place):
        return f"state show {id}{data_dir}{zookeeper}"
    if not place or not (error or ended["failed"]):
        return ""
    command = f"why {id} {current}" if ended["failed"] and error else f"history {id}"
    return command + place + zookeeper


def holder_text(lease: dict[str, Any] | None) -> str:
    """The coordinator that runs a topology."""
    if lease is None:
        return "not running"
    if "unreadable" in lease:
        return plain(lease)
    return f"pid {lease['pid']} on {lease['host']} since {lease['started']}, run {lease['name']!r}"


def _pause_text(pause: dict[str, Any], reach: str) -> str:
    progress = "nothing is in flight" if pause["is_reached"] else "what has begun is finished"
    return f"by {pause['by']} at {pause['at']}, {progress}: `txtopo resume {reach}`"


def _open_text(record: dict[str, Any]) -> str:
    if "unreadable" in record:
        return plain(record)
    return f"sealed (by attempt {record['attempt_id']})" if record["status"] == "sealed" else "open"


def plain(value: Any) -> str:
    """``value`` as text, also an unreadable value."""
    return (
        f"unreadable: {value['unreadable']}"
        if isinstance(value, dict) and "unreadable" in value
        else str(value)
    )


def state_text(shown: dict[str, Any], is_live: bool) -> str:
    """One topology's stored state, all of it. ``shown`` comes from ``administration.show``."""
    lines = [
        f"topology {shown['topology_id']}",
        f"  generation    {plain(shown['generation'])}",
        f"  epoch         {plain(shown['epoch'])}",
        f"  current       {plain(shown['current'])}",
        f"  lease         {holder_text(shown['lease'] if is_live else None)}",
        f"  ended         {plain(shown['ended'])}",
        f"  stores        {_stores_text(shown)}",
        *_made_of_lines(shown["components"]),
        "  transactions" + ("" if shown["records"] else "  none"),
    ]
    lines.extend(
        f"    {txid:<10} {_record_text(record)}" for txid, record in shown["records"].items()
    )
    lines.append("  source positions, by partition" + ("" if shown["positions"] else "  none"))
    lines.extend(
        f"    {partition:<10} {plain(position)}"
        for partition, position in shown["positions"].items()
    )
    return "\n".join(lines)


def _made_of_lines(made_of: dict[str, Any] | None) -> list[str]:
    if made_of is None:
        return []
    return (
        [f"  components    {plain(made_of)}"]
        if "unreadable" in made_of
        else [f"  {line}" for line in acceptance.shown(made_of)]
    )


def _record_text(record: dict[str, Any]) -> str:
    if "unreadable" in record:
        return plain(record)
    opened = f", opened {record['opened_at']}" if record["opened_at"] is not None else ""
    return f"{record['status']:<6} attempt {record['attempt_id']}, tasks {record['tasks']}, metadata {record['metadata']}{opened}"


def _stores_text(shown: dict[str, Any]) -> str:
    """The stores, each with the last recorded attempt that opened the store, and the attempt's
    count of store transactions (R34)."""
    if not isinstance(shown["stores"], list):
        return plain(shown["stores"])
    counts = {
        name: "not counted" if count is None else output.counted(count, "store transaction")
        for name, count in shown["counts"].items()
    }
    each = (f"{name} (at {shown['recorded'][name]}, {counts[name]})" for name in shown["stores"])
    return ", ".join(each) or "none"
