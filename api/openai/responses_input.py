"""The input of a response: the history that it repeats, its new messages, and its answers to open calls.

A client that keeps its own history sends all of it each time, answers and calls included. A client that names the
previous response sends only new items. Both are lists of items. Errors name the item.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from msgspec import structs

from api.input_limits import as_object
from api.openai.client_tools import arguments_with, function_name
from api.openai.response_fold import AGAIN
from api.openai.response_items import approval_item_id, call_item_id, summary_in
from api.runs.command import DATA_URL, attached_file, image_at
from shared.domain.approvals import Approval
from shared.domain.errors import InvalidRequest
from shared.domain.ids import RunId
from shared.domain.messages import (
    AssistantMessage,
    ContentPart,
    Decision,
    MessageBody,
    Summary,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
    has_files,
    text_with_notes,
)

MOST_ITEMS = 10_000

COMPACTION_TRIGGER = "compaction_trigger"
"""The type of the item that asks for a compaction."""

_NO_OUTCOME = "This call has no result: it was not made, or it was stopped."

_SPEAKERS = ("user", "system", "developer")


@dataclass
class ResponseInput:
    """The contents of a request, in the domain's terms."""

    story: list[MessageBody] = field(default_factory=list[MessageBody])
    """Answers, calls and results that the client repeats, and the messages between them."""
    said: list[UserMessage] = field(default_factory=list[UserMessage])
    """New messages, which are the messages after all answers and results."""
    outputs: dict[str, Decision] = field(default_factory=dict[str, Decision])
    """Results of calls that are not in the input, by the calls' ids."""
    verdicts: dict[str, Decision] = field(default_factory=dict[str, Decision])
    """A person's decisions, by the ids of the items that ask for them."""
    compacts: bool = False
    """The request asks for a summary of the whole history."""
    since_asked: list[UserMessage] | None = None
    """The messages after the last approval request. None: the input does not repeat a request and decide one."""

    @property
    def answers_calls(self) -> bool:
        """Whether the input answers calls of an earlier response."""
        return bool(self.outputs or self.verdicts)

    @property
    def has_files(self) -> bool:
        """Whether a message has files other than texts."""
        return any(isinstance(body, UserMessage) and has_files(body.content) for body in (*self.story, *self.said))

    def texts(self) -> list[object]:
        """The countable parts of each message, for the limit on its length."""
        decided = (*self.outputs.values(), *self.verdicts.values())
        return [*map(_texts_of, (*self.story, *self.said)), *(one.tool_return or one.reason or "" for one in decided)]


def _texts_of(body: MessageBody) -> object:
    match body:
        case UserMessage(content=str() as text) | Summary(text=text):
            return text
        case UserMessage(content=list() as parts):
            return [one.text for one in parts if isinstance(one, TextContent)]
        case AssistantMessage(text=text, tool_calls=calls):
            return [text, *(call.arguments for call in calls)]
        case ToolReturns(returns=returns):
            return [one.text for one in returns]
        case _:
            return ""


def reference_of(item: Mapping[str, Any]) -> str | None:
    """The id to which this item refers. None: it is a whole item."""
    is_reference = item.get("type") == "item_reference" or (item.get("type") is None and item.keys() <= {"id", "type"})
    named = item.get("id")
    return named if is_reference and isinstance(named, str) else None


def read_input(given: str | Sequence[Mapping[str, Any]] | None, *, leaves_calls_open: bool = False) -> ResponseInput:
    """Reads the field `input`. Raises `InvalidRequest`, which names the item. A call without its output is also an
    error, unless `leaves_calls_open` allows it to come later."""
    if given is None:
        return ResponseInput()
    if isinstance(given, str):
        return ResponseInput(said=[UserMessage(content=given)])
    story = _Story(leaves_calls_open)
    compacts = bool(given) and given[-1].get("type") == COMPACTION_TRIGGER
    for number, item in enumerate(given[:-1] if compacts else given):
        story.take(item, f"input[{number}]")
    whole = story.input()
    if compacts and whole.answers_calls:
        raise InvalidRequest(
            "input: a compaction_trigger cannot come with answers to calls. Send these first, and the trigger with the "
            "next response",
            field="input",
        )
    return replace(whole, compacts=compacts)


