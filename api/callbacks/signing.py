"""Signatures of what receivers are sent, as Standard Webhooks has them, so that a receiver can check one with any
library: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hashlib
import hmac

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId

SECRET_PREFIX = "whsec_"  # noqa: S105 - the standard's mark of an encoded secret, not one


_OF_PROJECT = b"holdfast callbacks of the project "


def signing_key(secret: str) -> bytes | None:
    """The key: the base64 after `whsec_`, or the text itself. No secret, no key.

    Raises `InvalidRequest` when `whsec_` is not followed by base64.
    """
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode() or None
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise InvalidRequest("HOLDFAST_CALLBACK_SECRET begins with whsec_, but base64 does not follow") from error


def key_of_project(key: bytes | None, project_id: ProjectId) -> bytes | None:
    """What signs one project's callbacks. Each project has a key of its own, made of the operator's secret, because who
    submits chooses the receiver: with one key for all, a project could have another one's receiver believe it."""
    return None if key is None else hmac.new(key, _OF_PROJECT + project_id.encode(), hashlib.sha256).digest()


def written_secret(key: bytes) -> str:
    """A key as receivers and their libraries take it."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def signed_headers(*keys: bytes | None, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a message, with a signature for each key; without a key it carries its id and time alone.

    `timestamp` is in Unix seconds. The id must not hold a full stop, which separates what is signed.
    """
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    content = b".".join([message_id.encode(), str(timestamp).encode(), body])
    digests = [hmac.new(key, content, hashlib.sha256).digest() for key in keys if key is not None]
    if digests:
        headers["webhook-signature"] = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers
