"""Signatures of callbacks by the rules of Standard Webhooks, so that receivers can verify them with any of its
libraries: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md"""

import base64
import binascii
import hashlib
import hmac

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId

SECRET_PREFIX = "whsec_"  # noqa: S105 - the standard's mark of an encoded secret, not one


_OF_PROJECT = b"holdfast callbacks of the project "


def signing_key(secret: str) -> bytes | None:
    """The key: the decoded base64 after `whsec_`, or the text itself. Without a secret there is no key.

    Raises `InvalidRequest` if `whsec_` is not followed by base64.
    """
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode() or None
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise InvalidRequest("HOLDFAST_CALLBACK_SECRET begins with whsec_, but base64 does not follow") from error


def key_of_project(key: bytes | None, project_id: ProjectId) -> bytes | None:
    """The key that signs one project's callbacks, derived from the operator's secret. A sender chooses the receiver:
    with one key for all, a project could send another project's receiver a valid signature."""
    return None if key is None else hmac.new(key, _OF_PROJECT + project_id.encode(), hashlib.sha256).digest()


def written_secret(key: bytes) -> str:
    """A key in the form that receivers and their libraries use."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def signed_headers(*keys: bytes | None, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a message, with a signature per key; without a key only its id and its time.

    `timestamp` is in Unix seconds. The id must not contain a full stop, which separates the signed parts.
    """
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    content = b".".join([message_id.encode(), str(timestamp).encode(), body])
    digests = [hmac.new(key, content, hashlib.sha256).digest() for key in keys if key is not None]
    if digests:
        headers["webhook-signature"] = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers
