"""Answers requests of the protocol. Every request is independent: any process can answer it, and no process keeps its
state.

The server's only record of a call is its run. A run goes on when its client disconnects, as in every dialect, unless
the client requests otherwise.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import structlog
from starlette.responses import Response

from api.access.callers import Caller
from api.access.route_rules import LEVELS_OF_MCP
from api.admission import release_permit
from api.errors import RefusalAnswer, domain_error_answer, wire_waiting
from api.input_limits import InputLimits, as_object
from api.mcp.agent_tools import LIST_KEPT_MS, AgentTools, arguments_of
from api.mcp.call_fold import CallStream, ended_call, input_required
from api.mcp.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    JSON,
    MISSING_CAPABILITY,
    RUN_ID,
    SERVER_INFO,
    SESSION_HEADER,
    TASKS,
    ClientNotification,
    ClientRequest,
    RequestId,
    RpcError,
    Rules,
    answer,
    data_of,
    error_bytes,
)
from api.mcp.tasks import DIALECT, TaskService, calls_of, cancelled_answer
from api.runs.command import AgentThread, Command, Part, SubmissionHeaders, keys_of
from api.runs.reader import RunWaiter, elsewhere
from api.runs.streaming import StreamService
from api.runs.submission import SubmissionService
from shared.concurrency import Clock
from shared.domain.agents import Agent
from shared.domain.errors import Conflict, HoldfastError, InvalidRequest, NameTaken, NotFound, PendingApproval
from shared.domain.ids import IdMaker, Seq, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.mcp_servers import IDEMPOTENCY_KEY
from shared.domain.messages import UserMessage
from shared.domain.runs import NO_KEYS, Run, RunOptions, SubmissionKeys

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RUN_TYPE = "mcp_tool_call"
LONGEST_KEY = 256
LONGEST_REASON = 500
HUNG_UP = "the client hung up"

INSTRUCTIONS = (
    "Each tool is an agent that works on its own: say in plain words what is wanted, with everything that it has to "
    "know. It may take minutes. It remembers what it was told before; 'conversation' says in which history it answers."
)


class Posted(NamedTuple):
    """An HTTP request with a message."""

    headers: Sequence[tuple[str, str]]
    body: bytes
    ends_with_client: bool
    """The server cancels the call's run if the client closes the connection."""


