"""Text that can be encoded. Some servers cut a character in two between events, and the halves (lone surrogates) can be
neither sent nor stored."""


def sound(text: str) -> str:
    """`text` with `?` in place of half characters."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
