"""Checks a request before the API reads its body: a web page's origin, the path, the key, the caller's limits.

A client without a key cannot make this process read, parse or keep a body.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access.accepted_keys import AcceptedKeys
from api.access.authentication import Authentication, needs_key
from api.admission import CallerQuotas, over_request_limit
from api.errors import SHOULD_RETRY, Refused, domain_error_answer, refused
from shared.domain.errors import ErrorCode, HoldfastError, Unavailable
from shared.sql.access.audit import asked_by

NEVER_CHANGES = frozenset(range(400, 500)) - {408} | {501}
"""Statuses that a repeated request would get again. 408 is not among them: the body was lost on its way."""


class Gate:
    """Admits a request, or answers it.

    The gate tells Letta's SDKs not to retry a request whose answer cannot change, unless the answer says otherwise.
    They would send it three times, and their users would wait more than a second for the same answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        guard: "BrowserGuard",
        paths: "LettaPaths",
        authentication: Authentication,
        quotas: CallerQuotas,
    ) -> None:
        self._app = app
        self._guard = guard
        self._paths = paths
        self._authentication = authentication
        self._quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asker, answer = None, await self._guard.refusal(scope) or self._paths.refusal(scope)
        if answer is None and needs_key(scope["path"]):
            try:
                asker = await self._authentication.let_in(scope)
            except Refused as error:
                answer = error.answer()
            except HoldfastError as error:
                answer = domain_error_answer(f"{scope['method']} {scope['path']}", error)
        with nullcontext() if asker is None else asked_by(asker):
            answer = answer or await over_request_limit(self._quotas, scope) or self._app
            await answer(scope, receive, _final(send))


def _final(send: Send) -> Send:
    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] in NEVER_CHANGES:
            MutableHeaders(scope=message).setdefault(SHOULD_RETRY, "false")
        await send(message)

    return marked


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class BrowserGuard:
    """Refuses requests that a foreign web page could send to a server without API keys.

    Such a server trusts every client that can reach it, and the browser on that machine can reach it too. A page can
    make its own name resolve to 127.0.0.1 (DNS rebinding), or submit a form there. In both cases `Host` or `Origin`
    has a name that is not ours. A page of another server on this machine has one of our names, and a browser sends its
    forms without a preflight. So only pages of this server, by host and port, may change something.

    `names` are allowed besides those of loopback; `origins` are other pages that may send requests.
    """

    def __init__(self, *, keys: AcceptedKeys, names: Collection[str], origins: Collection[str]) -> None:
        self._keys = keys
        self._origins = frozenset(origins)
        self._allowed = frozenset(name.lower() for name in names)

    async def refusal(self, scope: Scope) -> Response | None:
        """The 403 for a request that a foreign page may have sent; None for other requests."""
        found = self._suspicion(scope["method"], scope["headers"])
        if found is None or await self._is_closed():
            return None
        field, sentence = found
        return refused(403, ErrorCode.FORBIDDEN_ORIGIN, sentence, field=field)

    async def _is_closed(self) -> bool:
        try:
            return await self._keys.are_required()
        except Unavailable:
            return False

    def _suspicion(self, method: str, headers: list[tuple[bytes, bytes]]) -> tuple[str, str] | None:
        """The header that makes the request suspect, and a sentence; None if none does. Programs send no `Origin`."""
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        for said in hosts:
            if not self._is_ours(_name_of(f"//{said}")):
                return "header.Host", _not_ours("Host", said)
        for said in origins:
            if said in self._origins:
                continue
            name = _name_of(said)
            if not self._is_ours(name):
                return "header.Origin", _not_ours("Origin", said)
            if method not in _READS and name not in self._allowed and not _is_same_server(said, hosts):
                return "header.Origin", _not_our_page(said)
        return None

    def _is_ours(self, name: str) -> bool:
        # Browsers resolve every name under `localhost` to this machine, so no page can rebind one.
        return name in LOOPBACK_NAMES or name in self._allowed or name.endswith(".localhost")


_READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing, and the browser's preflight. A browser shows the answers only to the server's own
pages."""


def _name_of(address: str) -> str:
    """The host of an address, without its port; "" if it has none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_same_server(origin: str, hosts: Sequence[str]) -> bool:
    """Whether a page's origin is the requested server, port included. A browser omits the default port from both."""
    return urlsplit(origin).netloc.lower() in {host.lower() for host in hosts}


def _not_our_page(said: str) -> str:
    return (
        f"FORBIDDEN: Origin is {said[:200]!r}, and without API keys this server lets its own pages alone change "
        "something. Name the page's origin in HOLDFAST_CORS_ORIGINS, or set HOLDFAST_API_KEYS"
    )


def _not_ours(header: str, said: str) -> str:
    return (
        f"FORBIDDEN: {header} is {said[:200]!r}, and without API keys this server answers requests to this machine's "
        "own names only. Allow the name in HOLDFAST_ALLOWED_HOSTS, or set HOLDFAST_API_KEYS"
    )


_AGENT = r"agents/[^/]+/"
_NOT_OURS = re.compile(
    "/v1/(?:"
    # Whole nouns.
    r"(?:client-side-access-tokens|embeddings|environments|files|folders|groups|identities|jobs"
    r"|metadata|providers|ready|repositories|sandbox-config|shared-agents|sources|telemetry|templates"
    r"|voice-beta)(?:/.*)?"
    # Letta's administration, and the paths of its web pages and coding tools.
    r"|(?:_internal_[a-z]+|anthropic|orgs|users|zai)(?:/.*)?"
    # Paths below nouns that Holdfast serves.
    rf"|{_AGENT}(?:files|folders|groups|identities|repositories|schedule|sources|variables)(?:/.*)?"
    rf"|{_AGENT}mcp-servers/.+"
    rf"|{_AGENT}core-memory/variables|{_AGENT}system-prompt/recompile"
    rf"|{_AGENT}messages/preview-raw-payload|{_AGENT}messages/message-[^/]+"
    rf"|{_AGENT}sandboxes|sandboxes(?:/.*)?|git(?:/.*)?|admin/(?:orgs|users)(?:/.*)?|auth"
    r"|agents/(?:messages/)?search"
    r"|conversations/(?:ephemeral|search)|conversations/[^/]+/summarize"
    r"|blocks/[^/]+/identities(?:/.*)?"
    r"|conversations/[^/]+/messages/preview-raw-payload"
    r"|messages/batches(?:/.*)?"
    r"|models/catalog"
    r"|steps/[^/]+/transaction/.*"
    r"|tools/(?:composio.*|generate-schema|generate-tool|mcp/oauth/(?!callback$).*|run|search)"
    r")"
)


_LETTAS_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})


class LettaPaths:
    """Treats `/v1/agents/` and `/v1/agents` as one path, without a redirect, which would lose the body of a POST. An
    escaped slash at the end (`%2F`) belongs to a name in the path, and stays.

    A path of Letta that Holdfast lacks gets a 501 with this reason, because a 404 would look like a wrong id. `lists`
    are the routes among these paths that Holdfast answers nevertheless.
    """

    def __init__(self, *, lists: Sequence[BaseRoute]) -> None:
        self._lists = lists

    def refusal(self, scope: Scope) -> Response | None:
        """Rewrites the path to the form of the routes. Returns the 501 for a path that Holdfast lacks, else None."""
        raw: bytes = scope["raw_path"]
        slashes = len(raw) - len(raw.rstrip(b"/"))
        path = scope["path"][: len(scope["path"]) - slashes] or "/"
        scope["path"] = path  # in place: the outer middlewares read the matched route from this scope
        is_letta = scope["method"] in _LETTAS_METHODS and _NOT_OURS.fullmatch(path)
        if not is_letta or any(route.matches(scope)[0] is Match.FULL for route in self._lists):
            return None
        return refused(501, ErrorCode.NOT_IMPLEMENTED, _refusal(scope["method"], path))


def _refusal(method: str, path: str) -> str:
    return (
        f"NOT_IMPLEMENTED: {method} {path} is part of Letta's API that Holdfast does not have. "
        "Holdfast runs agents; docs/api.md lists what it serves."
    )
