"""The description of a model server: its protocol, its addresses, and its differences from that protocol.

A provider names its variables and their meaning; it never reads the environment itself.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

Wire = Literal["builtin", "chat", "responses", "anthropic", "google"]
"""The protocol of a server: OpenAI's Chat Completions or Responses, Anthropic's Messages, Google's Gemini. The worker
itself plays `builtin` models."""


class Address(NamedTuple):
    """One way to set a provider's server: the variable with its base URL, and the variables that may hold its key."""

    url_variable: str
    key_variables: tuple[str, ...] = ()
    version_variable: str | None = None
    """Holds the version of the API, where the provider wants one with every request."""


class Quirks(NamedTuple):
    """The differences of a server that imitates another's protocol. The defaults are OpenAI's own behaviour."""

    limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """Name of the field that limits an answer. The server refuses the other one or, worse, ignores it."""
    takes_parallel_tool_calls: bool = True
    """The server knows the field that allows or forbids several calls in one answer."""
    takes_stream_options: bool = True
    """A stream has usage only if the request asks for it. Servers that refuse the field send usage without it."""
    reasoning_goes_back: Literal["as it came", "always", "never"] = "as it came"
    """Whether earlier reasoning is sent with the history: in the field in which it came, in `reasoning_content` of each
    answer with calls (a request without it is refused), or not at all (a request with it is refused)."""
    takes_forced_calls: bool = True
    """A request may force a tool call. If the server refuses that, the worker asks again when the model makes no
    call."""
    has_thinking_switch: bool = False
    """An object `thinking` in the request switches reasoning."""
    continues_answers: Literal["never", "by itself", "when told"] = "never"
    """Whether the server treats an answer at the end of the request as the beginning of the model's answer: always, or
    with vLLM's fields. Otherwise the model would begin again and repeat everything."""
    takes_files: bool = False
    """A user's message may have files, over Chat Completions."""
    call_id_length: int | None = None
    """Letters and digits that the id of a tool call must have."""
    least_temperature: float = 0.0
    counts_reasoning_apart: bool = False
    """The tokens of an answer are counted without those of the reasoning before it."""


class Provider(NamedTuple):
    """A way to reach models; `name` is the part of a handle before the first slash."""

    name: str
    wire_type: str
    """The kind of provider that clients see."""
    wire: Wire
    addresses: tuple[Address, ...] = ()
    """The first address whose URL is set counts, else the first of all with the default URL. URL and key belong
    together, so that a key never goes to another server."""
    default_url: str | None = None
    needs_key: bool = False
    version: str = ""
    """The path below the server's address. Operators give addresses with and without it."""
    default_api_version: str = ""
    quirks: Quirks = Quirks()

    def is_configured(self, environment: Mapping[str, str]) -> bool:
        """Whether the environment has the provider's key, or its server's address."""
        if self.needs_key:
            return self.key(environment) is not None and self.base_url(environment) is not None
        return not self.addresses or any(environment.get(address.url_variable) for address in self.addresses)

    def key(self, environment: Mapping[str, str]) -> str | None:
        """The key for the address that is used."""
        address = self._address(environment)
        names = address.key_variables if address else ()
        # Files and stores of secrets end a key with a line break, which no header may have.
        return next((key for name in names if (key := environment.get(name, "").strip())), None)

    def api_version(self, environment: Mapping[str, str]) -> str:
        """The version to send with every request; empty if the server wants none."""
        address = self._address(environment)
        variable = address.version_variable if address else None
        return (environment.get(variable) if variable else None) or self.default_api_version

    def base_url(self, environment: Mapping[str, str]) -> str | None:
        """The URL to which the SDK sends its requests, with credentials if the operator has put some into it.

        None: the environment names no server, and there is no default.
        """
        address = self._address(environment)
        url = (environment.get(address.url_variable) if address else None) or self.default_url
        if url is None:
            return None
        url = url.rstrip("/")
        if self.wire in ("anthropic", "google"):
            return url.removesuffix(self.version)  # these SDKs add it themselves
        return url if url.endswith(self.version) else url + self.version

    def url(self, environment: Mapping[str, str]) -> str | None:
        """The provider's URL in a form that callers may see."""
        url = self.base_url(environment)
        return None if url is None else without_credentials(url)

    def _address(self, environment: Mapping[str, str]) -> Address | None:
        first = self.addresses[0] if self.addresses else None
        return next((address for address in self.addresses if environment.get(address.url_variable)), first)


_CREDENTIALS = re.compile(r"(?<=//)[^/]*@|[?#].*")
_BEHIND_THE_HOST = re.compile(r"(?<=[^/:])/.*")


def without_credentials(url: str) -> str:
    """The URL without user, password and query, where operators put keys."""
    return _CREDENTIALS.sub("", url)


def origin_of(url: str) -> str:
    """`scheme://host:port` of the URL. The rest of it may hold a key."""
    return _BEHIND_THE_HOST.sub("", without_credentials(url))
