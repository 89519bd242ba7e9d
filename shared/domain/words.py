"""The words of a text in any language, for indices that match word by word.

Both databases would cut texts differently, by their versions and locales. So texts and queries are cut here, into words
of letters, marks and digits alone, and no character of a query has a meaning for a database.
"""

import re
import unicodedata
from functools import lru_cache

from shared.domain.errors import InvalidRequest

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
