"""An agent starts a CI run, waits for its end, and reads why it failed; it starts no other."""

from __future__ import annotations

import asyncio

from stage import simulated

RUN = {
    "owner": "octo-org",
    "repo": "octo-repo",
    "workflow": "release.yml",
    "ref": "main",
}


async def main() -> None:
    async with simulated("github", "--fault", "fails") as stage, stage.agent() as agent:
        run = await agent.call(
            "submit_job",
            provider="github",
            job="workflow_run",
            arguments=RUN,
            purpose="release 1.4",
        )
        print(f"started: {run['operation_id']} is {run['state']}")
        run = await agent.wait(run)
        print(f"it is {run['state']}, may_proceed is {run['may_proceed']}: {run['next_step']}")

        # What is over is over: the same call again tells what came of it, and starts nothing.
        jobs = await agent.call("fetch_result", operation_id=run["operation_id"], name="jobs")
        jobs = await agent.wait(jobs)
        print("its jobs, as the provider lists them; a simulated one knows no reasons:")
        print(jobs["result"]["inline"])


asyncio.run(main())
