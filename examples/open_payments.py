"""An agent opens payments that a person approves; an answer is lost, and nothing is paid twice."""

from __future__ import annotations

import asyncio
from typing import Any

from stage import Agent, simulated

ORDERS = {"8812": 12_500, "8813": 990}


async def open_payment(agent: Agent, order: str, amount: int) -> dict[str, Any]:
    return await agent.call(
        "write_api",
        provider="stripe",
        call="payment_intent",
        arguments={"amount": amount, "currency": "eur", "description": f"order {order}"},
        purpose=f"order {order}",
        # The order, so that another chat which opens its payment again joins this one.
        idempotency_key=f"order-{order}",
    )


async def main() -> None:
    fault = ("--fault", "payment_intent:lost")
    async with simulated("stripe", *fault) as stage, stage.agent() as agent:
        opened = [await open_payment(agent, *order) for order in ORDERS.items()]
        for payment in opened:
            print(f"{payment['operation_id']} is {payment['state']}: {payment['next_step']}")

        print("\nThe person looks at the inbox and approves both:")
        print(await stage.forbear("inbox"))
        for number in range(1, len(ORDERS) + 1):
            print(await stage.forbear("decide", str(number), "approve", "--yes"))

        for payment in opened:
            payment = await agent.wait(payment)
            print(f"{payment['operation_id']} is {payment['state']}: {payment['next_step']}")

        print("\nHow it went with the payment whose answer was lost:")
        print(await stage.forbear("show", str(opened[0]["operation_id"])))

        # An agent that forgot asks again: nothing is sent.
        again = await open_payment(agent, "8812", ORDERS["8812"])
        print(f"asked again: joined is {again['joined']}")


asyncio.run(main())
