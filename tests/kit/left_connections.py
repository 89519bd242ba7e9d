"""Fails the test that leaves a connection open.

If a connection is open when its event loop is closed, Python closes it much later, when it collects garbage. It then
warns in the middle of another test, which fails and names neither the connection nor the test that left it.
"""

import asyncio
from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any, cast

from tests.kit.wait_until import after


def watch_connections() -> None:
    """From now on, closing an event loop fails when a connection of it is open. Both are closed nevertheless."""
    patched = cast("Any", BaseSelectorEventLoop)
    close = patched.close

    def close_and_look(loop: asyncio.AbstractEventLoop) -> None:
        left = [] if loop.is_running() or loop.is_closed() else _open_connections(loop)
        named = [_name(transport) for transport in left]
        if left:
            for transport in left:
                transport.abort()
            loop.run_until_complete(_next_turn())
        close(loop)
        assert not named, f"an event loop was closed, and these connections of it were open: {', '.join(named)}"

    patched.close = close_and_look


def _open_connections(loop: asyncio.AbstractEventLoop) -> list[asyncio.Transport]:
    # asyncio has no public list. A transport keeps its socket until the loop has run once more after `close`.
    transports = cast("Any", loop)._transports.values()
    return [transport for transport in transports if transport._sock is not None]


def _name(transport: asyncio.Transport) -> str:
    ends = " to ".join(str(transport.get_extra_info(end)) for end in ("sockname", "peername"))
    return f"{ends} of {transport.get_protocol()!r}"


async def _next_turn() -> None:
    await after()
