"""A Redis inside this process, for `holdfast dev` and tests: nothing in it outlives the process.

It is fakeredis, whose EVALSHA compiles a script for each call and collects Lua's garbage after it. So here a script is
a library of one function (FUNCTION LOAD), which is compiled once and called by its name (FCALL).

`append.lua` runs for each event of each run. If SQL has each event first, two commands from Python replace its usual
case. No other command comes between them, because all clients of the server are on one event loop, and the commands do
not wait. Only an empty log asks for its owner. All scripts pass the same tests as on a real Redis.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

from fakeredis import FakeAsyncRedis, FakeRedisConnection, FakeServer
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError, ResponseError

from shared.redis.connection import Redis, text_of_script

RENEWED_EVERY = 64
"""The lifetime of a log, a day, is renewed after this many numbers."""

BURST = 8
"""Events of one append of which the log keeps only the last one, if SQL has all of them. It shows how far the log
reaches, and readers get the others from SQL, as after a trim."""

_LIBRARY = "#!lua name={name}\nredis.register_function('{name}', function(KEYS, ARGV)\n{script}\nend)"


def connect_embedded(server: FakeServer | None = None, *, stores_first: bool = False) -> Redis:
    """A client of an embedded Redis. Clients of one `server` share its data. `stores_first`: SQL has taken each event
    from the run's owner before it is appended to its log, as in `holdfast dev`, so the log need neither check its owner
    nor keep all of a burst."""
    return _EmbeddedRedis(server or FakeServer(), stores_first=stores_first)


class _EmbeddedRedis(Redis):
    def __init__(self, server: FakeServer, *, stores_first: bool) -> None:
        super().__init__(cast("Any", FakeAsyncRedis(server=server)).connection_pool)
        self._stores_first = stores_first
        self._commands = _Commands(server)
        self._loaded = set[str]()

    def register_script(self, script: Any) -> Any:
        """Returns the script, which this client loads at its first call."""
        if self._stores_first and script == text_of_script("append"):
            return _Append(self, script, self._commands)
        return super().register_script(script)

    async def script_load(self, script: Any) -> str:
        """Loads the script as a library, and returns its hash."""
        digest: str = AsyncScript(cast("Any", self), script).sha
        self._commands.execute("FUNCTION", "LOAD", "REPLACE", _LIBRARY.format(name=digest, script=script))
        self._loaded.add(digest)
        return digest

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Returns the script's answer. Raises `NoScriptError` before it is loaded, and `ResponseError`."""
        if sha not in self._loaded:
            raise NoScriptError
        await asyncio.sleep(0)  # lets other tasks run, as while a server answers
        return self._commands.execute("FCALL", sha, numkeys, *keys_and_args)


class _Commands:
    """Executes commands without waiting, over a connection of its own."""

    def __init__(self, server: FakeServer) -> None:
        self._connection: Any = FakeRedisConnection(server=server)

    def execute(self, *command: Any) -> Any:
        """Returns the command's answer. Raises `ResponseError`."""
        self._connection.send_command(*command)
        return self._connection.read_response()


class _Append(AsyncScript):
    """`append.lua`, which describes the arguments and the answer, for events that SQL has."""

    def __init__(self, client: Redis, script: str, commands: _Commands) -> None:
        super().__init__(cast("Any", client), script)
        self._execute = commands.execute

    async def __call__(
        self, keys: Sequence[Any] | None = None, args: Iterable[Any] | None = None, client: Any = None
    ) -> Any:
        """Returns the script's answer. Raises `ResponseError`."""
        given = keys or (), tuple(args or ())
        if client in (None, self.registered_client) and (last := self._append(*given)) is not None:
            return [b"ok", last]
        return cast("Any", await super().__call__(*given, client))

    def _append(self, keys: Sequence[Any], args: Sequence[Any]) -> int | None:
        """Appends, and returns the last number. None: the script must decide. If the log has some of a burst, all of it
        is published again, and readers skip the events that they have."""
        events, fence = keys
        caller, first, needs, lifetime_ms, publish, channel, *entries = args
        if needs or not entries:
            return None
        last = first + len(entries) - 1
        numbered = [(f"{seq}-0", entry) for seq, entry in enumerate(entries, first)]
        kept = numbered[-1:] if len(entries) >= BURST else numbered
        try:
            is_new = self._execute("XADD", events, "NOMKSTREAM", kept[0][0], "e", kept[0][1]) is None
            if is_new and self._execute("GET", fence) != caller.encode():
                return None
            for number, entry in kept if is_new else kept[1:]:
                self._execute("XADD", events, number, "e", entry)
        except ResponseError:
            return None  # the log has the first of these numbers already
        if is_new or last % RENEWED_EVERY < len(entries):
            self._execute("PEXPIRE", events, lifetime_ms)
            self._execute("PEXPIRE", fence, lifetime_ms)
        self._execute(publish, channel, b"%d " % first + b"\n".join(entries))
        return last
