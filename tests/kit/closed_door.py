"""An address where a connection is never made: the listener's queue is full, and the kernel lets clients wait."""

import contextlib
import socket
from collections.abc import Generator


@contextlib.contextmanager
def closed_door() -> Generator[str]:
    """A URL on loopback that swallows connection attempts for as long as the block lasts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
