"""An agent exports a report, waits without looping, and reads the file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stage import simulated

CONTRACT = Path(__file__).with_name("reports.toml")
FAULTS = ("--fault", "status:429", "--fault", "status:503")


async def main() -> None:
    async with simulated(str(CONTRACT), *FAULTS) as stage, stage.agent() as agent:
        asked = {"provider": "reports", "job": "export", "arguments": {"dataset": "sales"}}
        job = await agent.call("submit_job", **asked, purpose="month-end report", task="month-end")
        print(f"submitted: {job['operation_id']} is {job['state']}")

        # Another agent, in another client, wants the same file: there is one export.
        async with stage.agent() as other:
            joined = await other.call("submit_job", **asked, purpose="for the board")
            print(f"another agent asks for the same: joined is {joined['joined']}")
            assert joined["operation_id"] == job["operation_id"]

        job = await agent.wait(job)
        print(f"it is {job['state']}, may_proceed is {job['may_proceed']}")
        fetched = await agent.call("fetch_result", operation_id=job["operation_id"])
        fetched = await agent.wait(fetched)
        print(f"the result: {fetched['result']['inline']}")
        print()
        print(await stage.forbear("show", job["operation_id"]))


asyncio.run(main())
