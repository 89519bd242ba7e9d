# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
"""Model calls in the journal, which replaces LangChain's cache of answers.

A cache sees the call of every chat model, wherever a graph makes it, but for `stream` and `astream` of the model
itself, which are refused. Text is shown while it arrives: LangChain calls its callbacks for each token.
"""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from langchain_core.caches import BaseCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.tracers.context import register_configure_hook

from holdfast.agents.langgraph.values import answer_of, hashed, recorded_answer, text_of, usage_of
from holdfast.agents.run import Run, call

Result = TypeVar("Result")

_NOT_SHOWN = "nostream"
"""LangGraph's tag for a model whose text is not for readers."""


class NotJournaled(RuntimeError):
    """The graph has an effect without the journal, so that a crash would repeat the effect."""


class _ModelCall:
    """One model call, between the request and the answer."""

    def __init__(self, messages: Sequence[BaseMessage], parameters: Mapping[str, Any], *, is_shown: bool) -> None:
        self.is_shown = is_shown
        self.is_journaled = False
        self.has_spoken = False
        self._messages = messages
        self._parameters = parameters
        self._loop: asyncio.AbstractEventLoop
        self._answer: asyncio.Future[list[Any]]
        self._entry: asyncio.Task[list[Any]]

    async def begin(self, run: Run) -> list[Any] | None:
        """Returns the recorded answer, or None if the model must be called."""
        self.is_journaled = True
        self._loop = asyncio.get_running_loop()
        self._answer = self._loop.create_future()
        is_asked = self._loop.create_future()

        async def answered() -> list[Any]:
            is_asked.set_result(None)
            return await self._answer

        request, settings = hashed(self._messages, self._parameters)
        text = text_of if self.is_shown else None
        entry = run.model("model", answered, request=request, settings=settings, usage=usage_of, text=text)
        self._entry = asyncio.create_task(entry)
        self._entry.add_done_callback(lambda entry: entry.cancelled() or entry.exception())  # the graph has it already
        try:
            await asyncio.wait([is_asked, self._entry], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._entry.cancel()
            raise
        return None if is_asked.done() else self._entry.result()

    async def end(self, value: list[Any]) -> None:
        """Records the answer."""
        self._answer.set_result(value)
        await self._entry

    def fail(self, error: BaseException) -> None:
        """Records that the model has raised."""
        if self.is_journaled and not self._entry.done():
            self._loop.call_soon_threadsafe(self._raise, error)

    def leave(self, asking: "asyncio.Task[Any]") -> None:
        """Records that the task that called the model has ended. If it was cancelled, no task waits for an answer."""
        if asking.cancelled():
            self._entry.cancel()

    def _raise(self, error: BaseException) -> None:
        if isinstance(error, Exception) and not self._answer.done():
            self._answer.set_exception(error)


_MODEL_CALL: ContextVar[_ModelCall | None] = ContextVar("holdfast_model_call", default=None)


class Journal(BaseCache):
    """The journal as LangChain's cache of answers."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def lookup(self, prompt: str, llm_string: str) -> Any:
        return on_loop(self._recorded(), "model")

    async def alookup(self, prompt: str, llm_string: str) -> Any:
        recorded = await self._recorded()
        model_call, asking = _MODEL_CALL.get(), asyncio.current_task()
        if recorded is None and model_call is not None and asking is not None:
            asking.add_done_callback(model_call.leave)
        return recorded

    async def _recorded(self) -> list[ChatGeneration] | None:
        model_call = _MODEL_CALL.get()
        if model_call is None or model_call.is_journaled:
            raise refused(
                NotJournaled("a model is asked in a way that the journal cannot follow: use a chat model's ainvoke")
            )
        value = await model_call.begin(self._run)
        if value is None:
            return None
        _noted(model_call, value)
        return answer_of(value)

    def update(self, prompt: str, llm_string: str, return_val: Any) -> None:
        on_loop(self._record(return_val), "model")

    async def aupdate(self, prompt: str, llm_string: str, return_val: Any) -> None:
        await self._record(return_val)

    async def _record(self, generations: Any) -> None:
        model_call = _MODEL_CALL.get()
        if model_call is None:
            return
        value = recorded_answer(generations)
        if model_call.is_shown and not model_call.has_spoken:
            self._run.emit_text(text_of(value))
        _noted(model_call, value)
        await model_call.end(value)

    def clear(self, **kwargs: Any) -> None:
        """A journal is never cleared."""


class Calls(BaseCallbackHandler):
    """Sees every model call and tool call in the run, and shows the models' output."""

    run_inline = True
    raise_error = True

    def __init__(self, run: Run) -> None:
        self.said: set[str] = set()
        """Texts of models' answers that readers have seen."""
        self.said_before: set[str] = set()
        """The texts before the newest interrupt."""
        self.made: dict[tuple[str, str], Any] = {}
        """The outcomes of tool calls, by the place in the graph and the call's id."""
        self.refusal: Exception | None = None
        """The error that must end the run."""
        self.run = run
        self.loop, self.thread = asyncio.get_running_loop(), threading.get_ident()
        self._asked: dict[Any, _ModelCall] = {}

    def on_chain_start(self, *_: Any, **__: Any) -> None:
        # Parallel nodes arrive here in the order of the graph, so each takes its place in the journal now: their calls
        # may arrive in any order.
        if threading.get_ident() == self.thread and asyncio.current_task() is not None:
            self.run.take_place()

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: Any, tags: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        is_shown = not is_in_call() and _NOT_SHOWN not in (tags or ())
        asked = _ModelCall(messages[0], kwargs.get("invocation_params") or {}, is_shown=is_shown)
        self._asked[run_id] = asked
        _MODEL_CALL.set(asked)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: Any, **_: Any) -> None:
        asked = self._journaled(run_id)
        if asked is None or not asked.is_shown or chunk is None:
            return
        for block in chunk.message.content_blocks:
            if block["type"] == "text" and block["text"]:
                asked.has_spoken = True
                self.run.emit_text(block["text"])
            elif block["type"] == "reasoning" and block.get("reasoning"):
                self.run.emit_reasoning(block["reasoning"])

    def on_llm_end(self, response: Any, *, run_id: Any, **_: Any) -> None:
        self._journaled(run_id)
        self._asked.pop(run_id, None)

    def on_llm_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        if (asked := self._asked.pop(run_id, None)) is not None:
            asked.fail(error)

    def on_tool_start(self, serialized: Any, input_str: str, **_: Any) -> None:
        if not is_in_call():
            name = (serialized or {}).get("name", "a tool")
            raise refused(
                NotJournaled(f"{name} is called past the journal: add a ToolNode to the graph, or call it in run.tool")
            )

    def _journaled(self, run_id: Any) -> _ModelCall | None:
        asked = self._asked.get(run_id)
        if asked is not None and not asked.is_journaled and not is_in_call():
            raise refused(
                NotJournaled(
                    "a model is asked past the journal: call its ainvoke, not astream (readers see the text all the "
                    "same), and leave its cache switched on"
                )
            )
        return asked


CALLS: ContextVar[Calls | None] = ContextVar("holdfast_calls", default=None)
register_configure_hook(CALLS, inheritable=True)


def refused(error: Exception) -> Exception:
    """Records an error that must end the run, although the graph may handle errors of tools."""
    if (calls := CALLS.get()) is not None:
        calls.refusal = calls.refusal or error
    return error


def is_in_call() -> bool:
    """Whether a step or tool is being called. It works in any thread."""
    try:
        call()
    except LookupError:
        return False
    return True


def on_loop(coroutine: Coroutine[Any, Any, Result], what: str) -> Result:
    """Runs a coroutine on the run's loop, and waits for it in a thread."""
    calls = CALLS.get()
    if calls is None or threading.get_ident() == calls.thread:
        coroutine.close()
        raise refused(
            NotJournaled(f"a {what} is called with invoke in an async function, which would stand still: use ainvoke")
        )
    return asyncio.run_coroutine_threadsafe(coroutine, calls.loop).result()


def _noted(model_call: _ModelCall, value: list[Any]) -> None:
    calls = CALLS.get()
    if model_call.is_shown and calls is not None:
        calls.said.add(text_of(value))
