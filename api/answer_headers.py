"""Headers that go beside answers, whoever gives them."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import SHOULD_RETRY

NEVER_CHANGES = frozenset(range(400, 500)) - {408} | {501}
"""Statuses that the same request would meet again. 408 is a body that was lost on its way."""


class FinalAnswers:
    """Tells Letta's SDKs not to send a request again whose answer cannot change, unless the answer says otherwise.

    They would send it three times, and their users would wait for more than a second to be told the same.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in NEVER_CHANGES:
                MutableHeaders(scope=message).setdefault(SHOULD_RETRY, "false")
            await send(message)

        await self._app(scope, receive, marked)
