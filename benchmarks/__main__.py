"""python -m benchmarks [--only NAME…] [--quick] [--json FILE]

Prints one table after the other, each with the bounds that the project set itself. What each
table measures is in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks import tables

TABLES = {
    "storage": "storage:table",
    "calls": "calls:table",
    "latency": "calls:latency",
    "peers": "peers:table",
    "claims": "claims:table",
    "waiting": "waiting:table",
    "processes": "processes:table",
    "audit": "audit:table",
    "tool_calls": "tool_calls:table",
    "disk": "disk:table",
    "scrape": "scrape:table",
    "shares": "shares:table",
}
"""In the order in which they run; where each is made."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(TABLES)
    parser.add_argument(
        "--only", nargs="+", choices=TABLES, default=[*TABLES], metavar="NAME", help=f"of {names}"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, rough figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run there as well")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that it cleans up
    on = tables.machine()
    print("; ".join(f"{name} {value}" for name, value in on.items()), flush=True)
    found: list[tables.Table] = []
    for name in given.only:
        began = time.monotonic()
        found.append(made_by(TABLES[name])(given.quick))
        print(f"\n{found[-1].text()}\n\n({time.monotonic() - began:.0f} s)", flush=True)
        if given.json is not None:
            given.json.write_text(tables.written(found, on) + "\n")
    if len(found) > 1:
        print(f"\n{tables.summary(found)}")


def made_by(place: str) -> Callable[[bool], tables.Table]:
    module, _, function = place.partition(":")
    made: Callable[[bool], tables.Table] = getattr(import_module(f"benchmarks.{module}"), function)
    return made


if __name__ == "__main__":
    main()
