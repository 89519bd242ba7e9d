"""Files in users' messages: texts become text, and PDF stays a file for models that read it."""

import mimetypes
from base64 import b64decode, b64encode

from shared.domain.errors import InvalidRequest
from shared.domain.messages import AttachedFile, TextContent

_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/javascript", "application/sql")
_SAYS_NOTHING = "application/octet-stream"


def attached_file(name: str, media_type: str | None, encoded: str, *, field: str) -> TextContent:
    """Returns the part for a file that a client sent as base64 in `field`. Without a media type, the name decides.

    Raises `InvalidRequest` for data that is no base64, and for files that are neither PDF nor UTF-8 text.
    """
    kind = (media_type or _SAYS_NOTHING).lower()
    if kind == _SAYS_NOTHING:
        kind = mimetypes.guess_type(name)[0] or _SAYS_NOTHING
    try:
        data = b64decode("".join(encoded.split()), validate=True)
    except ValueError as error:
        raise InvalidRequest(f"{field} must be base64, or data:…;base64,…", field=field) from error
    if kind == "application/pdf":
        shown = f"[file {name}, {len(data):,} bytes]"
        return TextContent(shown, AttachedFile(name, kind, b64encode(data).decode()))
    if kind.startswith("text/") or kind in _TEXT_TYPES:
        try:
            return TextContent(f"[file {name}]\n{data.decode('utf-8-sig')}", AttachedFile(name, kind))
        except ValueError as error:
            raise InvalidRequest(f"{field} is {kind} and must be UTF-8", field=field) from error
    raise InvalidRequest(
        f"{field} is {kind} ({name}): PDF and texts are taken. Send its text, or its pages as images",
        field=field,
    )
