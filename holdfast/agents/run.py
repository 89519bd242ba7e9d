"""The handle of a body's run.

Every value that a body cannot compute again is journaled. If its process died and the body is executed again, it gets
its steps, tools, approvals, inbox and even `now()` from the journal. So a body reaches the place where it was, without
doing anything twice.
"""

import asyncio
import contextvars
import hashlib
import inspect
import random as random_numbers
import threading
import uuid as uuids
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, Literal, cast

from holdfast.agents.asking import Worker, begun, given_up, made_by_worker, settled
from holdfast.agents.errors import Denied, NestedApproval, OutcomeUnknown, StepFailed, error_fields
from holdfast.agents.forks import only_here
from holdfast.agents.frames import Frame, packed
from holdfast.agents.info import AgentInfo, agent_of
from holdfast.agents.models import Models, Usage
from holdfast.agents.probes import cannot_tell, verdict_of
from holdfast.agents.values import (
    changed_arguments,
    content_hash,
    plain,
    restored,
    shown_arguments,
    shown_data,
    text_for,
)

Function = Callable[..., Any]
"""A function, async or not. A function that is not async is called in a thread."""

OnExpiry = Literal["keep", "deny", "cancel"]

LONGEST_NAME = 500
"""Characters of a call's name, which is a part of a key in the database."""

LONGEST_SLEEP_S = 366 * 86_400


class Approved:
    """A person's approval, with the arguments after the person's edits."""

    def __init__(self, arguments: Any, decided_by: str | None) -> None:
        self.arguments = arguments
        self.decided_by = decided_by


@dataclass(frozen=True)
class Call:
    """The call of the tool or step whose function is running."""

    id: str
    idempotency_key: str
    """The same in every attempt, and unique to this call."""
    attempt: int
    """1, and one more each time the call is started again."""


_CALL: contextvars.ContextVar[Call] = contextvars.ContextVar("holdfast_call")


def call() -> Call:
    """Returns the call whose function is running. Raises `LookupError` outside of steps and tools."""
    return _CALL.get()


class Scope:
    """The place of one task inside one call. Its journal entries have numbers of their own."""

    def __init__(
        self, journal: str, branch: str, task: "asyncio.Task[Any] | None", at: float, *, may_wait: bool = True
    ) -> None:
        self.branch = branch
        self.may_wait = may_wait
        """Whether a person may be asked here, because every call around it is entered again after its process's end."""
        self.task = task
        self.at = at
        self.random = random_numbers.Random(f"{journal}/{branch}")
        self.tasks = 0


_SCOPE: contextvars.ContextVar[Scope] = contextvars.ContextVar("holdfast_scope")


class Inbox:
    """Messages that clients inject into the running run."""

    def __init__(self, run: "Run") -> None:
        self._run = run

    async def take(self) -> list[dict[str, Any]]:
        """Returns the messages that have arrived since the last call, each once; an empty list if there are none. They
        have the form of `Run.input`."""
        answer = await self._run.begin("inbox", "take", content_hash(()))
        return cast("list[dict[str, Any]]", answer["value"])


