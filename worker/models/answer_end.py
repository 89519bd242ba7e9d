"""How an answer ended: whether it is one, and what it cost. The same for every wire."""

from collections.abc import Mapping

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import estimate_tokens
from shared.domain.runs import Usage
from worker.models.provider import Finished, ModelCall

FinishReason = str
"""Why a provider ended an answer, in the words that all of them are translated to: `stop`, `length`, `tool_call`,
`content_filter`, `error`."""


_NO_REASONS = ("null", "none")
"""What some gateways make of there being none yet."""


def reason_in(known: Mapping[str, FinishReason], said: str | None) -> FinishReason | None:
    """A provider's word in ours. A word of another server ends an answer as well as one that is known."""
    if not said or said.lower() in _NO_REASONS:
        return None
    return known.get(said.lower(), "length" if "context" in said.lower() else "stop")


MOST_TOKENS = 1_000_000_000
"""Of one answer. A larger count is a mistake of the server's: it would use up budgets, and may not be kept."""


class CountedTokens(msgspec.Struct, frozen=True):
    """Tokens as the provider counted them. Some servers report -1 for what they have not counted."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cache_written: int = 0
    reasoning: int = 0


class WholeAnswer(msgspec.Struct, frozen=True):
    """What an answer came to."""

    reason: FinishReason | None
    """None when the stream ended without one."""
    text: str
    """All that was said and thought."""
    arguments: list[str]
    """Of each tool call."""
    counted: CountedTokens
    provider_response: str | None
    details: object = None
    """What the provider says of an answer that ended with an error."""
    words: str = ""
    """Its own sentence about the end, where it has one."""


def judge(call: ModelCall, answer: WholeAnswer) -> Finished:
    """The end of the answer. Raises `ModelError` when it was cut short, refused or empty."""
    reason = answer.reason
    if reason is None:
        raise ModelError(
            ModelErrorType.ERROR, "The model's stream ended before its answer did (no finish reason).", retryable=True
        )
    words = f" The provider says: {answer.words}" if answer.words else ""
    if reason == "error":
        raise ModelError(ModelErrorType.ERROR, f"The model ended its answer with an error: {answer.details}{words}")
    is_empty = not answer.text and not answer.arguments and not call.beginning
    if is_empty and reason == "length" and ("context" in str(answer.details) or answer.counted.completion <= 1):
        raise ModelError(
            ModelErrorType.CONTEXT_WINDOW, "The model ended its answer before it began: its context window is full."
        )
    if is_empty:
        raise ModelError(
            ModelErrorType.ERROR, f"LLM provider returned empty content in response (finish reason: {reason}).{words}"
        )
    usage = _usage(call, answer)
    if reason == "length" or reason == "content_filter":
        return Finished(reason, usage, answer.provider_response)
    return Finished("tool_calls" if answer.arguments else "stop", usage, answer.provider_response)


def _usage(call: ModelCall, answer: WholeAnswer) -> Usage:
    counted = answer.counted
    prompt, completion = counted.prompt, counted.completion
    if not prompt + completion or not _is_possible(counted):
        return _estimated_usage(call, answer)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        # A budget would be given tokens back by less than none.
        cached_input_tokens=max(counted.cached, 0),
        cache_write_tokens=max(counted.cache_written, 0),
        reasoning_tokens=max(counted.reasoning, 0),
        context_tokens=prompt + completion,
    )


def _is_possible(counted: CountedTokens) -> bool:
    every = (counted.prompt, counted.completion, counted.cached, counted.cache_written, counted.reasoning)
    return min(counted.prompt, counted.completion) >= 0 and max(every) <= MOST_TOKENS


def _estimated_usage(call: ModelCall, answer: WholeAnswer) -> Usage:
    """For servers that report no usage at all."""
    prompt = call.estimated_tokens()
    completion = estimate_tokens(answer.text + "".join(answer.arguments))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        context_tokens=prompt + completion,
        estimated=True,
    )
