"""What waits costs nobody who does not wait: no transaction reads a queue or the store as a whole.

SQLite's own plans are the witness. Without statistics they do not depend on how many rows there
are, so that a few operations show what becomes of a hundred thousand.
"""

from __future__ import annotations

import re

import pytest
from tests.storage.house import House, Said
from tests.storage.plans import plans
from tests.storage.traffic import MINUTE, Arrival, Traffic

pytestmark = pytest.mark.sqlite

LONG = r"SCAN (operations|requests|tasks|waits|reservations|attempts)\b(?!.*uq_attempts_open)"
"""Reading a table that grows with the work; of open attempts there are as many as slots."""


@pytest.mark.requirement("R02", "R07")
def test_no_transaction_reads_all_that_waits(house: House) -> None:
    limited = [Said(429, {}, (("Retry-After", "20"),)), *[Said(503, {})] * 6]

    def answer(arrival: Arrival) -> Said:
        return limited.pop() if limited else Said(200, {"ok": True})

    with plans(house) as seen:
        traffic = Traffic(house, answer=answer)
        for number in range(20):
            call = ("item", "search", "note")[number % 3]
            traffic.ask(f"i{number}", call=call, task=f"t{number % 4}")
        traffic.run(traffic.now + 5 * MINUTE)
        house.recover()
    read_whole = {
        statement: plan
        for statement, plan in seen.items()
        if any(re.match(LONG, step) for step in plan)
    }
    # The end of an outage lets go all that it held, which are as many as there are.
    ends = [statement for statement in read_whole if "operations.delay_source = ?" in statement]
    assert list(read_whole) == ends, read_whole
    turns = [plan for statement, plan in seen.items() if "waits.number < ?" in statement]
    assert any("ix_waits_ready" in step for plan in turns for step in plan), turns
