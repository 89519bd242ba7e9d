"""JSON documents that come from clients: what Postgres could not give back is refused before it is stored."""

import msgspec

from shared.domain.errors import InvalidRequest


def document_of(value: msgspec.Struct) -> str:
    """The struct as JSON text. Raises `InvalidRequest` for a NUL or half a surrogate pair in one of its texts.

    A NUL passes as JSON, but Postgres then fails at every look into the document, also for other rows of the list.
    """
    try:
        document = msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("A text contains half a surrogate pair, which is no character: remove it") from error
    # A backslash that stands for itself is written twice, and may have `u0000` behind it.
    if "\\u0000" in document.replace("\\\\", ""):
        raise InvalidRequest("A text contains a NUL character, which cannot be stored: remove it")
    return document