@dataclass(frozen=True, kw_only=True)
class McpService:
    """Answers the messages that clients post."""

    rules: "LateRules"
    tools: AgentTools
    tasks: TaskService
    submissions: SubmissionService
    streaming: StreamService
    waiter: RunWaiter
    input_limits: InputLimits
    clock: Clock
    ids: IdMaker

    async def answer(self, caller: Caller, headers: SubmissionHeaders, posted: Posted) -> Response:
        """Answers one message."""
        rules = await self.rules.ready()
        try:
            message = rules.read(posted.headers, posted.body)
        except RpcError as error:
            return _refusal(rules, error, error.request_id, is_modern=error.is_modern)
        if isinstance(message, ClientNotification):
            await self._hear(caller, message)
            return Response(status_code=202)
        try:
            _check_level(caller, message)
            if message.method == "tools/call":
                return await self._call(caller, headers, message, ends_with_client=posted.ends_with_client)
            return await self._answer_request(rules, caller, message)
        except RpcError as error:
            return _refusal(rules, error, message.id, is_modern=message.is_modern)

    async def _answer_request(self, rules: Rules, caller: Caller, asked: ClientRequest) -> Response:
        if asked.method == "initialize":
            result = {"protocolVersion": rules.negotiated(asked), **_about({"tools": {}})}
            # The server does not store the session's name, which distinguishes this client's requests from those of
            # other clients with the same key.
            return answer(asked.id, result, {SESSION_HEADER: self.ids.mcp_session()})
        plain: Mapping[str, Callable[[], Awaitable[dict[str, Any]]]] = {
            "ping": lambda: _nothing(asked),
            "server/discover": lambda: _discovered(rules.versions()),
            "tools/list": lambda: self._list(caller, asked),
            "tasks/get": lambda: self._get(caller, asked),
            "tasks/update": lambda: self._update(caller, asked),
            "tasks/cancel": lambda: self._cancel(caller, asked),
        }
        try:
            return answer(asked.id, await plain[asked.method]())
        except HoldfastError as error:
            return _refused(asked, error)

    async def _list(self, caller: Caller, asked: ClientRequest) -> dict[str, Any]:
        cursor = asked.params.get("cursor")
        listed = await self.tools.listed(caller, cursor if isinstance(cursor, str) else None)
        return {"resultType": "complete", **listed, "ttlMs": LIST_KEPT_MS, "cacheScope": "private"}

    async def _call(
        self, caller: Caller, headers: SubmissionHeaders, asked: ClientRequest, *, ends_with_client: bool
    ) -> Response:
        try:
            agent = await self.tools.find(caller, str(asked.params["name"]))
            state = asked.params.get("requestState")
            if state is None:
                first = await self._submitted(caller, headers, asked, agent)
            else:
                first = await self._resumed(caller, asked, agent, state)
            run = await self.tasks.newest(first)
            # A repeated or resumed call has not released its permit by submitting, and it may take long.
            release_permit()
            if run.status is RunStatus.AWAITING_APPROVAL and asked.can_ask_people and not asked.takes_tasks:
                return answer(asked.id, input_required(run, calls_of(await self.tasks.waiting(run))))
        except (ValueError, InvalidRequest, Conflict) as error:
            # The calling model can correct this error. It would not see an error of the protocol.
            return answer(asked.id, _failed(error))
        except HoldfastError as error:
            return _refused(asked, error)
        if asked.takes_tasks:
            task = {"resultType": "task", **self.tasks.seed(first, run), "_meta": {RUN_ID: run.id}}
            return answer(asked.id, task)
        if asked.takes_streams:
            # Before 2026-07-28 the protocol gives a closed connection no meaning.
            leave = partial(self._leave, run) if ends_with_client and asked.is_modern else None
            return self.streaming.stream(run, Seq(0), CallStream(run, asked), on_leave=leave)
        return await self._whole(asked, run)

    async def _leave(self, run: Run) -> None:
        await self.tasks.cancel(run, HUNG_UP, wait_s=0.0)

    async def _whole(self, asked: ClientRequest, run: Run) -> Response:
        """Answers a client that reads no streams."""
        ended = await self.waiter.ended(run)
        if ended is None:
            return _answered(asked, elsewhere(run))
        fold = await self.tasks.folded(ended)
        return answer(asked.id, ended_call(ended, fold, can_ask=asked.can_ask_people))

    async def _submitted(self, caller: Caller, headers: SubmissionHeaders, asked: ClientRequest, agent: Agent) -> Run:
        arguments = arguments_of(asked)
        self.input_limits.refuse_long_text(arguments.message, "message")
        keys, scope = self._keys(caller, headers, asked)
        if scope is not None:
            # This check comes first, because a repeated call must not begin another conversation.
            seen = await self.submissions.runs.of_keys(caller.project_id, scope, keys)
            if seen is not None:
                return seen
        thread = await self.tools.thread(agent, arguments.conversation)
        return await self.submissions.submit(self._command(thread, arguments.message, headers, keys, scope))

    async def _resumed(self, caller: Caller, asked: ClientRequest, agent: Agent, state: object) -> Run:
        """Applies a person's decisions, and returns the run of the call that asked for them."""
        run = await self.tasks.find(caller, state)
        if run.agent_id != agent.id:
            raise RpcError(INVALID_PARAMS, "requestState is of a call of another tool")
        await self.tasks.decide(run, as_object(asked.params.get("inputResponses")) or {})
        return await self.tasks.runs.get(run.project_id, run.id)

    def _keys(
        self, caller: Caller, headers: SubmissionHeaders, asked: ClientRequest
    ) -> tuple[SubmissionKeys, ThreadId | None]:
        """Returns the keys and the scope that identify a repeated call. The scope is None if the call has no name."""
        named = asked.meta.get(IDEMPOTENCY_KEY)
        if named is not None and not (isinstance(named, str) and 0 < len(named) <= LONGEST_KEY):
            raise ValueError(f"_meta[{IDEMPOTENCY_KEY!r}] must be a text of at most {LONGEST_KEY} characters")
        name = named or headers.idempotency_key or _name_in_session(asked.session, asked.id)
        if name is None:
            return NO_KEYS, None
        said = SubmissionHeaders(idempotency_key=name)
        content = json.dumps([asked.params["name"], asked.params.get("arguments")], sort_keys=True)
        keys = keys_of(said, RUN_TYPE, self.clock.now(), body=lambda: content, parts=[Part(None, lambda: content)])
        return keys, _scope(caller, name)

    def _command(
        self,
        thread: AgentThread,
        message: str,
        headers: SubmissionHeaders,
        keys: SubmissionKeys,
        scope: ThreadId | None,
    ) -> Command:
        return Command(
            agent=thread.agent,
            conversation_id=thread.conversation_id,
            messages=[UserMessage(content=message)],
            options=RunOptions(
                dialect=DIALECT,
                item_events=True,
                background=True,
                max_steps=min(RunOptions().max_steps, self.submissions.max_steps),
                run_type=RUN_TYPE,
                override_model=thread.model,
                model_options=thread.model_options,
                submitted_by=headers.key_id,
                keys_scope=scope,
            ),
            if_busy=headers.if_busy or "enqueue",
            keys=keys,
            priority=headers.priority,
        )

    async def _get(self, caller: Caller, asked: ClientRequest) -> dict[str, Any]:
        return await self.tasks.get(await self.tasks.find(caller, asked.params["taskId"]))

    async def _update(self, caller: Caller, asked: ClientRequest) -> dict[str, Any]:
        run = await self.tasks.find(caller, asked.params["taskId"])
        await self.tasks.decide(await self.tasks.newest(run), asked.params["inputResponses"])
        return {"resultType": "complete"}

    async def _cancel(self, caller: Caller, asked: ClientRequest) -> dict[str, Any]:
        run = await self.tasks.find(caller, asked.params["taskId"])
        return cancelled_answer(await self.tasks.cancel(run, "tasks/cancel"))

    async def _hear(self, caller: Caller, notification: ClientNotification) -> None:
        """Acts on a notification. Only a cancel needs an action."""
        name = _name_in_session(notification.session, notification.params.get("requestId"))
        if notification.method != "notifications/cancelled" or name is None:
            return
        level = LEVELS_OF_MCP[notification.method]
        if not caller.scopes.include(level):
            return
        reason = notification.params.get("reason")
        try:
            run = await self._of_name(caller, name)
            if run is not None:
                said = reason[:LONGEST_REASON] if isinstance(reason, str) else notification.method
                await self.tasks.cancel(run, said, wait_s=0.0)
        except HoldfastError as error:
            # The client gets no answer to a notification, so only the log has the error.
            log.warning("mcp_cancel_failed", reason=str(error))

    async def _of_name(self, caller: Caller, name: str) -> Run | None:
        keys = keys_of(SubmissionHeaders(idempotency_key=name), RUN_TYPE, self.clock.now(), body=str)
        try:
            found = await self.submissions.runs.of_keys(caller.project_id, _scope(caller, name), keys)
        except NameTaken as taken:
            # A cancel does not repeat the call's content, so the content cannot match.
            found = await self.tasks.find(caller, taken.run_id)
        except NotFound:
            found = None
        return found


