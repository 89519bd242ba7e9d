"""Time for tests that are about the order of events: a future that is done after a delay, without sleeping."""

import asyncio


def after(delay: float = 0.0) -> asyncio.Future[None]:
    """Done `delay` seconds from now; 0 means in the next turn of the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.call_later(delay, _finish, future)
    return future


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
