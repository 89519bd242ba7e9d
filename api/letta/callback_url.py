"""The URL that a submission wants to be called at, checked as far as a request can be: the rest is delivery's."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("callback_url must be an http:// or https:// URL with a host")
    if parts.port == 0 or any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("callback_url is not a valid URL")
    return url


CallbackUrl = Annotated[str, Field(max_length=2000), AfterValidator(_checked)]
"""An http(s) URL with a host."""
