"""Counting tokens without a tokenizer: for answers that were cut off before the provider reported its own count, and
for servers and offline models that report none. Never used where a reported figure exists.
"""

from shared.domain.messages import AssistantMessage, Message, Summary, ToolReturns, UserMessage, text_of
from worker.models.provider import ModelCall

CHARACTERS_PER_TOKEN = 4
"""English prose comes to about four characters per token with every current tokenizer."""


def estimate_tokens(text: str) -> int:
    """About how many tokens `text` is; 0 only for an empty text."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def estimate_prompt_tokens(call: ModelCall) -> int:
    """About how many tokens a call sends: instructions and history, without tools and images."""
    return estimate_tokens(call.system) + sum(estimate_tokens(_text(message)) for message in call.history)


def _text(message: Message) -> str:
    match message.body:
        case UserMessage(content=content):
            return text_of(content)
        case AssistantMessage(text=text, tool_calls=calls):
            return text + "".join(call.name + call.arguments for call in calls)
        case ToolReturns(returns=returns):
            return "".join(result.text for result in returns)
        case Summary(text=text):
            return text
        case _:
            return ""
