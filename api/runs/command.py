"""The command: a client's request to an agent's history, independent of any dialect.

Each dialect parses its requests into commands; `SubmissionService` knows nothing else of a request. A command names a
thread: one of an agent's conversations, or its default history.
"""

import hashlib
import mimetypes
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from shared.domain.agents import Agent, ModelOptions
from shared.domain.approvals import Approval
from shared.domain.errors import InvalidRequest
from shared.domain.ids import AgentId, ConversationId, ProjectId, RunId, ThreadId, is_id
from shared.domain.messages import AttachedFile, Decision, ImageContent, TextContent, UserMessage
from shared.domain.runs import IDEMPOTENCY_KEY, NO_KEYS, RunOptions, SentBody, SubmissionKeys, key_of_otids
from shared.domain.threads import Conversation
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.runs.run_store import ANYWHERE, Place

BusyPolicy = Literal["reject", "enqueue", "interrupt", "rollback", "inject"]
"""The fate of a message to a history with an active run: refuse the message, queue it, cancel the run, cancel it and
remove its messages, or give the message to the run."""

ReadDecisions = Callable[[Sequence[Approval]], list[Decision]]
"""Reads a request's decisions, given the waiting calls, because dialects name calls in several ways. Raises
`InvalidRequest`, `Conflict` or `WrongToolCalls`."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Messages for an agent, decisions on its waiting calls, or both."""

    agent: Agent
    conversation_id: ConversationId | None = None
    thread: ThreadId | None = None
    """The thread of an earlier run that no conversation holds. None: the conversation's, or the agent's own."""
    place: Place = ANYWHERE
    messages: Sequence[UserMessage] = ()
    """Oldest first."""
    decisions: ReadDecisions | None = None
    """None: the request has no decisions."""
    options: RunOptions
    if_busy: BusyPolicy = "enqueue"
    keys: SubmissionKeys = NO_KEYS
    priority: int = 0
    callback_url: str | None = None
    actor: str = "api"
    run_id: RunId | None = None
    """The id of the run, if it is a new one. None: a generated id."""
    keeps_alive: bool = True
    """Whether a repetition of decisions whose continuation has ended asks the model to go on. False: the repetition
    raises `AlreadyDecided`."""

    @property
    def thread_id(self) -> ThreadId:
        return self.thread or ThreadId(self.conversation_id or self.agent.id)


# The server recognizes a repeated submission by the client's names for it, or by the headers of SDKs that Stainless
# generates, such as Letta's and OpenAI's.


BODY = "body:"
"""The prefix of a submission key that holds the hash of a request's body."""

UNSAID_TIMEOUT_S = 600.0
"""Seconds that a client may have waited if it sends no timeout: the longest default of these SDKs."""

MAX_TIMEOUT_S = 3600.0
MAX_TRIES = 10

PAUSE_S = 60.0
"""Seconds of the longest pause of these SDKs before a try: they obey a `Retry-After` of a minute."""


class Try(NamedTuple):
    """The number of a request's try; 0 is the first."""

    number: int
    sent_for_s: float
    """The first try was sent at most this many seconds ago."""


class SubmissionHeaders(msgspec.Struct, frozen=True):
    """The values of a submission's headers."""

    idempotency_key: str | None = None
    if_busy: BusyPolicy | None = None
    status_events: bool = False
    priority: int = 0
    tried: Try | None = None
    """None: the client does not send the number."""
    key_id: str | None = None
    """The API key of the request."""
    of_single_agents: bool = False
    """Whether the key sees single agents only, and so no submission of another key."""


class Part(NamedTuple):
    """A part of a request by which the request is recognized: its otid if it has one, and its text."""

    otid: str | None
    text: Callable[[], str]


def try_of(retry_count: str | None, timeout: str | None) -> Try | None:
    """Reads the try from `x-stainless-retry-count` and the header of the client's timeout.

    The SDK sets them, not the user, so malformed values are ignored.
    """
    if retry_count is None or not retry_count.isdecimal() or not retry_count.isascii() or len(retry_count) > 4:
        return None
    number = min(int(retry_count), MAX_TRIES)
    try:
        waited_s = float(timeout or UNSAID_TIMEOUT_S)
    except ValueError:
        waited_s = UNSAID_TIMEOUT_S
    if not 0 < waited_s <= MAX_TIMEOUT_S:
        waited_s = MAX_TIMEOUT_S
    return Try(number, number * (waited_s + PAUSE_S))


def keys_of(
    headers: SubmissionHeaders, way: str, now: datetime, *, body: Callable[[], str], parts: Sequence[Part] = ()
) -> SubmissionKeys:
    """Returns the keys by which a submission is recognized when it is sent again.

    Its names are the header's key, and the otids if all parts have one. Only a submission without a name is recognized
    by its body. `way` tells routes apart that accept equal bodies. `body` renders the request, only if needed.
    """
    names = [] if headers.idempotency_key is None else [IDEMPOTENCY_KEY + headers.idempotency_key]
    otids = [part.otid for part in parts if part.otid]
    if otids and len(otids) == len(parts):
        names.append(key_of_otids(otids))
    if names:
        # The order of otids does not matter.
        said = sorted(part.text() for part in parts) or [way, body()]
        return SubmissionKeys(names, _hash_of(*said))
    if headers.tried is None:
        return NO_KEYS
    key = BODY + _hash_of(way, body())
    since = now - timedelta(seconds=headers.tried.sent_for_s) if headers.tried.number else None
    return SubmissionKeys(body=SentBody(key, now, since))