class LateRules:
    """Imports the official package's rules at the first message: that takes a second."""

    def __init__(self) -> None:
        self._rules: Rules | None = None

    async def ready(self) -> Rules:
        """Returns the rules. A thread imports them, so that the event loop goes on."""
        if self._rules is None:
            self._rules = await asyncio.to_thread(_imported)
        return self._rules


def _imported() -> Rules:
    from api.mcp.official_rules import OfficialRules

    return OfficialRules()


def _refusal(rules: Rules, error: RpcError, request_id: RequestId | None, *, is_modern: bool) -> Response:
    status = error.status or rules.status_of(error.code, is_modern=is_modern)
    return Response(error_bytes(request_id, error.code, error.message, error.data), status, media_type=JSON)


async def _nothing(asked: ClientRequest) -> dict[str, Any]:
    # Official clients of the older versions take no other field in an empty result.
    return {"resultType": "complete"} if asked.is_modern else {}


async def _discovered(versions: list[str]) -> dict[str, Any]:
    about = _about({"tools": {}, "extensions": {TASKS: {}}})
    cached = {"ttlMs": LIST_KEPT_MS, "cacheScope": "private"}
    return {"resultType": "complete", "supportedVersions": versions, **about, **cached}


def _about(capabilities: dict[str, Any]) -> dict[str, Any]:
    return {"capabilities": capabilities, "serverInfo": SERVER_INFO, "instructions": INSTRUCTIONS}


def _check_level(caller: Caller, asked: ClientRequest) -> None:
    level = LEVELS_OF_MCP[asked.method]
    if not caller.scopes.include(level):
        has = ", ".join(caller.scopes.texts())
        said = f"{asked.method} needs a key with the scope {level}; this key has {has}"
        raise RpcError(INVALID_REQUEST, said, {"code": "forbidden"}, status=403)
    if asked.method.startswith("tasks/") and not asked.takes_tasks:
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        said = f"{asked.method} needs a client that declares the extension {TASKS}"
        raise RpcError(MISSING_CAPABILITY, said, needed)


def _name_in_session(session: str | None, request_id: object) -> str | None:
    """Returns the name of a request in a session, whose client numbers its requests. None: the request has no session
    or no id."""
    if session is None or isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
        return None
    return f"mcp:{session}:{json.dumps(request_id)}"


def _scope(caller: Caller, name: str) -> ThreadId:
    """Returns the scope of a call's name: the caller's project and key."""
    return ThreadId("mcp:" + hashlib.sha256("\n".join([caller.project_id, caller.key_id, name]).encode()).hexdigest())


def _failed(error: Exception) -> dict[str, Any]:
    said = error.message if isinstance(error, HoldfastError) else str(error)
    if isinstance(error, PendingApproval):
        said += f" To go on: {wire_waiting(error.waiting)['resolve']}"
    return {"resultType": "complete", "content": [{"type": "text", "text": said}], "isError": True}


def _refused(asked: ClientRequest, error: HoldfastError) -> Response:
    return _answered(asked, domain_error_answer(f"{asked.method} /mcp", error))


def _answered(asked: ClientRequest, refused: Response) -> Response:
    """Renders a refusal as the protocol's answer to this request."""
    if not isinstance(refused, RefusalAnswer):
        return refused
    refusal = refused.refusal
    code = INTERNAL_ERROR if refusal.status >= 500 else INVALID_PARAMS
    body = error_bytes(asked.id, code, refusal.message, data_of(refusal))
    return Response(body, refusal.status, refused.more, media_type=JSON)
