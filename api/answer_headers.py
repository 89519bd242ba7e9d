"""Headers that go beside answers, whoever gives them."""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast
from urllib.parse import parse_qsl

import structlog
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Scope

from api.declarations import declaration_of
from api.letta.messages import wire_time
from api.letta.unused_input import unused_fields
from api.openai.chat_request import ChatRequest, left_out
from shared.domain.runs import Run

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ASKS_FOR_NOTHING = {"order_by": "created_at"}
"""Query parameters with the value that every list goes by anyway."""

PIP_REQUIREMENTS = ("pip_requirements",)
"""What is acted on where the operator has named a package index."""

MAX_NAMES = 20
"""Of one request: so many are looked for, shown and logged."""
MAX_LOGGED = 10_000
LONGEST_NOTE, LONGEST_WARNING = 500, 4000
"""Characters. Programs refuse long heads."""
_SHOWABLE = re.compile(r"[\w.\[\]-]{1,80}", re.ASCII)


class UnusedInputWarnings:
    """Says in a `Warning` header what of an accepted request is not acted on, and logs it once for each agent.

    What belongs to no agent is logged once for each path.
    """

    def __init__(self, *, installs_packages: bool) -> None:
        """`installs_packages`: this server acts on the `pip_requirements` of tools."""
        self._acted_on = PIP_REQUIREMENTS if installs_packages else ()
        self._logged: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._parameters: dict[str, frozenset[str]] = {}

    def warn(self, scope: Scope, body: bytes, message: Message) -> None:
        """Adds the header to the head of an answer."""
        # Routing has put the route there. Paths without one are not ours to judge.
        route = scope.get("route")
        if isinstance(route, APIRoute) and (names := self._first_unused(route, scope, body)):
            self._log(route, scope, names)
            MutableHeaders(scope=message).append("Warning", _warning(names))

    def _first_unused(self, route: APIRoute, scope: Scope, body: bytes) -> list[str]:
        """The names, up to one more than are shown: a body has room for tens of thousands."""
        return list(islice(_once_each(self._unused(route, scope, body)), MAX_NAMES + 1))

    def _unused(self, route: APIRoute, scope: Scope, body: bytes) -> Iterator[str]:
        known = self._parameters.get(route.unique_id)
        if known is None:
            known = frozenset(one.alias for one in declaration_of(route).all_of("query"))
            self._parameters[route.unique_id] = known
        for name, value in dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)).items():
            if name not in known and ASKS_FOR_NOTHING.get(name) != value:
                yield f"query.{name}"
        model = declaration_of(route).body_model()
        if model is None or not body:
            return
        given: object = json.loads(body)
        if isinstance(given, dict):
            said = cast("dict[str, Any]", given)
            yield from (name for name in unused_fields(model, said) if name not in self._acted_on)
            if model is ChatRequest:
                yield from left_out(said["messages"])

    def _log(self, route: APIRoute, scope: Scope, names: list[str]) -> None:
        makes_agent = (scope["method"], route.path) == ("POST", "/v1/agents")
        place: str = scope["path_params"].get("agent_id", route.unique_id)
        new = [name for name in names if makes_agent or (place, name) not in self._logged]
        if new:
            log.warning("input_not_acted_on", request=f"{scope['method']} {scope['path']}", fields=_listed(new))
        for name in names:
            self._logged[place, name] = None
            self._logged.move_to_end((place, name))
        while len(self._logged) > MAX_LOGGED:
            self._logged.popitem(last=False)


def _warning(names: list[str]) -> str:
    return f'299 holdfast "not acted on: {_listed(names)}"'


def _listed(names: list[str]) -> str:
    shown = ", ".join(_shown(name) for name in names[:MAX_NAMES])
    return f"{shown} and more" if len(names) > MAX_NAMES else shown


def _once_each(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name not in seen:
            seen.add(name)
            yield name


def _shown(name: str) -> str:
    """The name, unless it holds what has no place in a header or a log."""
    return name if _SHOWABLE.fullmatch(name) else "a name that cannot be shown"


def warning_of(notes: Sequence[str]) -> str:
    """The notes as a `Warning` header, in plain characters, as many as fit. The log has them as they are."""
    header = ""
    for note in notes:
        plain = "".join(one if one.isascii() and one.isprintable() else "?" for one in note[:LONGEST_NOTE])
        value = f'299 holdfast "{plain.replace(chr(92), "/").replace(chr(34), chr(39))}"'
        if len(header) + len(value) > LONGEST_WARNING:
            break
        header += f", {value}" if header else value
    return header


def warn_if_pruned(response: Response, run: Run) -> None:
    """Says of an answer about what a run has left behind that it is empty because retention deleted that."""
    if run.pruned_at is not None:
        said = f"run {run.id} was pruned at {wire_time(run.pruned_at)}: its log and its steps are deleted"
        response.headers.append("Warning", warning_of([said]))
