"""Tools, as stored. A tool's source is text: the API parses it, and only the worker's sandbox runs it."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId, ToolId
from shared.domain.messages import AssistantMessage, MessageBody, ToolReturns

LONGEST_TOOL_NAME = 64
"""Characters of a tool's name that every model provider accepts."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def legal_name(text: str) -> str:
    """The text as a name of a tool that every model provider accepts."""
    name = _ILLEGAL.sub("_", text)
    if not name or not (name[0].isalpha() or name[0] == "_"):
        name = f"_{name}"
    return name[:LONGEST_TOOL_NAME]


# Packages of tools: a tool's requirements, its installed packages, and the operator's limits.


MOST_REQUIREMENTS = 50
MOST_EXTRAS = 10
LONGEST_NAME, LONGEST_VERSION = 200, 200
"""Characters."""


class ToolPackages(msgspec.Struct, frozen=True):
    """The packages of one tool: its requirements and their dependencies, each in exactly one version."""

    pins: list[str]
    """`name==version`, sorted."""
    modules: list[str]
    """The modules that they provide, by the first part of the names."""


class PackageRoom(msgspec.Struct, frozen=True):
    """The disk space that packages may use, or do use."""

    bytes_: int
    files: int


class PackageRules(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits for packages."""

    index: str
    """URL of the package index, which may hold a password; empty: nothing is installed."""
    folder: Path
    """The folder of all environments."""
    room: PackageRoom
    """The limit of one environment."""
    most_bytes_in_all: int
    """For all environments together: a new environment evicts the least recently used ones."""
    build_s: float
    """Seconds for an environment to be resolved and installed."""
    keep: timedelta
    """How long an unused environment is kept."""
    ca_file: str = ""
    """A file of certificates that are trusted beside the system's."""


def requirement_lines(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """A tool's `pip_requirements`, `[{"name": "requests", "version": "2.31.0"}]`, as sorted lines of PEP 508.

    A version may also be a range, as ">=2,<3". Each part of a line is parsed and written anew, so no line can be an
    option, a path or a URL. Raises `InvalidRequest`, which names the entry.
    """
    if len(given) > MOST_REQUIREMENTS:
        raise InvalidRequest(
            f"pip_requirements: {len(given)} packages; a tool may ask for {MOST_REQUIREMENTS}", field="pip_requirements"
        )
    lines: dict[str, str] = {}
    for number, entry in enumerate(given):
        place = f"pip_requirements[{number}]"
        name, extras = _name(entry.get("name"), f"{place}.name")
        if name in lines:
            raise InvalidRequest(f"{place}.name: {name} is asked for twice", field=f"{place}.name")
        lines[name] = f"{name}{extras}{_version(entry.get('version'), f'{place}.version')}"
    return sorted(lines.values())


def _name(given: object, place: str) -> tuple[str, str]:
    """The package's name as indexes write it, and its extras in brackets."""
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST_NAME:
        raise InvalidRequest(f"{place}: it must be a package's name, of up to {LONGEST_NAME} characters", field=place)
    try:
        asked = Requirement(given)
    except InvalidRequirement as error:
        raise InvalidRequest(
            f"{place}: {given!r} is no package's name; use one like 'requests'", field=place
        ) from error
    if asked.url or asked.marker or asked.specifier or len(asked.extras) > MOST_EXTRAS:
        raise InvalidRequest(
            f"{place}: {given!r} is more than a name; use one like 'requests' or 'requests[socks]', and `version` for "
            "its version. Packages come from the server's index alone",
            field=place,
        )
    extras = ",".join(sorted(map(canonicalize_name, asked.extras)))
    return canonicalize_name(asked.name), f"[{extras}]" if extras else ""


def _version(given: object, place: str) -> str:
    """The version or range in the form of PEP 440; empty for any version."""
    if given is None or given == "":
        return ""
    fix = "use one like '2.31.0', or a range like '>=2,<3'"
    if not isinstance(given, str) or len(given) > LONGEST_VERSION:
        raise InvalidRequest(f"{place}: it must be a text of up to {LONGEST_VERSION} characters; {fix}", field=place)
    try:
        return f"=={Version(given)}"
    except InvalidVersion:
        pass
    try:
        versions = SpecifierSet(given)
    except InvalidSpecifier as error:
        raise InvalidRequest(f"{place}: {given!r} is no version; {fix}", field=place) from error
    if not versions or any(one.operator == "===" for one in versions):
        raise InvalidRequest(f"{place}: {given!r} names no versions; {fix}", field=place)
    return str(versions)


# The rules for an agent's tools: which calls may come next, which must, and whether a run may end.
#
# The rules are as clients write them (`{"type": "run_first", "tool_name": …}`). They look at the calls of one turn: the
# calls of a run, and of the run that it continues.


Rule = dict[str, Any]


class TurnSoFar(msgspec.Struct, frozen=True):
    """The state of a turn that the rules read."""

    called: Sequence[str] = ()
    """Names of the tools that have results, in order."""
    last_result: str = ""
    answered: bool = False
    """The model has answered without calling a tool, and the worker has replied that the turn continues."""

    def and_then(self, body: MessageBody) -> "TurnSoFar":
        """The turn after one more message."""
        match body:
            case ToolReturns(returns=returns):
                names = [result.tool_name for result in returns]
                last = returns[-1].text if returns else self.last_result
                return TurnSoFar([*self.called, *names], last, self.answered)
            case AssistantMessage(tool_calls=[]):
                return TurnSoFar(self.called, self.last_result, answered=True)
            case _:
                return self


NOTHING_YET = TurnSoFar()


def turn_so_far(bodies: Iterable[MessageBody]) -> TurnSoFar:
    """The turn with these messages, in order."""
    turn = NOTHING_YET
    for body in bodies:
        turn = turn.and_then(body)
    return turn


class NextCalls(msgspec.Struct, frozen=True):
    """The calls that the rules allow the next answer."""

    allowed: frozenset[str]
    forced: bool = False
    """The answer must call one of them."""


def next_calls(rules: Sequence[Rule], names: Iterable[str], turn: TurnSoFar) -> NextCalls:
    """Which of the tools of these names may be called next, and whether one must be.

    `run_first` names the tools that come first; `constrain_child_tools` and `conditional` those that come after a tool;
    `parent_last_tool` those that may come only after their parent; `max_count_per_step` limits the calls of a tool;
    `required_before_exit` names the tools that must be called once the model has answered without them.
    """
    available = frozenset(names)
    first = available & {rule["tool_name"] for rule in rules if rule.get("type") == "run_first"}
    if first and not turn.called:
        return NextCalls(first, forced=True)
    allowed, forced = available, False
    for rule in rules:
        left = _left_by(rule, available, turn)
        allowed &= left
        forced |= rule.get("type") in _FORCING and _is_last(rule, turn) and left != available
    missing = allowed.intersection(missing_calls(rules, available, turn)) if turn.answered else frozenset[str]()
    if missing:
        return NextCalls(missing, forced=True)
    return NextCalls(allowed, forced=forced and bool(allowed))


_FORCING = ("constrain_child_tools", "conditional", "parent_last_tool")


def _left_by(rule: Rule, available: frozenset[str], turn: TurnSoFar) -> frozenset[str]:
    """Returns the available tools that one rule still allows."""
    match rule.get("type"):
        case "constrain_child_tools":
            return available.intersection(_children(rule)) if _is_last(rule, turn) else available
        case "parent_last_tool":
            children = available.intersection(_children(rule))
            return children if _is_last(rule, turn) else available - children
        case "conditional":
            return _left_by_result(rule, available, turn.last_result) if _is_last(rule, turn) else available
        case "max_count_per_step":
            most = rule.get("max_count_limit")
            used_up = turn.called.count(rule["tool_name"]) >= (1 if most is None else int(most))
            return available - {rule["tool_name"]} if used_up else available
        case _:
            return available


def _left_by_result(rule: Rule, available: frozenset[str], result: str) -> frozenset[str]:
    mapping: dict[str, str] = rule.get("child_output_mapping") or {}
    for case, child in mapping.items():
        if _is_case(result, case):
            return available & {child}
    if rule.get("require_output_mapping"):
        return frozenset()
    default = rule.get("default_child")
    return available & {default} if default else available


def _is_case(result: str, case: str) -> bool:
    """Whether a result equals a key of the mapping. JSON's keys are texts, also those for `true`, `1` and `1.0`."""
    if result == case:
        return True
    try:
        said, wanted = json.loads(result.lower()), json.loads(case.lower())
    except (ValueError, RecursionError):
        return False
    return isinstance(said, bool | int | float) and type(said) is type(wanted) and said == wanted


def _is_last(rule: Rule, turn: TurnSoFar) -> bool:
    return bool(turn.called) and turn.called[-1] == rule["tool_name"]


def _children(rule: Rule) -> list[str]:
    children: list[str] = rule.get("children") or []
    return children


def missing_calls(rules: Sequence[Rule], names: Iterable[str], turn: TurnSoFar) -> list[str]:
    """The tools that a turn must still call before it may end (`required_before_exit`)."""
    available = frozenset(names)
    wanted = [rule["tool_name"] for rule in rules if rule.get("type") == "required_before_exit"]
    return [name for name in dict.fromkeys(wanted) if name in available and name not in turn.called]


def ends_turn(rules: Sequence[Rule], called_now: Iterable[str]) -> bool:
    """Whether one of the tools that were just called ends the run by rule (`exit_loop`)."""
    exits = {rule["tool_name"] for rule in rules if rule.get("type") == "exit_loop"}
    return not exits.isdisjoint(called_now)


def filled_in(rules: Sequence[Rule], name: str, turn: TurnSoFar) -> dict[str, Any]:
    """The arguments that rules give to a call of this tool now, whatever the model writes: `args` of `run_first`, and
    `child_arg_nodes` of the parent that was called last."""
    given: dict[str, Any] = {}
    for rule in rules:
        if rule.get("type") == "run_first" and rule["tool_name"] == name and not turn.called:
            given |= rule.get("args") or {}
        if rule.get("type") == "constrain_child_tools" and _is_last(rule, turn):
            nodes: list[dict[str, Any]] = rule.get("child_arg_nodes") or []
            for node in nodes:
                given |= (node.get("args") or {}) if node.get("name") == name else {}
    return given


def filled_arguments(rules: Sequence[Rule], name: str, turn: TurnSoFar, arguments: str) -> str:
    """The arguments that the model wrote, with what rules give to the call. A text that is not a JSON object stays
    unchanged: the check before the call reports the fault."""
    filled = filled_in(rules, name, turn)
    if not filled:
        return arguments
    try:
        written = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return msgspec.json.encode(written | filled).decode()


def _named(rule: Rule) -> list[str]:
    mapping: dict[str, str] = rule.get("child_output_mapping") or {}
    default: str | None = rule.get("default_child")
    return [rule["tool_name"], *_children(rule), *mapping.values(), *([default] if default else [])]


def refuse_foreign_rules(rules: Iterable[Rule], names: Iterable[str]) -> None:
    """Raises `InvalidRequest` for a rule about a tool that the agent does not have, which would silently do nothing."""
    known = set(names)
    for rule in rules:
        for name in _named(rule):
            if name not in known:
                raise InvalidRequest(
                    f"tool_rules: a rule of type {rule.get('type')!r} names the tool {name!r}, which the agent does "
                    f"not have. It has: {', '.join(sorted(known)) or 'none'}. Attach the tool, or leave the rule out",
                    field="tool_rules",
                )


DEFAULT_RETURN_CHAR_LIMIT = 50_000
LEAST_TOOL_MEMORY_MB = 64
"""With less, an interpreter does not start."""

CUSTOM = "custom"
"""The type of a tool that a client made."""

PYTHON, TYPESCRIPT = LANGUAGES = ("python", "typescript")
"""The languages of tools, as they are stored."""

Kind = Literal["letta_core", "letta_memory_core", "letta_sleeptime_core", "letta_builtin", "letta_multi_agent_core"]
"""The types of the product's own tools, as they are stored and shown: programs depend on them."""

CORE: Final = "letta_core"
MEMORY: Final = "letta_memory_core"
SLEEPTIME: Final = "letta_sleeptime_core"
BUILTIN: Final = "letta_builtin"
MULTI_AGENT: Final = "letta_multi_agent_core"
BASE_TYPES = "letta_"
"""The prefix of these types."""


_SAYS_OF_OTHERS = (
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
)
"""Keywords that allow an object more names than its `properties` have."""

_TAKES_ANY = re.compile(r"[(,]\s*\*\*\s*\w")
"""`**` behind a bracket or a comma: a parameter that takes every name, or an argument, which does no harm here."""


class SandboxTier(StrEnum):
    """The levels of isolation for a tool's code, the strongest first."""

    ONE = "tier 1"
    """Namespaces, landlock and seccomp."""
    TWO = "tier 2"
    """Landlock and seccomp."""
    PROCESS = "process"
    """A process with limits, which isolates nothing."""


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one call of a tool. None: the worker's limit, which is also the maximum."""

    timeout_s: float | None = None
    """Seconds from start to end."""
    cpu_s: int | None = None
    """Seconds of processor time."""
    memory_mb: int | None = None
    """Address space, MiB."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that agents can be given."""

    id: ToolId
    project_id: ProjectId
    name: str
    description: str
    source_code: str
    json_schema: dict[str, Any]
    """`{"name", "description", "parameters": JSON Schema of the arguments}`."""
    args_json_schema: dict[str, Any] | None = None
    tags: list[str] = []
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool = False
    """The tool may run at the same time as other calls of the same answer."""
    idempotent: bool = False
    """The tool may be started again after a crash. False: the model gets the result that the call's outcome is
    unknown."""
    network: Literal["none", "host"] = "none"
    """`host`: it may connect to the hosts that the operator allows."""
    scratch: Literal["call", "run"] = "call"
    """`run`: beside its own scratch directory, a call shares a folder with other such calls of its run."""
    return_char_limit: int = DEFAULT_RETURN_CHAR_LIMIT
    limits: ToolLimits | None = None
    source_type: str = PYTHON
    tool_type: str = CUSTOM
    pip_requirements: list[dict[str, Any]] | None = None
    npm_requirements: list[dict[str, Any]] | None = None
    packages: ToolPackages | None = None
    """The packages installed for `pip_requirements`; None if there are no requirements, or the server installed
    nothing."""
    approval_expires_s: float | None = None
    """How long an approval of this tool may wait; None: for ever."""
    on_approval_expiry: Literal["keep", "deny", "cancel"] = "keep"
    metadata: dict[str, Any] = {}
    created_at: datetime
    updated_at: datetime

    @property
    def version(self) -> str | None:
        """Hexadecimal SHA-256 of everything that decides a call's behaviour: it differs if source, schema, network or
        packages differ. None for the product's own tools, whose source no caller can change."""
        if self.tool_type.startswith(BASE_TYPES):
            return None
        runs = [
            self.tool_type,
            self.source_type,
            self.source_code,
            self.json_schema,
            self.args_json_schema,
            self.packages,
            self.network,
            self.scratch,
        ]
        return hashlib.sha256(msgspec.json.encode(runs, order="deterministic")).hexdigest()

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return self.json_schema.get("parameters") or {"type": "object", "properties": {}}

    @property
    def accepted_arguments(self) -> dict[str, Any]:
        """The schema that checks calls: `parameters`, but no other names, because the function would refuse them. Other
        names stay allowed if the schema has a rule for them, or the source has `**`, of a function that takes any."""
        parameters = self.parameters
        is_open = any(name in parameters for name in _SAYS_OF_OTHERS)
        takes_any = self.source_type == PYTHON and _TAKES_ANY.search(self.source_code) is not None
        if self.tool_type != CUSTOM or is_open or takes_any or not isinstance(parameters.get("properties"), dict):
            return parameters
        return {**parameters, "additionalProperties": False}


class ToolChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which tools the model may and must call in a run, in addition to the agent's rules. The client's tools count."""

    mode: Literal["auto", "none", "required"] = "auto"
    """`none`: no call in the whole run. `required`: the first answer must call a tool; else the run would never end."""
    names: list[str] = []
    """With `auto`: only these are offered in the whole run. With `required`: the first answer must call one of them."""

    def permits(self, name: str) -> bool:
        """Whether a tool may be called in the run at all."""
        return self.mode == "required" or (self.mode == "auto" and (not self.names or name in self.names))


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client declared with its request and runs itself."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool | None = None
    """Whether the provider must keep the model to `parameters`, for providers with this option. None: if the schema
    allows it."""
