"""News of operations for clients that subscribed, in both eras of the protocol.

From 2026-07-28 on one `subscriptions/listen` request is a stream; before, `resources/subscribe`
names a resource for the rest of a session. Both follow the store through the desk, so that nothing
is polled and nobody hears of another's operations. Changes that come faster than a client reads are
told as one, so no backlog grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable
from typing import Any, cast

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError
from mcp.types import (
    EmptyResult,
    ResourceUpdatedNotification,
    ResourceUpdatedNotificationParams,
    ServerNotification,
    SubscribeRequestParams,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST

from forbear.tools import tasks
from forbear.tools.lookups import Lookups, LookupsOf
from forbear.tools.record import Record
from forbear.tools.resources import operation_in, provider_in
from forbear.tools.taskbook import whole

MOST = 100
"""Resources and tasks of one stream or session; what is beyond is not promised."""

STREAMS = 256
"""Streams of one principal in one process, so that nobody takes them all."""

_log = logging.getLogger(__name__)

_Context = ServerRequestContext[Any, Any]


class Subscriptions:
    """Every subscription of one server."""

    def __init__(self, lookups: LookupsOf) -> None:
        self._lookups_of = lookups
        self._streams: Counter[str] = Counter()

    # --- from 2026-07-28 on -----------------------------------------------------------------

    async def listen(
        self, ctx: _Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Serve one stream until its client leaves: first what is promised, then the news.

        Raises:
            MCPError: tasks are asked for and not declared, or there are too many streams.
        """
        lookups = self._lookups_of(ctx)
        owner = lookups.principal
        if self._streams[owner] >= STREAMS:
            raise MCPError(INTERNAL_ERROR, "Too many subscriptions are open; close one first")
        self._streams[owner] += 1
        try:
            return await self._stream(ctx, params, lookups)
        finally:
            self._streams[owner] -= 1
            self._streams += Counter()  # drops whoever has none

    async def _stream(
        self, ctx: _Context, params: SubscriptionsListenRequestParams, lookups: Lookups
    ) -> SubscriptionsListenResult:
        if ctx.request_id is None:
            raise MCPError(INVALID_REQUEST, "subscriptions/listen needs a request id")
        asked = params.notifications
        task_ids = tasks.wanted(ctx, asked.model_extra)[:MOST]
        records = await _readable(lookups, task_ids)
        named = list(dict.fromkeys(asked.resource_subscriptions or []))[:MOST]
        providers = await _contracts(lookups, named)
        uris = await _promised(lookups, named, records, providers)
        told = [one for one in task_ids if one in records]
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        promised = SubscriptionFilter.model_validate(
            {"resourceSubscriptions": list(uris) or None} | ({"taskIds": told} if told else {})
        )
        await ctx.session.send_notification(
            SubscriptionsAcknowledgedNotification(
                params=SubscriptionsAcknowledgedNotificationParams(
                    notifications=promised, _meta=meta
                )
            ),
            related_request_id=ctx.request_id,
        )
        for operation_id in told:
            # It may have ended before this stream began; then this is all the news there is.
            await _tell_task(ctx, records[operation_id], meta)
        async with contextlib.aclosing(lookups.follow(records.values(), providers)) as news:
            async for one in news:
                if isinstance(one, Record) and one.operation.id in told:
                    await _tell_task(ctx, one, meta)
                for uri in uris:
                    if _is_about(uri, one):
                        await ctx.session.send_notification(
                            ResourceUpdatedNotification(
                                params=ResourceUpdatedNotificationParams(uri=uri, _meta=meta)
                            ),
                            related_request_id=ctx.request_id,
                        )
        return SubscriptionsListenResult(_meta=meta)

    # --- up to 2025-11-25 -------------------------------------------------------------------

    async def subscribe(self, ctx: _Context, params: SubscribeRequestParams) -> EmptyResult:
        """Tell this session of every change of a resource from now on.

        Raises:
            MCPError: there is no such resource, it never changes, or the session has too many.
        """
        uri = str(params.uri)
        operation_id, provider = operation_in(uri), provider_in(uri)
        lookups = self._lookups_of(ctx)
        if operation_id is not None:
            news = lookups.follow([await lookups.record(operation_id)])
        elif provider is not None:
            await lookups.contract(provider)
            news = lookups.follow((), [provider])
        else:
            told = "Only operations, their stories and contracts change"
            raise MCPError(INVALID_PARAMS, told, {"uri": uri})
        followed = _followed(ctx)
        if uri not in followed:
            if len(followed) >= MOST:
                raise MCPError(INVALID_REQUEST, f"A session follows {MOST} resources at most")
            followed[uri] = asyncio.create_task(_tell(ctx, uri, news), name=f"follow {uri}")
        return EmptyResult()

    async def unsubscribe(self, ctx: _Context, params: UnsubscribeRequestParams) -> EmptyResult:
        task = _followed(ctx).pop(str(params.uri), None)
        if task is not None:
            task.cancel()
        return EmptyResult()


async def _readable(lookups: Lookups, operation_ids: Iterable[str]) -> dict[str, Record]:
    """The operations among these that the caller may see."""
    records: dict[str, Record] = {}
    for operation_id in dict.fromkeys(operation_ids):
        with contextlib.suppress(MCPError):
            records[operation_id] = await lookups.record(operation_id)
    return records


async def _contracts(lookups: Lookups, uris: Iterable[str]) -> list[str]:
    """The providers whose contracts are among these resources."""
    known: list[str] = []
    for provider in filter(None, map(provider_in, uris)):
        with contextlib.suppress(MCPError):
            await lookups.contract(provider)
            known.append(provider)
    return known


async def _promised(
    lookups: Lookups, uris: Iterable[str], records: dict[str, Record], providers: Collection[str]
) -> list[str]:
    """The resources among these that have news; their operations are added to `records`."""
    named = {uri: operation_in(uri) for uri in uris}
    missing = [one for one in named.values() if one is not None and one not in records]
    records |= await _readable(lookups, missing)
    return [
        uri
        for uri, operation_id in named.items()
        if operation_id in records or provider_in(uri) in providers
    ]


def _is_about(uri: str, news: Record | str) -> bool:
    if isinstance(news, Record):
        return operation_in(uri) == news.operation.id
    return provider_in(uri) == news


async def _tell_task(ctx: _Context, record: Record, meta: dict[str, Any]) -> None:
    task = tasks.TaskNotification(params={**whole(record, ctx), "_meta": meta})
    # The SDK's type lists its own notifications; it sends what it is given.
    notification = cast(ServerNotification, task)
    await ctx.session.send_notification(notification, related_request_id=ctx.request_id)


async def _tell(ctx: _Context, uri: str, news: AsyncGenerator[Record | str, None]) -> None:
    try:
        async with contextlib.aclosing(news):
            async for _ in news:
                await ctx.session.send_resource_updated(uri)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        _log.debug("nobody hears of %s any more", uri)


def _followed(ctx: _Context) -> dict[str, asyncio.Task[None]]:
    """What this request's session follows, by address; it ends with the session."""
    # The SDK has no public way from a request to what lives as long as its session.
    connection = ctx.session._connection
    followed: dict[str, asyncio.Task[None]] | None = connection.state.get(__name__)
    if followed is None:
        followed = connection.state[__name__] = {}
        connection.exit_stack.push_async_callback(_end, followed)
    return followed


async def _end(followed: dict[str, asyncio.Task[None]]) -> None:
    for task in followed.values():
        task.cancel()
    await asyncio.gather(*followed.values(), return_exceptions=True)
