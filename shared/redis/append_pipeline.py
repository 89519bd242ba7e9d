"""One way to Redis for the appends of all runs of this process.

To send and to receive costs a process more than all else that an append does. So what the runs have ready in one turn
of the event loop goes out in one piece, and the answers are read together. While they are under way, what comes waits
for the next piece. Pieces grow with the load by themselves. There is no timer: an append that is alone goes at once.

For Redis, a piece is one script after another. It does other work in between.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, NamedTuple, cast

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError

from shared.concurrency import AnswerTimeout, background
from shared.domain.errors import Unavailable
from shared.redis.connection import ANSWER_S, LuaScript, Redis, as_unavailable, dedicated_connection

PIECE_BYTES = 1 << 18
"""The most that goes out in one piece, unless it is one append. So a long answer that is sent again does not keep the
others waiting behind all of it."""


class _Append(NamedTuple):
    """A command as it goes over the wire, and who waits for its answer."""

    command: bytes
    answer: "asyncio.Future[Any]"


class AppendPipeline:
    """Carries the appends of all runs of this process to Redis, over one connection.

    It is called as the script is, while `running`. An append that Redis refuses fails by itself. What breaks the
    connection, or is silent, fails everything that is under way with `Unavailable`: repeat it as it was.

    On a Redis Cluster the logs of two runs may be on two nodes. There each node gets a pipeline, and what belongs to a
    run's slot is known from the key of its log.
    """

    def __init__(self, redis: Redis, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._script = LuaScript(redis, "append")
        self._connection = dedicated_connection(redis)
        self._piece_bytes = piece_bytes
        self._waiting: deque[_Append] = deque()
        self._awake = asyncio.Event()
        self._is_running = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["AppendPipeline"]:
        """Carries appends while the block lasts."""
        try:
            async with background(self._carry(), name="append pipeline"):
                self._is_running = True
                yield self
        finally:
            self._is_running = False
            _fail(self._waiting, _closed())
            await self._connection.disconnect()

    async def __call__(self, *, keys: Sequence[str], args: Iterable[str | bytes | int]) -> Any:
        """What the script answers. Raises `Unavailable`."""
        if not self._is_running:
            raise _closed()
        command = _packed("EVALSHA", self._script.digest, len(keys), *keys, *args)
        append = _Append(command, asyncio.get_running_loop().create_future())
        self._waiting.append(append)
        self._awake.set()
        return await append.answer

    async def _carry(self) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            while self._waiting:
                await self._carry_piece(self._next_piece())

    def _next_piece(self) -> list[_Append]:
        piece = [self._waiting.popleft()]
        size = len(piece[0].command)
        while self._waiting and (size := size + len(self._waiting[0].command)) <= self._piece_bytes:
            piece.append(self._waiting.popleft())
        return piece

    async def _carry_piece(self, piece: list[_Append]) -> None:
        failure: Unavailable | None = None
        try:
            # As `redis_answers`, whose generator would be one for each token.
            async with AnswerTimeout(ANSWER_S):
                await self._exchange(piece)
        except (RedisError, OSError) as error:
            failure = as_unavailable(error)
        finally:
            if unanswered := [append for append in piece if not append.answer.done()]:
                _fail(unanswered, failure or _closed())

    async def _exchange(self, piece: list[_Append]) -> None:
        """Sends a piece, and over a new connection what the present one leaves unanswered: a server closes what was
        idle for long."""
        is_new = not self._connection.is_connected
        try:
            await self._send(piece)
        except (RedisConnectionError, OSError):
            if is_new:
                raise
            await self._send([append for append in piece if not append.answer.done()])

    async def _send(self, piece: list[_Append]) -> None:
        """Sends a piece, and again what a server that is new does not know the script for."""
        unknown = await self._answered(piece)
        while unknown:
            await self._connection.send_packed_command(_packed("SCRIPT", "LOAD", self._script.text))
            await self._connection.read_response()
            unknown = await self._answered(unknown)

    async def _answered(self, piece: list[_Append]) -> list[_Append]:
        """Sends a piece and takes the answers. Those appends for which the server lacks the script."""
        connection, unknown = self._connection, list[_Append]()
        await connection.send_packed_command(b"".join([append.command for append in piece]))
        for append in piece:
            try:
                answer = await connection.read_response()
            except NoScriptError:
                unknown.append(append)
            except ResponseError as error:
                _fail([append], as_unavailable(error))
            else:
                if not append.answer.done():
                    append.answer.set_result(answer)
        return unknown


def _fail(appends: Iterable[_Append], error: Unavailable) -> None:
    """Who still waits for an answer gets an error of his own: one that is raised in several places names them all."""
    for append in appends:
        if not append.answer.done():
            append.answer.set_exception(copy(error))


def _packed(*parts: str | bytes | int) -> bytes:
    # hiredis is ten times as quick as redis-py. Its types take it for a function of one part.
    packed: bytes = cast("Any", hiredis).pack_command(parts)
    return packed


def _closed() -> Unavailable:
    return Unavailable("This process sends no events any more")