@dataclass
class _Story:
    """The items so far."""

    leaves_calls_open: bool = False
    bodies: list[MessageBody] = field(default_factory=list[MessageBody])
    texts: list[str] = field(default_factory=list[str])
    """The texts of the answer to which the last items belong. `calls` are that answer's calls."""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    names: dict[str, str] = field(default_factory=dict[str, str])
    """The names of the tools in `calls`, by the calls' ids."""
    results: dict[str, ToolReturn] = field(default_factory=dict[str, ToolReturn])
    """The results of `calls`."""
    outputs: dict[str, Decision] = field(default_factory=dict[str, Decision])
    verdicts: dict[str, Decision] = field(default_factory=dict[str, Decision])
    earlier: dict[str, Decision] = field(default_factory=dict[str, Decision])
    """Verdicts after which the answer goes on."""
    asked: dict[str, int] = field(default_factory=dict[str, int])
    """The approval requests among the items, by their ids, with the number of bodies before each."""
    held: list[MessageBody] = field(default_factory=list[MessageBody])
    """Messages between a call and its output: models accept them only after the output."""

    def take(self, item: Mapping[str, Any], place: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        match kind:
            case "message":
                self._take_message(item, place)
            case "function_call" | "custom_tool_call":
                self._take_call(_call(item, "call_id", place), place)
            case "function_call_output" | "custom_tool_call_output":
                self._take_output(item, place)
            case "mcp_call":
                self._take_mcp_call(item, place)
            case "mcp_approval_response":
                self._take_verdict(item, place)
            case "compaction":
                self._end_answer()
                self.bodies.append(_summary(item, place))
            case "mcp_approval_request":
                self.asked[str(item.get("id"))] = len(self.bodies)
            case "reasoning" | "mcp_list_tools":
                return  # reasoning is only for the model that wrote it
            case _:
                raise InvalidRequest(f"{place}.type is {str(kind)[:50]!r}: {_why_not(kind)}", field=f"{place}.type")

    def _take_message(self, item: Mapping[str, Any], place: str) -> None:
        role = item.get("role")
        content = _content(item.get("content"), place, takes_files=role != "assistant")
        if role == "assistant":
            self._pass_over_verdicts()
            if self.calls and not self._awaits_output:
                self._end_answer()
            self.texts.append(content if isinstance(content, str) else text_with_notes(content))
            return
        if role not in _SPEAKERS:
            raise InvalidRequest(
                f"{place}.role is {str(role)[:50]!r}: it must be user, assistant, system or developer",
                field=f"{place}.role",
            )
        if not self._awaits_output:
            self._end_answer()
        said = UserMessage(content=content, role="user" if role == "user" else "system")
        (self.held if self._awaits_output else self.bodies).append(said)

    @property
    def _awaits_output(self) -> bool:
        """Whether the input has to contain further outputs of the current answer's calls."""
        return not self.leaves_calls_open and any(call.id not in self.results for call in self.calls)

    def _take_call(self, call: ToolCall, place: str) -> None:
        if self.results and not self._awaits_output:
            self._end_answer()
        if call.id in self.names:
            raise InvalidRequest(
                f"{place} has the id of an earlier call of its answer, {call.id[:100]!r}: each call needs its own",
                field=place,
            )
        self.calls.append(call)
        self.names[call.id] = call.name

    def _take_output(self, item: Mapping[str, Any], place: str) -> None:
        call_id = _needed(item, "call_id", place)
        output = _content(item.get("output"), place, name="output")
        parts = None if isinstance(output, str) else output
        text = output if isinstance(output, str) else text_with_notes(output)
        called = self.names.get(call_id)
        if called is None:
            self.outputs[call_id] = Decision(
                tool_call_id=call_id, kind="tool", tool_return=text, parts=parts, is_plain=True
            )
            return
        self.results[call_id] = ToolReturn(call_id, called, "success", text, parts=parts, is_plain=True)

    def _take_mcp_call(self, item: Mapping[str, Any], place: str) -> None:
        # Agents' frameworks drop the ids of items that they keep.
        call = _call({"id": call_item_id("mcp", RunId(place), None, repr(item)), **item}, "id", place)
        self._pass_over_verdicts()
        self._take_call(call, place)
        error = item.get("error")
        text = item.get("output") if error is None else _error_text(error)
        if text is None:
            error = text = _NO_OUTCOME
        status = "success" if error is None else "error"
        self.results[call.id] = ToolReturn(
            call.id, call.name, status, text if isinstance(text, str) else "", is_plain=True
        )

    def _take_verdict(self, item: Mapping[str, Any], place: str) -> None:
        asked, approve = _needed(item, "approval_request_id", place), item.get("approve")
        if not isinstance(approve, bool):
            raise InvalidRequest(f"{place}.approve must be true or false", field=f"{place}.approve")
        reason = item.get("reason")
        said = reason if isinstance(reason, str) else None
        self.verdicts[asked] = Decision(tool_call_id=asked, approve=approve, reason=said)

    def _pass_over_verdicts(self) -> None:
        """A verdict is history if the input also repeats its request, and the answer goes on after it."""
        self.earlier.update(self.verdicts)
        self.verdicts.clear()

    def _end_answer(self) -> None:
        if not (self.texts or self.calls):
            return
        missing = next((call.id for call in self.calls if call.id not in self.results), None)
        if missing is not None and not self.leaves_calls_open:
            raise InvalidRequest(f"No tool output found for function call {missing}.", field="input")
        self.bodies.append(AssistantMessage(text="\n\n".join(self.texts), tool_calls=self.calls))
        if self.results:
            returns = [self.results[call.id] for call in self.calls if call.id in self.results]
            self.bodies.append(ToolReturns(returns=returns))
        self.bodies += self.held
        self.texts, self.calls, self.names, self.results, self.held = [], [], {}, {}, []

    def input(self) -> ResponseInput:
        """The whole input. Raises `InvalidRequest` for a call without its output."""
        self._end_answer()
        last = max((n for n, body in enumerate(self.bodies) if not isinstance(body, UserMessage)), default=-1)
        said = [body for body in self.bodies[last + 1 :] if isinstance(body, UserMessage)]
        earlier = {asked: verdict for asked, verdict in self.earlier.items() if asked not in self.asked}
        read = ResponseInput(self.bodies[: last + 1], said, self.outputs, earlier | self.verdicts)
        after = self.bodies[max(self.asked.values()) :] if self.asked and self.verdicts else None
        since = None if after is None else [body for body in after if isinstance(body, UserMessage)]
        return replace(read, since_asked=since)


def decisions_on(given: ResponseInput, waiting: Sequence[Approval]) -> list[Decision]:
    """The decisions of the input on the waiting calls.

    Raises `InvalidRequest` if a call stays open, or if an answer belongs to no call.
    """
    outputs, verdicts = dict(given.outputs), dict(given.verdicts)
    decided: list[Decision] = []
    for asked in waiting:
        item_id = approval_item_id(asked.run_id, asked.tool_call_id)
        found = _taken(verdicts, item_id) or _taken(outputs, asked.tool_call_id)
        if found is None:
            raise InvalidRequest(_unanswered(asked, item_id), field="input")
        decided.append(structs.replace(found, tool_call_id=asked.tool_call_id))
    for call_id in outputs:
        raise InvalidRequest(f"No tool call found for function call output with call_id {call_id}.", field="input")
    for item_id in verdicts:
        raise InvalidRequest(no_request(item_id), field="input")
    return decided


def no_request(item_id: str) -> str:
    """The error for a verdict without its approval request."""
    return f"No approval request found with id {item_id}."


def _taken(answers: dict[str, Decision], name: str) -> Decision | None:
    """Removes and returns the answer with this id, or with its suffixed form, for a call that a response had twice."""
    found = next((one for one in answers if one == name or one.rstrip(AGAIN) == name), None)
    return None if found is None else answers.pop(found)


def _unanswered(asked: Approval, item_id: str) -> str:
    if asked.client_side:
        return f"No tool output found for function call {asked.tool_call_id}."
    return f"No approval response found for the approval request {item_id} (call of {asked.tool_name})."


def _call(item: Mapping[str, Any], id_field: str, place: str) -> ToolCall:
    namespace, takes_text = item.get("namespace"), item.get("type") == "custom_tool_call"
    name = function_name(_needed(item, "name", place), namespace if isinstance(namespace, str) else None)
    arguments = arguments_with(_needed(item, "input", place)) if takes_text else _needed(item, "arguments", place)
    return ToolCall(_needed(item, id_field, place), name, arguments)


def _error_text(error: Any) -> str:
    """The words of a failed call. A tool's own error has content, an error of the protocol or of HTTP a message."""
    fields = as_object(error) or {"message": error}
    said: Any = fields.get("content") or fields.get("message")
    parts = cast("list[Any]", said) if isinstance(said, list) else [{"text": said}]
    texts = [(as_object(part) or {}).get("text") for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str)) or json.dumps(error)


