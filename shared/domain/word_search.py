"""Which messages a search for words finds."""

import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import Literal

from shared.domain.messages import AssistantMessage, MessageBody, ToolReturns, UserMessage, text_of

Role = Literal["user", "assistant", "tool"]
"""Who said what is searched: a user, the model, or a tool that it called."""

_KINDS: dict[Role, str] = {"user": "user", "assistant": "assistant", "tool": "tool_returns"}
_PLAIN = re.compile(r"[!#-\[\]-~]")


def kind_of_role(role: Role) -> str:
    """The tag of the messages of this role, as they are stored."""
    return _KINDS[role]


def plain_parts(word: str) -> list[str]:
    """The parts of a word that JSON stores as they are and every database can compare whatever their case: of the
    letters of ASCII, and of scripts that have no case (Chinese, Japanese, Korean, Arabic, Hebrew, Thai and so on)."""
    marked = "".join(letter if _is_plain(letter) else " " for letter in word)
    return marked.split()


def _is_plain(letter: str) -> bool:
    return _PLAIN.match(letter) is not None or unicodedata.category(letter) == "Lo"


def has_words(body: MessageBody, words: Sequence[str], roles: Collection[Role]) -> bool:
    """Whether the message is of one of the roles and has every word, whatever its case."""
    found = _said(body)
    if found is None or found[0] not in roles:
        return False
    text = found[1].casefold()
    return bool(text) and all(word.casefold() in text for word in words)


def _said(body: MessageBody) -> tuple[Role, str] | None:
    match body:
        case UserMessage(role="user", content=content):
            return "user", text_of(content)
        case AssistantMessage(text=text):
            return "assistant", text
        case ToolReturns(returns=returns):
            return "tool", "\n".join(one.text for one in returns)
        case _:
            return None
