"""What searches are made of: the words of texts in any language, and moments in the time zone of an agent."""

import re
import unicodedata
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, time, tzinfo
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from shared.domain.errors import InvalidRequest
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


# The words of a text in any language, for indices that match word by word.
#
# Both databases would cut texts differently, by their versions and locales. So texts and queries are cut here, into
# words of letters, marks and digits alone, and no character of a query has a meaning for a database.


LONGEST_WORD = 100
"""Characters. A longer word is found by its beginning."""
LONGEST_QUERY = 1000
"""Characters of a search for words, at every door: what is built of a search grows with it, on the event loop."""
MOST_WORDS = 32
"""Of a search, and of a phrase in one; the rest of a longer one is left out."""

_DIACRITICS = re.compile("[\u0300-\u036f]+")
"""Of Latin, Greek and Cyrillic. The marks of other scripts are vowels, and stay."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Kana, Han: written without spaces, so each character counts as a word."""
_RUNS = re.compile(f"[{_UNSPACED}]+|[^ {_UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")


def phrases_of(text: str) -> list[list[str]]:
    """The text's words, folded: case, width and diacritics do not count. A run of characters of a script without spaces
    is one phrase, whose words belong together; every other phrase is one word."""
    letters = "".join(map(_letter_or_space, _folded(text)))
    return [list(run) if _IS_UNSPACED.match(run) else [run[:LONGEST_WORD]] for run in _RUNS.findall(letters)]


def refuse_long_query(query: str) -> None:
    """Raises `InvalidRequest` for a search that is too long."""
    if len(query) > LONGEST_QUERY:
        raise InvalidRequest(
            f"query has {len(query)} characters, and a search may have {LONGEST_QUERY}: search for fewer words",
            field="query",
        )


def words_of(text: str) -> list[str]:
    """The text's words, in order."""
    return [word for phrase in phrases_of(text) for word in phrase]


def _folded(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFKC", _DIACRITICS.sub("", apart)).casefold()


@lru_cache(maxsize=8192)
def _letter_or_space(character: str) -> str:
    return character if unicodedata.category(character)[0] in "LMN" else " "


# Times as people and models write them, in the time zone of an agent.


LONGEST_NAME = 100
"""Characters of the name of a time zone."""

_DATE = re.compile(r"\d{4}-?\d{2}-?\d{2}")


def moment_of(text: str, timezone: str, name: str, *, is_end: bool = False) -> datetime:
    """The moment that a client or a model means by an ISO 8601 text. Without an offset it is in the agent's timezone.

    A date alone is the beginning of the day, or its last moment for the end of a span. `name` is that of the field.
    Raises `InvalidRequest`.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(
            f"{name} is no moment: {text[:50]!r}. Give ISO 8601, such as 2024-01-15 or 2024-01-15T14:30"
        ) from error
    if is_end and _DATE.fullmatch(text):
        moment = datetime.combine(moment, time.max)
    return moment if moment.tzinfo else moment.replace(tzinfo=zone_of(timezone))


def zone_of(timezone: str) -> tzinfo:
    """The zone of this name; UTC where there is none, because agents may have any text as their timezone."""
    if len(timezone) > LONGEST_NAME:
        return UTC  # it would be looked for among files
    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        return UTC
