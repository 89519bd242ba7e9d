"""Text of models, tools and users, as a terminal may show it: it could move the cursor or change the window's title."""

import unicodedata

_JOINER = "\u200d"
"""Between the parts of one emoji."""


def printable(text: str) -> str:
    """The text without control characters but line ends and tabs. Spaces of every kind stay."""
    return "".join(map(_shown, text))


def _shown(one: str) -> str:
    if one.isprintable() or one in f"\n\t{_JOINER}" or unicodedata.category(one) == "Zs":
        return one
    return " " if one.isspace() else ""
