"""Checks every history: it is consistent, every provider would accept it, and it can be continued."""

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace

from bench.chaos.client import Client, Request
from bench.chaos.ledger import Column, Ledger, Thread
from shared.domain.ids import IdMaker, ProjectId, ThreadId
from shared.domain.messages import (
    AssistantMessage,
    Message,
    Summary,
    SystemMessage,
    ToolReturns,
    UserMessage,
)
from shared.sql.engine import Database
from shared.sql.history.messages import MessageStore, message_of
from shared.sql.tables import messages
from tests.kit.model_server import ModelServer
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE, PATHS, check_request
from worker.models.provider import ModelCall
from worker.models.registry import Models

PAGE = 500
GOES_ON_S = 30.0
GOES_ON = '{"turns": [{"text": "And so it goes on."}]}'


@dataclass
class ConversationChecks:
    """Checks every thread once."""

    clients: dict[str, Client]
    """By project."""
    ledger: Ledger
    database: Database

    async def check(self, threads: list[Thread], *, kept: list[Thread]) -> None:
        """Runs all checks of this module. Afterwards each thread has one more run, except those that are `kept`: no
        path of Letta's API leads to them."""
        async with ModelServer() as server:
            models = Models(server.base_urls(), first_event_timeout=10, idle_timeout=10, retries=0)
            for thread in threads:
                context = await MessageStore(self.database).context(ProjectId(thread.project), ThreadId(thread.id))
                self._check_calls(thread, context)
                await self._check_compactions(thread, context)
                await self._check_ids(thread)
                await self._check_providers(thread, context, server, models)
            for thread in kept:
                context = await MessageStore(self.database).context(ProjectId(thread.project), ThreadId(thread.id))
                self._check_calls(thread, context)
                await self._check_providers(thread, context, server, models)
            await models.aclose()
        turnstile = asyncio.Semaphore(10)
        async with asyncio.TaskGroup() as group:
            for thread in threads:
                group.create_task(self._check_goes_on(thread, turnstile), name=f"go on with {thread.id}")

    def _client(self, thread: Thread) -> Client:
        return self.clients[thread.project]

    def _check_calls(self, thread: Thread, context: list[Message]) -> None:
        calls = [call.id for one in context if isinstance(one.body, AssistantMessage) for call in one.body.tool_calls]
        results = [r.tool_call_id for one in context if isinstance(one.body, ToolReturns) for r in one.body.returns]
        if sorted(calls) != sorted(results):
            without = sorted(set(calls) - set(results)), sorted(set(results) - set(calls))
            self._broken(thread, f"calls without results and results without calls: {without}")

    async def _listed_ids(self, thread: Thread) -> list[str]:
        """Lists messages page by page; the parts of one answer share its id."""
        ids: dict[str, None] = {}
        # Without this parameter, the API lists the messages of all of the agent's histories.
        history, cursor = "" if thread.conversation_id is not None else "&conversation_id=default", ""
        while page := await self._client(thread).get(f"{thread.messages_path}?limit={PAGE}&order=asc{history}{cursor}"):
            ids |= dict.fromkeys(message["id"] for message in page)
            cursor = f"&after={page[-1]['id']}"
        return list(ids)

    async def _check_ids(self, thread: Thread) -> None:
        ids = await self._listed_ids(thread)
        if thread.conversation_id is not None:
            told = (await self._client(thread).get(f"/v1/conversations/{thread.conversation_id}"))[
                "in_context_message_ids"
            ]
        else:
            told = (await self._client(thread).get(f"/v1/agents/{thread.agent_id}"))["message_ids"]
        left = await self._left_by_compaction(thread)
        ids = [one for one in ids if one not in left]
        if ids != told:
            here = next((n for n, pair in enumerate(zip(ids, told, strict=False)) if pair[0] != pair[1]), None)
            differ = f"first differing at {here}, {ids[here : here + 3]} and {told[here : here + 3]}" if here else ""
            self._broken(thread, f"{len(ids)} messages listed, {len(told)} ids expected; {differ}")

    async def _left_by_compaction(self, thread: Thread) -> set[str]:
        """Returns the ids of messages that a summary replaces: they are listed, but the model does not get them."""
        async with self.database.read() as connection:
            found = await connection.execute(
                sa.select(messages.c.id, messages.c.sibling_id).where(
                    messages.c.thread_id == thread.id, messages.c.left_because.like("compacted%")
                )
            )
            return {one for row in found for one in row if one is not None}

    async def _check_compactions(self, thread: Thread, context: list[Message]) -> None:
        """Checks that one summary stands for all removed messages, and that each acknowledged compaction has one."""
        async with self.database.read() as connection:
            found = await connection.execute(
                sa.select(messages).where(messages.c.thread_id == thread.id).order_by(messages.c.turn)
            )
            stored = [message_of(row) for row in found.mappings()]
        summaries = Counter(one.run_id for one in stored if isinstance(one.body, Summary))
        # A run whose window fills several times writes several summaries, and each replaces the one before it.
        if sum(isinstance(one.body, Summary) for one in context) > 1:
            self._broken(thread, f"several summaries in the context, by run: {dict(summaries)}")
        if summaries.total() < thread.compactions:
            self._broken(thread, f"{thread.compactions} compactions were answered for, {summaries.total()} summaries")
        spoken = [one for one in context if not isinstance(one.body, SystemMessage)]
        if await self._left_by_compaction(thread) and not (spoken and isinstance(spoken[0].body, Summary)):
            self._broken(thread, "messages were taken out for a summary that does not stand in their place")

    async def _check_providers(
        self, thread: Thread, context: list[Message], server: ModelServer, models: Models
    ) -> None:
        spoken = [message for message in context if message.turn]
        if not spoken:
            return
        question = replace(spoken[-1], body=UserMessage(content="And?"), id=IdMaker().message(), run_id=None)
        for handle in ONE_OF_EACH_WIRE:
            call = ModelCall(handle=handle, system="Be brief.", history=[*spoken, question])
            async with aclosing(models.stream(call)) as events:
                async for _ in events:
                    pass
            received = server.requests.pop()
            violations: list[Any] = list(check_request(PATHS[received.wire], received.body))
            if violations:
                self._broken(thread, f"{handle}: {violations[:3]}")

    async def _check_goes_on(self, thread: Thread, turnstile: asyncio.Semaphore) -> None:
        message = {"role": "user", "content": GOES_ON, "otid": f"next-{thread.id}"}
        request = Request("POST", thread.messages_path, {"messages": [message], "streaming": False})
        async with turnstile:
            try:
                async with asyncio.timeout(GOES_ON_S):
                    answer = await self._client(thread).call(request)
            except TimeoutError:
                self._broken(thread, f"the next message is not answered within {GOES_ON_S:.0f} s")
                return
        assert answer is not None
        stop_reason = answer.body["stop_reason"]["stop_reason"] if answer.is_success else None
        if stop_reason != "end_turn":
            self._broken(thread, f"the next message was answered {answer.status}: {str(answer.body)[:300]}")

    def _broken(self, thread: Thread, detail: str) -> None:
        ran = [record for record in self.ledger.runs.values() if record.story.thread.id == thread.id]
        self.ledger.broken(Column.CONVERSATIONS, ran[-1].run_id if ran else "-", f"thread {thread.id}: {detail}")
