"""``python -m bench``: measure everything, write the results down, and bring the page of the
documentation up to date.

``--list`` says which lines there are, ``--only`` chooses among them, ``--quick`` is a smoke test.
``python -m bench report`` measures nothing: it makes the page and its plots from the results there
are. The exit status is 1 if a line failed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from bench import catalogue, machine, report, results, run


def main(arguments: list[str] | None = None) -> int:
    """0 if every line was measured and every result was right."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=["measure", "report"], default="measure")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="lines in a reduced form, for their ratios; nothing is written down without --keep",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="LINE",
        help="only lines whose id begins so; nothing is written down without --keep",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="put what --quick or --only measured into the results there are, all the same",
    )
    parser.add_argument("--list", action="store_true", help="say which lines there are")
    options = parser.parse_args(arguments)
    lines = [
        line
        for line in catalogue.LINES
        if options.only is None or any(line.id.startswith(each) for each in options.only)
    ]
    if not lines:
        parser.error(f"no line begins with {' or '.join(options.only)}; try --list")
    if options.quick and options.only is None:
        lines = [line for line in lines if line.in_quick]
    if options.list:
        for line in lines:
            print(f"{line.id:28} {line.asks}")
        return 0
    if options.what == "report":
        report.write(results.loads(results.LATEST.read_text(encoding="utf-8")))
        return 0
    signal.signal(signal.SIGTERM, _ended)
    here = machine.described()
    fresh = run.run(lines, options.quick, lambda text: print(text, flush=True))
    is_whole = options.only is None and not options.quick
    if is_whole or options.keep:
        measured = results.Results(here, fresh)
        if not is_whole and results.LATEST.exists():
            measured = results.loads(results.LATEST.read_text(encoding="utf-8")).with_lines(fresh)
        text = results.dumps(measured)
        results.LATEST.write_text(text, encoding="utf-8")
        # From the file as written, with rounded figures: the page must not say more than the file.
        report.write(results.loads(text))
    failed = [result.id for result in fresh if result.error is not None]
    print(
        f"{len(fresh) - len(failed)} lines measured, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}"
    )
    return 1 if failed else 0


def _ended(number: int, frame: FrameType | None) -> None:
    """As an interruption does, so that contenders and their files go with us."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