class Run:
    """One run, for its body."""

    def __init__(self, worker: Worker, hello: Frame, task: "asyncio.Task[Any]") -> None:
        self._worker = worker
        self._journal: str = hello["journal"]
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.id: str = hello["id"]
        self.attempt: int = hello["attempt"]
        """1, and one more each time the body is executed again."""
        self.text: str = hello["text"]
        """The text of the newest messages of the user."""
        self.input: list[dict[str, Any]] = hello["input"]
        """The messages that the run must answer: `role`, `text`, `content`."""
        self.history: list[dict[str, Any]] = hello["history"]
        """The messages before `input`, oldest first; with `tool_calls` and `tool_call_id` as well."""
        self._agent: Frame = hello.get("agent", {"error": "the server is too old to say what agent this run has"})
        self.client_tools: list[dict[str, Any]] = hello["client_tools"]
        """The tools of the request: `name`, `description`, `parameters`. The client answers their calls:
        `await run.tool(name, …)`."""
        self.state: dict[str, Any] = hello["state"]
        """The thread's state. It is stored when the run completes; changes by a cancelled or failed run are dropped."""
        self.models = Models(hello["models"]["socket"], hello["models"]["token"])
        """The worker's models: `base_url` and `api_key` for any client of OpenAI's API."""
        self.inbox = Inbox(self)
        self.cancelled = False
        """Whether the run is being cancelled; for `finally` and `except asyncio.CancelledError`."""
        self.cancel_reason: str | None = None
        self._said: list[str] = []
        """The texts that were shown since the last tool."""
        _SCOPE.set(Scope(self._journal, "", task, hello["at"]))

    @property
    def has_spoken(self) -> bool:
        """Whether text was shown since the last tool. Only for this package."""
        return bool(self._said)

    def has_said(self, text: str) -> bool:
        """Whether the newest text shown since the last tool is this one, in one piece or in several. Only for this
        package."""
        for piece in reversed(self._said):
            if text == piece:
                return True
            if not text.endswith(piece):
                return False
            text = text.removesuffix(piece)
        return False

    @property
    def agent(self) -> AgentInfo:
        """The agent that the client has made, at the beginning of the turn: `system`, `blocks`, `tools`, `metadata`.
        Raises `ValueError` if it has more than 1 MB with its memory and tools."""
        return agent_of(self._agent)

    def emit_text(self, text: str) -> None:
        """Shows text to readers. It is not awaited."""
        self._show("text", text)

    def emit_reasoning(self, text: str) -> None:
        """Shows reasoning to readers. It is not awaited."""
        self._show("reasoning", text)

    def emit_data(self, name: str, value: Any) -> None:
        """Shows data to readers, beside the answer; no history contains it. After a crash it may be shown again. It is
        not awaited. A name has up to 64 letters, digits, `.`, `_` and `-`, and does not begin with `holdfast`. Raises
        `ValueError` for other names or more than 64,000 bytes of JSON, `TypeError` for what JSON cannot express."""
        self._send({"t": "data", **shown_data(name, value)})

    async def step(
        self, name: str, function: Function, *args: Any, key: Any = None, returns: Any = None, **kwargs: Any
    ) -> Any:
        """Calls the function and journals its value, which is taken from the journal after a crash. If the function had
        not ended, it is called again.

        The value always has the form that JSON gives it, the first time as well; `returns` is a dataclass or a pydantic
        model that is made from it; a list, tuple, set or dictionary of these; or one of several, as `Page | None`. Also
        the fields of a dataclass become what they are declared as. `key` replaces the arguments if they are not JSON.
        Raises `StepFailed`.
        """
        counted = content_hash((args, kwargs)) if key is None else content_hash(key)
        answer = await self.begin("step", name, counted)
        value = await self._performed(name, answer, function, args, kwargs)
        return restored(value, returns)

    async def model(
        self,
        name: str,
        function: Function,
        *args: Any,
        request: Any,
        settings: Any = None,
        usage: Callable[[Any], Usage | None] | None = None,
        text: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls a model and journals its whole answer, which is taken from the journal after a crash.

        `request` identifies this call: messages and the names of tools. `settings` are all other options, such as
        instructions and temperature: if only they have changed, the recorded answer counts, and the run's log shows
        that. `usage` reads the tokens of an answer, which count towards the run. `text` reads the text of an answer: it
        is shown if the answer comes from the journal; otherwise the function has shown it with `emit_text`. Raises
        `StepFailed`.
        """
        is_top, hashed = not self.in_call, "" if settings is None else content_hash(settings)
        answer = await self.begin("model", name, content_hash(request), settings_hash=hashed)
        is_recorded = answer["t"] == "result"
        value = await self._performed(name, answer, function, args, kwargs, usage)
        if is_recorded and is_top and text is not None and (said := text(value)):
            self.emit_text(said)
        return value

    async def tool(
        self,
        name: str,
        function: Function | None = None,
        *args: Any,
        key: Any = None,
        idempotent: bool = False,
        probe: Function | None = None,
        needs_approval: bool = False,
        returns: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Calls the function at most once, and shows the call with its result as a tool call.

        If the process dies before the result is stored, a call with `idempotent` is started again with the same key; a
        `probe` is asked for its outcome (`happened`, `did_not_happen`, `cannot_tell`); any other call raises
        `OutcomeUnknown`. With `needs_approval` a person decides first, and may change the arguments. Without a
        function, the client makes the call, and the run waits for it until it is cancelled, also if `client_tools` has
        no such tool. Raises `StepFailed` and `Denied`.
        """
        options: dict[str, Any] = {"idempotent": idempotent, "probe": probe, "needs_approval": needs_approval}
        return await self._shown(name, function, args, kwargs, returns, key=key, **options)

    async def _shown(
        self,
        name: str,
        function: Function | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        returns: Any,
        **options: Any,
    ) -> Any:
        shown = shown_arguments(function, args, kwargs)

        async def performed(arguments: dict[str, Any]) -> Any:
            is_changed = arguments != plain(shown)
            positional, named = changed_arguments(function, args, arguments) if is_changed else (args, kwargs)
            return await _called(function or _nothing, (*positional,), named)

        value = await self.perform(name, shown, None if function is None else performed, **options)
        return restored(value, returns)

    async def perform(
        self,
        name: str,
        arguments: dict[str, Any],
        function: Callable[[dict[str, Any]], Any] | None,
        *,
        key: Any = None,
        idempotent: bool = False,
        probe: Function | None = None,
        needs_approval: bool = False,
        scope: bool = False,
    ) -> Any:
        """As `tool`, for a function that gets its arguments as one object; with `needs_approval`, as the person has
        approved them. With `scope`, as `scope`. Raises `StepFailed`, `OutcomeUnknown` and `Denied`."""
        if (needs_approval or function is None) and not self.may_wait:
            raise NestedApproval(name)
        counted, shown = content_hash(arguments if key is None else key), plain(arguments)
        options = {
            "idempotent": idempotent,
            "needs_approval": needs_approval,
            "scope": scope,
            "probe": probe is not None,
        }
        answer = await self.begin("tool", name, counted, arguments=shown, of_client=function is None, **options)
        given = (answer.get("arguments", shown),)
        if answer["t"] == "probe" and probe is not None:
            answer = await self._probed(answer, probe, idempotent=idempotent)
        return await self._performed(name, answer, function or _nothing, given, {}, is_scope=scope)

    async def _probed(self, answer: Frame, probe: Function, *, idempotent: bool) -> Frame:
        """Tells the worker the outcome of a lost call, even if the body gives the call up meanwhile."""
        verdict = cannot_tell()
        try:
            verdict = await verdict_of(lambda: _called(probe, (answer["key"],), {}))
        except asyncio.CancelledError:
            if not self.cancelled:
                await self._worker.ask(settled(answer["call"], verdict))
            raise
        return await self._worker.ask(settled(answer["call"], verdict, may_repeat=idempotent))

    async def scope(
        self,
        name: str,
        function: Function,
        *args: Any,
        key: Any = None,
        needs_approval: bool = False,
        returns: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Calls a function that uses the run, such as another agent, and shows it as a tool call with its result.

        It may do everything that the body may: its steps, tools and approvals are in the journal, under this call.
        While it waits for a person it needs no process. After that, and after a crash, it is called again and repeats
        nothing that is journaled. So all of its effects should use the run. Raises `StepFailed` and `Denied`.
        """
        return await self._shown(
            name, function, args, kwargs, returns, key=key, needs_approval=needs_approval, scope=True
        )

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: Any = None,
        parts: bool = False,
    ) -> Any:
        """Calls a tool that is attached to the agent, at most once, and returns its result: a text, or the value that
        `returns` makes of the text (`json.loads`). With `parts` the result is a list, as the `content` of a message of
        the history: `{"type": "text", "text": …}`, and `{"type": "image", "data": …, "media_type": …}` with base64. The
        text has a note in place of each image.

        The worker calls the tool, as it does for its own agents: with the same isolation, limits, secrets and probes.
        If the tool needs an approval, a person decides first, and may change the arguments. Raises `StepFailed` if the
        tool fails or is not attached, `Denied`, and `OutcomeUnknown` if its worker died and no probe can tell.
        """
        shown = plain(dict(arguments or {}))
        answer = await self.begin(
            "tool", name, content_hash(shown), arguments=shown, attached=True, may_wait=self.may_wait
        )
        if answer["t"] == "go":
            answer = self._checked(name, await made_by_worker(self._worker, answer["call"], lambda: self.cancelled))
        return restored(_parts_of(answer["value"]) if parts else _text_of(answer["value"]), returns)

    async def approval(
        self, name: str, arguments: Any, expires_s: float | None = None, on_expiry: OnExpiry = "keep"
    ) -> Approved:
        """Asks a person. The run needs no process while it waits, even for days, and continues here. Raises
        `Denied`."""
        if not self.may_wait:
            raise NestedApproval(name)
        shown = plain(arguments)
        hashed = content_hash(shown)
        answer = await self.begin("approval", name, hashed, arguments=shown, expires_s=expires_s, on_expiry=on_expiry)
        value = answer["value"]
        if not value["approve"]:
            raise Denied(name, value["reason"])
        return Approved(value["arguments"], value["decided_by"])

    @property
    def may_wait(self) -> bool:
        """Whether a person or a client may be asked here: only by the body itself and inside scopes."""
        return self._here().may_wait

    @property
    def in_call(self) -> bool:
        """Whether a step, tool or scope is being called. Calls inside it are only in the journal: clients see the calls
        of the body itself, and nested calls that wait for a client."""
        return "/" in self._here().branch

    def now(self) -> datetime:
        """The end of the last journal entry that this task has seen. It is the same after a crash."""
        return datetime.fromtimestamp(self._here().at, timezone.utc)  # noqa: UP017 - Python 3.10

    def uuid(self) -> uuids.UUID:
        """A UUID that is the same after a crash."""
        return uuids.UUID(int=self._here().random.getrandbits(128), version=4)

    def random(self) -> float:
        """A number from 0 to 1 that is the same after a crash."""
        return self._here().random.random()

    async def sleep(self, seconds: float) -> None:
        """Waits this long, counted from the first attempt. From 30 s on the run needs no process while it waits, unless
        another call is running. Raises `ValueError` for more than a year."""
        if not 0 <= seconds <= LONGEST_SLEEP_S:
            raise ValueError(f"a sleep of {seconds} s: it may have from 0 to {LONGEST_SLEEP_S} s, which is a year")
        answer = await self.begin("sleep", "sleep", content_hash(seconds), seconds=seconds)
        left = seconds - answer.get("waited_s", 0.0)
        await self._performed("sleep", answer, asyncio.sleep, (max(0.0, left),), {})

    def key(self, name: str) -> str:
        """Returns a key for this name in this turn, which never changes."""
        return f"hf-{self._journal}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    async def begin(self, kind: str, name: str, content: str, **fields: Any) -> Frame:
        """Asks the worker how to continue with an entry of the journal. Raises `StepFailed` or `OutcomeUnknown` if the
        journal contains that. Only for this package."""
        scope = self._here()
        if len(text_for("the name of a call", name)) > LONGEST_NAME:
            raise ValueError(f"the name of a call has {len(name)} characters: it may have {LONGEST_NAME}")
        if kind in ("tool", "approval") and not self.in_call:
            self._said.clear()
        frame = {"t": "begin", "kind": kind, "name": name, "branch": scope.branch, "hash": content, **fields}
        answer = await begun(self._worker, frame, lambda: self.cancelled)
        if "given_up_s" in answer:  # the code is about to give it up again, as `asyncio.timeout` does
            await asyncio.sleep(answer["given_up_s"])
        return self._checked(name, answer)

    def take_place(self) -> None:
        """Gives the current task its place among its siblings, before it calls anything. Only for this package."""
        self._here()

    async def _performed(
        self,
        name: str,
        answer: Frame,
        function: Function,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        usage: Callable[[Any], Usage | None] | None = None,
        *,
        is_scope: bool = False,
    ) -> Any:
        if answer["t"] != "go":
            return self._checked(name, answer)["value"]
        scope = self._here()
        may_wait = is_scope and scope.may_wait
        inner = _SCOPE.set(Scope(self._journal, f"{answer['call']}/", scope.task, scope.at, may_wait=may_wait))
        outer = _CALL.set(Call(answer["call"], answer["key"], answer["attempt"]))
        ended: Frame = {"t": "end", "call": answer["call"]}
        cause: BaseException | None = None
        try:
            ended["value"] = plain(await _called(function, args, kwargs))
            if usage is not None and (used := usage(ended["value"])) is not None:
                ended["usage"] = asdict(used)
        except asyncio.CancelledError as error:
            if self.cancelled:
                raise
            if _is_being_cancelled():  # the body gives up only this call, and continues: the worker must not wait
                await self._worker.ask(given_up(answer["call"]))
                raise
            cause, ended["error"] = error, error_fields(error)  # of a task of the function's own
        except GeneratorExit:  # no task awaits this call any more
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the journal has it
            cause = error
            ended["error"] = error_fields(error)
        finally:
            _CALL.reset(outer)
            _SCOPE.reset(inner)
        self._seen(await self._worker.ask(ended))
        if cause is not None:
            raise StepFailed(name, ended["error"]["type"], ended["error"]["text"]) from cause
        return ended["value"]

    def _checked(self, name: str, answer: Frame) -> Frame:
        self._seen(answer)
        if answer["t"] == "failed":
            error = answer["error"]
            if error.get("denied"):
                raise Denied(name, error["text"])
            raise StepFailed(name, error["type"], error["text"])
        if answer["t"] == "unknown":
            raise OutcomeUnknown(name, answer["key"])
        return answer

    def _seen(self, answer: Frame) -> None:
        if "at" in answer:
            self._here().at = answer["at"]

    def _here(self) -> Scope:
        """The scope of the current task. A task that uses the run for the first time gets the next number of the task
        that has created it."""
        scope = _SCOPE.get(None)
        if scope is None:
            raise RuntimeError(
                "this thread does not know its call of the run: start it with asyncio.to_thread, or call its function "
                "by contextvars.copy_context().run"
            )
        try:
            task = asyncio.current_task()
        except RuntimeError:  # a function that is not async, in its thread: it belongs to the task that waits for it
            return scope
        if scope.task is not task:
            scope.tasks += 1
            scope = Scope(self._journal, f"{scope.branch}{scope.tasks}.", task, scope.at, may_wait=scope.may_wait)
            _SCOPE.set(scope)
        return scope

    def _show(self, kind: str, text: str) -> None:
        if text_for(f"emit_{kind}", text):
            self._send({"t": kind, "text": text})
            if kind == "text":
                self._said.append(text)

    def _send(self, frame: Frame) -> None:
        data = packed(frame)
        if threading.get_ident() == self._thread:
            self._worker.send(data)
        else:
            self._loop.call_soon_threadsafe(self._worker.send, data)


def _text_of(result: Any) -> str:
    """The text of an attached tool's result. If the result has other parts, the worker has sent an object."""
    return result if isinstance(result, str) else result["text"]


def _parts_of(result: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": result}] if isinstance(result, str) else result["holdfast_parts"]


async def _called(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - of an object that is called
        with only_here():
            return await function(*args, **kwargs)
    value = await asyncio.to_thread(function, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _is_being_cancelled() -> bool:
    """Whether a caller has cancelled the current task. Python 3.10 does not know that of a task that awaits another."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0


async def _nothing() -> None:
    """The function of a call without one: the client makes the call."""