def _hash_of(*texts: str) -> str:
    whole = hashlib.sha256()
    for text in texts:
        whole.update(hashlib.sha256(text.encode()).digest())
    return whole.hexdigest()


DEFAULT = "default"
"""Clients send this word in place of a conversation's id to name an agent's default history."""


@dataclass(frozen=True)
class AgentThread:
    """One history of an agent: a conversation, or the default history."""

    agent: Agent
    conversation: Conversation | None = None
    read_options: Callable[[], ModelOptions | None] = lambda: None

    @property
    def id(self) -> ThreadId:
        return ThreadId(self.conversation_id or self.agent.id)

    @property
    def conversation_id(self) -> ConversationId | None:
        return None if self.conversation is None else self.conversation.id

    @property
    def model(self) -> str | None:
        """The model that the conversation sets in place of the agent's."""
        return None if self.conversation is None else self.conversation.model

    @property
    def model_options(self) -> ModelOptions | None:
        """The model options of this conversation. None: the agent's."""
        return self.read_options()


@dataclass(frozen=True, kw_only=True)
class AgentThreads:
    """Finds histories."""

    agents: AgentStore
    conversations: ConversationStore
    changed_by: Callable[[ModelOptions, Mapping[str, Any]], ModelOptions]
    """Applies a conversation's settings to options. The settings are stored in the dialect that set them. Raises
    `ValueError` for unknown settings."""

    async def find(self, project_id: ProjectId, name: str, agent_id: AgentId | None = None) -> AgentThread:
        """Returns the history with this name: a conversation's id, an agent's id, or `default` with `agent_id`.

        Raises `NotFound`, or `InvalidRequest` if `default` comes without `agent_id`.
        """
        if name == DEFAULT and agent_id is None:
            raise InvalidRequest(
                "agent_id is missing: name the agent whose default history conversation 'default' is", field="agent_id"
            )
        if name == DEFAULT or is_id(name, "agent"):
            return AgentThread(await self.agents.without_links(project_id, AgentId(agent_id or name)))
        conversation = await self.conversations.get(project_id, ConversationId(name))
        agent = await self.agents.without_links(project_id, conversation.agent_id)
        return self.of(agent, conversation)

    def of(self, agent: Agent, conversation: Conversation) -> AgentThread:
        """Returns the history of this conversation."""
        return AgentThread(agent, conversation, partial(self._options, agent, conversation))

    def _options(self, agent: Agent, conversation: Conversation) -> ModelOptions | None:
        # The agent's window was chosen for the agent's model.
        options = agent.options if conversation.model is None else replace(agent.options, context_window=None)
        options = self.changed_by(options, conversation.model_settings or {})
        if conversation.context_window_limit is not None:
            options = replace(options, context_window=conversation.context_window_limit)
        return None if options == agent.options else options


# Files in users' messages: texts become text, and PDF stays a file for models that read it.


_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/javascript", "application/sql")
_SAYS_NOTHING = "application/octet-stream"


DATA_URL = re.compile(
    r"data:(?P<media_type>[\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]+)*;base64,(?P<data>[A-Za-z0-9+/=\s]+)"
)


def file_name(given: object) -> str:
    """The name that a client gives a file, in one line; empty if it gives none."""
    return " ".join(given.split())[:200] if isinstance(given, str) else ""


def image_at(url: str, *, field: str, named: object = None) -> ImageContent:
    """Returns the part for the image at a URL, or in a `data:` URL. Raises `InvalidRequest`."""
    if url.startswith(("http://", "https://")):
        return ImageContent(url=url, name=file_name(named) or msgspec.UNSET)
    data = DATA_URL.fullmatch(url)
    if data is None:
        raise InvalidRequest(f"{field} must be http://…, https://… or data:image/…;base64,…", field=field)
    return attached_image(data["data"], data["media_type"], field=field, named=named)


def attached_image(encoded: str, media_type: str | None, *, field: str, named: object = None) -> ImageContent:
    """Returns the part for an image that a client sent as base64 in `field`. Raises `InvalidRequest` for other data."""
    with suppress(ValueError):
        if b64decode("".join(encoded.split()), validate=True):
            return ImageContent(data=encoded, media_type=media_type, name=file_name(named) or msgspec.UNSET)
    raise InvalidRequest(f"{field} must be the base64 of an image", field=field)


def attached_file(named: object, media_type: str | None, encoded: str, *, field: str) -> TextContent:
    """Returns the part for a file that a client sent as base64 in `field`. Without a media type, the name decides.

    Raises `InvalidRequest` for invalid base64, and for files that are neither PDF nor UTF-8 text.
    """
    name = file_name(named) or "file"
    kind = (media_type or _SAYS_NOTHING).lower()
    if kind == _SAYS_NOTHING:
        kind = mimetypes.guess_type(name)[0] or _SAYS_NOTHING
    try:
        data = b64decode("".join(encoded.split()), validate=True)
    except ValueError as error:
        raise InvalidRequest(f"{field} must be base64, or data:…;base64,…", field=field) from error
    if kind == "application/pdf":
        shown = f"[file {name}, {len(data):,} bytes]"
        return TextContent(shown, AttachedFile(name, kind, b64encode(data).decode()))
    if kind.startswith("text/") or kind in _TEXT_TYPES:
        try:
            return TextContent(f"[file {name}]\n{data.decode('utf-8-sig')}", AttachedFile(name, kind))
        except ValueError as error:
            raise InvalidRequest(f"{field} is {kind} and must be UTF-8", field=field) from error
    raise InvalidRequest(
        f"{field} is {kind} ({name}): PDF and texts are taken. Send its text, or its pages as images", field=field
    )