def _needed(item: Mapping[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (not value and name not in ("arguments", "input")):
        raise InvalidRequest(f"{place}.{name} is missing: it must be a text", field=f"{place}.{name}")
    return value


def _summary(item: Mapping[str, Any], place: str) -> Summary:
    text = summary_in(_needed(item, "encrypted_content", place))
    if text is None:
        raise InvalidRequest(
            f"{place}.encrypted_content comes from another server: send compaction items of this server back unchanged",
            field=f"{place}.encrypted_content",
        )
    return Summary(text)


_ABSENT = {"item_reference": "it needs the id of an item", COMPACTION_TRIGGER: "it must be the last item"}


def _why_not(kind: object) -> str:
    calls = "function_call, custom_tool_call, their outputs, mcp_call, mcp_approval_response"
    return _ABSENT.get(str(kind), f"message, {calls}, reasoning, compaction and compaction_trigger are understood")


def _content(content: Any, place: str, *, name: str = "content", takes_files: bool = False) -> str | list[ContentPart]:
    match content:
        case str():
            return content
        case list():
            parts = cast("list[Any]", content)
            read = [_part(as_object(part) or {}, f"{place}.{name}[{number}]") for number, part in enumerate(parts)]
            texts = [part.text for part in read if isinstance(part, TextContent)]
            if not takes_files and has_files([*read]):
                raise InvalidRequest(
                    f"{place}.{name} has a file: only messages of users may contain files other than texts",
                    field=f"{place}.{name}",
                )
            return texts[0] if len(texts) == len(read) == 1 and parts[0].get("type") != "input_file" else [*read]
        case _:
            raise InvalidRequest(
                f"{place}.{name} is missing: it must be a text or a list of parts", field=f"{place}.{name}"
            )


def _part(part: dict[str, Any], place: str) -> ContentPart:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text", "summary_text") and isinstance(part.get("text"), str):
        return TextContent(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return TextContent(part["refusal"])
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return image_at(part["image_url"], field=f"{place}.image_url")
    if kind == "input_file":
        return _file(part, place)
    raise InvalidRequest(f"{place} is not understood: {_wrong_part(kind)}", field=place)


def _wrong_part(kind: object) -> str:
    if kind == "input_image":
        return "images need an image_url (https://… or data:image/…;base64,…); file_id is not supported"
    return "use {'type': 'input_text', 'text': …} or {'type': 'input_image', 'image_url': …}"


_NO_FILE = {
    "file_id": "this server has no store of files",
    "file_url": "this server fetches no files",
    "file_data": "it is missing",
}


def _file(part: dict[str, Any], place: str) -> TextContent:
    if not isinstance(part.get("file_data"), str):
        named = next((name for name in _NO_FILE if part.get(name)), "file_data")
        fix = "Send the file itself in file_data (data:…;base64,…), with a filename"
        raise InvalidRequest(f"{place}.{named}: {_NO_FILE[named]}. {fix}", field=f"{place}.{named}")
    field, found = f"{place}.file_data", DATA_URL.fullmatch(part["file_data"])
    media_type, data = (None, part["file_data"]) if found is None else (found["media_type"], found["data"])
    return attached_file(part.get("filename"), media_type, data, field=field)
