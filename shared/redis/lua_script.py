"""A Lua script of this package, ready to be called.

Each `.lua` file begins with the keys that it touches, its arguments and what it returns.
"""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, cast

from arq.connections import ArqRedis


class LuaScript:
    """Sends the script's hash; the text only to a server that does not know it yet."""

    def __init__(self, redis: ArqRedis, name: str) -> None:
        text = files("shared.redis").joinpath(f"{name}.lua").read_text(encoding="utf-8")
        self._script = redis.register_script(text)

    async def __call__(self, *, keys: Sequence[str], args: Iterable[str | bytes | int]) -> Any:
        return cast("Any", await self._script(keys=keys, args=args))
