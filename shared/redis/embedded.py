"""A Redis inside this process, for `holdfast dev` and tests: nothing in it outlives the process.

Its Lua takes several times as long as the commands of a script: each call compiles the script, each command checks for
new global variables, and Lua's garbage is collected at the end. Here a script is compiled once and kept as a function.
`append.lua`, which runs for each event of each run, has a version in Python, too. All scripts pass the same tests as on
a real Redis.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from fakeredis import FakeServer
from fakeredis.aioredis import AsyncFakeSocket, FakeRedis
from fakeredis.model import StreamEntryKey
from lupa import lua51
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from shared.redis.connection import Redis, text_of_script

LIFETIME_MAY_DIFFER_S = 1.0
"""The lifetime of a log is not renewed for a smaller difference."""

_FUNCTION = b"return function(redis, cjson, KEYS, ARGV)\n%b\nend"

Work = Callable[["_Commands", Sequence[bytes], Sequence[bytes]], Any]
"""A script's function of its keys and arguments."""


def connect_embedded(server: FakeServer | None = None) -> Redis:
    """A client of an embedded Redis. Clients of one `server` share its data."""
    return _EmbeddedRedis(server or FakeServer())


class _EmbeddedRedis(Redis):
    def __init__(self, server: FakeServer) -> None:
        super().__init__(cast("Any", FakeRedis(server=server)).connection_pool)
        self._server = server
        self._lua = _Lua()

    def register_script(self, script: Any) -> Any:
        """A script that this process executes itself."""
        return _EmbeddedScript(self, script, self._server, self._lua)


class _EmbeddedScript(AsyncScript):
    """A script that this process executes itself, without a round trip. It holds the server's lock meanwhile."""

    def __init__(self, client: Redis, script: str, server: FakeServer, lua: "_Lua") -> None:
        super().__init__(cast("Any", client), script)
        self._server = server
        self._commands: _Commands | None = None
        self._work = _append if script == text_of_script("append") else lua.compiled(script)

    async def __call__(
        self, keys: Sequence[Any] | None = None, args: Iterable[Any] | None = None, client: Any = None
    ) -> Any:
        """Returns the script's answer. Raises `ResponseError`."""
        if client not in (None, self.registered_client):
            return cast("Any", await super().__call__(keys, args, client))  # logs are on another server
        if self._commands is None:
            self._commands = _Commands(self._server, 0, client_class=Redis)
        if self._work is not _append:
            await asyncio.sleep(0)  # lets other tasks run, as while a server answers
        given = [_as_bytes(key) for key in keys or ()], [_as_bytes(arg) for arg in args or ()]
        with self._server.lock:
            self._commands.look_at_clock()
            return self._work(self._commands, *given)


class _Commands(AsyncFakeSocket):
    """Runs Redis commands directly on fakeredis' data. The caller must hold the server's lock."""

    @property
    def _stored(self) -> Any:
        return cast("Any", self._db)

    def look_at_clock(self) -> None:
        """Must be called first: this time decides which keys have expired."""
        self._stored.time = time.time()

    def call(self, command: str, *args: bytes) -> Any:
        """Returns the command's answer. Raises `ResponseError`."""
        answer = self._run_command(*self._name_to_func(command), list(args), True)
        if isinstance(answer, Exception):
            raise ResponseError(str(answer))
        return answer

    def call_of_lua(self, lua: Any, command: bytes, *args: Any) -> Any:
        """The same as `redis.call` in a script."""
        given = [arg if isinstance(arg, bytes) else b"%.17g" % arg for arg in args]
        return self._convert_redis_result(lua, self.call(command.decode().lower(), *given))

    def told_by_lua(self, answer: Any) -> Any:
        """Converts a script's answer to the form that a client gets."""
        return self._convert_lua_result(answer, nested=False)

    def value(self, key: bytes) -> Any:
        """Returns the stored value in fakeredis' form; None if there is none."""
        item: Any = self._stored.get(key)
        return None if item is None else item.value

    def add(self, stream: bytes, number: int, entry: bytes) -> None:
        """Like XADD of `<number>-0`, which would parse its arguments anew for each event. No client watches a log or
        blocks on it, because readers follow the published events."""
        stored, entry_id = self.value(stream), StreamEntryKey(number, 0)
        if stored is None or stored.next_id(entry_id) is None:
            self.call("xadd", stream, entry_id.encode(), b"e", entry)
        else:
            stored.add((b"e", entry), entry_id)

    def renew(self, key: bytes, lifetime_ms: bytes) -> None:
        """Like PEXPIRE, but skipped if that would change little, because it is called for each event."""
        item: Any = self._stored.get(key)
        ends_at: float = self._stored.time + int(lifetime_ms) / 1000
        if item is not None and (item.expireat is None or abs(item.expireat - ends_at) > LIFETIME_MAY_DIFFER_S):
            self.call("pexpire", key, lifetime_ms)


class _Lua:
    """A Lua interpreter with the functions that our scripts need."""

    def __init__(self) -> None:
        self._runtime: Any = cast("Any", lua51).LuaRuntime(encoding=None)
        self._cjson = self._runtime.table_from({b"decode": self._decode})

    def compiled(self, script: str) -> Work:
        """Compiles a script to a function."""
        function, table = self._runtime.execute(_FUNCTION % script.encode()), self._runtime.table_from

        def work(commands: _Commands, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
            redis = table({b"call": partial(commands.call_of_lua, self._runtime)})
            try:
                return commands.told_by_lua(function(redis, self._cjson, table(keys), table(args)))
            except lua51.LuaError as error:
                raise ResponseError(str(error)) from error

        return work

    def _decode(self, text: bytes) -> Any:
        """Like `cjson.decode`, for an object whose values are texts and numbers. Raises `ValueError`, for `pcall`."""
        found: Any = json.loads(text)
        if not isinstance(found, dict):
            return found
        values = cast("dict[str, Any]", found).items()
        as_lua = {name.encode(): value.encode() if isinstance(value, str) else value for name, value in values}
        return self._runtime.table_from(as_lua)


def _append(commands: _Commands, keys: Sequence[bytes], args: Sequence[bytes]) -> list[Any]:
    """Does the same as `append.lua`, which describes the arguments and the answer."""
    events, fence = keys
    caller, first_seq, needs, lifetime, publish, channel, *entries = args
    holder: bytes | None = commands.value(fence)
    if holder is not None and holder != caller and _fence_of(holder) >= _fence_of(caller):
        return [b"taken", 0]
    stream = commands.value(events)
    last = int(stream.last_item_key().partition(b"-")[0]) if stream is not None else 0
    if holder != caller or last < int(needs):
        return [b"lost", last]

    first = max(int(first_seq), last + 1)
    new = entries[first - int(first_seq) :]
    for last, entry in enumerate(new, start=first):
        commands.add(events, last, entry)
    commands.renew(events, lifetime)
    commands.renew(fence, lifetime)
    if new:
        commands.call(publish.decode().lower(), channel, b"%d " % first + b"\n".join(new))
    return [b"ok", last]


def _fence_of(holder: bytes) -> int:
    return int(holder.partition(b" ")[0])


def _as_bytes(value: str | bytes | int) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
