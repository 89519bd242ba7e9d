"""Which agent a request is about, for keys that see single agents only.

What is not theirs is for them what it is for another project: not there. So a request that names something else goes on
as one of a project that has nothing, and its route answers as it answers for an unknown id, in every detail.
"""

import json
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access.agent_fields import refused_field
from api.access.callers import Caller
from api.access.route_rules import CHAT, Reach
from api.errors import refused
from shared.domain.errors import ErrorCode
from shared.domain.ids import ProjectId, is_id
from shared.sql.access.api_keys import OwnerStore

NOBODY = ProjectId("")
"""A project that no key is of, and that has nothing."""

_OWNED = ("run_id", "conversation_id", "step_id", "approval_id", "message_id")
_DEFAULT = "default"


@dataclass(frozen=True)
class AgentReach:
    """Decides whether what a request names belongs to the caller's agents. Raises `Unavailable`."""

    owners: OwnerStore

    async def through_path(self, caller: Caller, reach: Reach, path: Mapping[str, str], query: bytes) -> Caller | None:
        """The caller as whom the request goes on. None: its query has to name the agent, and does not."""
        if reach is Reach.NOTHING:
            return caller
        named = [value for name, value in _pairs(query) if name in ("agent_id", "agent_ids")]
        if reach is Reach.QUERY and not named:
            return None
        named += [path[name] for name in ("agent_id", *_OWNED) if name in path and path[name] != _DEFAULT]
        return await self._as(caller, named)

    async def through_body(self, caller: Caller, path: str, fields: Mapping[str, Any]) -> Caller:
        """The caller as whom the request goes on, by what its body names."""
        named = [fields["agent_id"]] if fields.get("agent_id") is not None else []
        if path in CHAT:
            named.append(fields.get("model"))
        return await self._as(caller, named)

    async def _as(self, caller: Caller, named: Iterable[object]) -> Caller:
        for one in named:
            if not (isinstance(one, str) and await self._is_theirs(caller, one)):
                return replace(caller, project_id=NOBODY)
        return caller

    async def _is_theirs(self, caller: Caller, name: str) -> bool:
        if is_id(name, "agent"):
            return name in caller.scopes.agents
        owners = await self.owners.agents_of(caller.project_id, name)
        return bool(owners) and owners <= caller.scopes.agents


def _fields(body: bytes) -> dict[str, Any]:
    """The fields of a body that is a JSON object; of another one there are none."""
    try:
        given: Any = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


def _pairs(query: bytes) -> list[tuple[str, str]]:
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


class AgentBodies:
    """Looks at what the bodies of requests name and change, when their key sees single agents only. The body has been
    read and checked before."""

    def __init__(self, app: ASGIApp, *, reach: AgentReach) -> None:
        self._app = app
        self._reach = reach

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        caller: Caller | None = scope.get("state", {}).get("caller") if scope["type"] == "http" else None
        if caller is None or not caller.scopes.agents or scope["method"] in ("GET", "HEAD"):
            return self._app(scope, receive, send)
        return self._within_reach(caller, scope, receive, send)

    async def _within_reach(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        fields, method, path = _fields(message.get("body", b"")), scope["method"], scope["path"]
        found = refused_field(fields, method, path, is_chat=path in CHAT)
        if found is not None:
            said = f"FORBIDDEN: {found} is for keys of the project; this key is for talking with the agent as it is"
            field = found.partition(" ")[0]
            await refused(403, ErrorCode.FORBIDDEN, said, field=field)(scope, receive, send)
            return
        scope["state"]["caller"] = await self._reach.through_body(caller, path, fields)
        del fields
        first: list[Message] = [message]
        del message  # whoever reads it lets go of it

        async def replayed() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, replayed, send)
