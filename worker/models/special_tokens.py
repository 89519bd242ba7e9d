"""Chat templates' special tokens in the text of a request.

Many hosts of open models tokenize what users and tools say with special tokens allowed: a literal `<|im_start|>` in a
tool's result reaches the model as the real one, and the text behind it as a turn of its own, in whatever role it names.
So a zero-width joiner is put into each such token. It is taken out again of what the model says, which copies it, or
another invisible character, into what it writes.

The shapes of the tokens are those of pydantic-ai (`_special_tokens.py`).
"""

import re

_JOINER = "\u200d"
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""What models write in place of the joiner."""

_WIDE_BAR = "\uff5c"
_NAME = rf'[^\s<>|"{_INVISIBLE}]'
_WIDE_NAME = rf'[^\s<>{_WIDE_BAR}"{_INVISIBLE}]'
_ENDINGS: tuple[tuple[str, str], ...] = (
    (
        "<",
        rf"\|{_NAME}{{1,64}}\|>|{_WIDE_BAR}{_WIDE_NAME}{{1,64}}{_WIDE_BAR}>|\|[a-z_]{{1,32}}>|[a-z_]{{1,32}}\|>"
        r"|start_of_turn>|end_of_turn>",
    ),
    (
        r"\[",
        r"\|(?:system|tool|assistant|user|endofturn)\|\]|/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
        r"|TOOL_CALLS\]|e~\[",
    ),
    (r"\]", r"~b\]|~!b\["),
)
"""Each token's first character and what can follow it."""

_TOKEN_START = re.compile("|".join(f"{first}(?={ending})" for first, ending in _ENDINGS))
_JOINED = re.compile("|".join(f"(?<={first})[{_INVISIBLE}](?={ending})" for first, ending in _ENDINGS))
_MAY_BE_JOINED = re.compile(rf"(?<=[<\[\]])[{_INVISIBLE}]")
_ANY_INVISIBLE = re.compile(f"[{_INVISIBLE}]")
_LONGEST_TOKEN = 70
"""Characters behind the joiner after which no token can end any more."""

_SERVED_BY_THEIR_MAKERS = re.compile(
    r"claude|cohere-|command|gemini|grok|muse-|nova-|sonar|chatgpt|codex|computer-use|dall-e|ft:|gpt-(?!oss)|o[134]"
    r"|omni-|sora|text-|tts-|whisper",
    re.IGNORECASE,
)
"""Models that only the makers' own servers have, which take such text for text."""


def tokenizes_text(model: str) -> bool:
    """Whether the model's host may read special tokens in what is said."""
    return _SERVED_BY_THEIR_MAKERS.match(model.removeprefix("~").rpartition("/")[2]) is None


def broken_tokens(text: str) -> str:
    """The text with a joiner behind the first character of each special token."""
    return _TOKEN_START.sub(lambda found: found[0] + _JOINER, text)


class MendedTokens:
    """Takes the joiner out of text that comes in pieces, however they cut it.

    Only text from a joiner on is ever held back, until what follows shows whether it is in a token.
    """

    def __init__(self) -> None:
        self._before = ""
        """The last character that went out: a token may begin with it."""
        self._held = ""

    def more(self, piece: str) -> str:
        """What can go out of what has come."""
        if not self._held and (piece.isascii() or _ANY_INVISIBLE.search(piece) is None):
            self._before = piece[-1:] or self._before
            return piece
        text = _JOINED.sub("", self._before + self._held + piece)[len(self._before) :]
        held_from = self._first_that_may_be_joined(text)
        text, self._held = text[:held_from], text[held_from:]
        self._before = text[-1:] or self._before
        return text

    def rest(self) -> str:
        """What is still held at the end, and was no token."""
        held, self._held = self._held, ""
        return held

    def _first_that_may_be_joined(self, text: str) -> int:
        behind = self._before + text
        for found in _MAY_BE_JOINED.finditer(behind):
            if len(behind) - found.end() < _LONGEST_TOKEN and not _ENDS_NAME.search(behind, found.end()):
                return found.start() - len(self._before)
        return len(text)


_ENDS_NAME = re.compile(r'[\s"]')
"""What no token contains, and what ends a JSON string."""
