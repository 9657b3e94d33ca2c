"""``python -m bench``: measure, print, write down. ``--list`` says what there is, ``--only`` chooses, ``--quick`` is a smoke test."""

from __future__ import annotations

import argparse
import sys

from bench import catalogue, run


def main(arguments: list[str] | None = None) -> int:
    """0 if every line was measured and every result was right."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every line in a reduced form, ratios only; nothing is written down")
    parser.add_argument("--only", nargs="+", metavar="LINE", help="only lines whose id begins so")
    parser.add_argument("--list", action="store_true", help="say which lines there are")
    options = parser.parse_args(arguments)
    lines = [line for line in catalogue.LINES if options.only is None or any(line.id.startswith(each) for each in options.only)]
    if options.quick:
        lines = [line for line in lines if line.in_quick or options.only is not None]
    if not lines:
        parser.error(f"no line begins with {', '.join(options.only)}; try --list")
    if options.list:
        for line in lines:
            print(f"{line.id:28} {line.asks}")
        return 0
    return run.run(lines, options.quick)


if __name__ == "__main__":
    sys.exit(main())
