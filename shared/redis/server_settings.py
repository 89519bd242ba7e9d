"""How a Redis server is set up and what time it has, for those who ask whether it suits us. It changes nothing."""

from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from redis.exceptions import ResponseError

from shared.redis.connection import Redis, redis_answers


class ServerSettings(NamedTuple):
    """What a server says of itself. None: it does not tell; some that are rented refuse `CONFIG`."""

    version: str
    now: datetime
    eviction: str | None
    """`maxmemory-policy`."""
    appends: bool | None
    """Whether there is an append-only file."""
    snapshots: bool | None
    """Whether there are snapshots at times."""


async def settings_of(redis: Redis) -> ServerSettings:
    """The settings of a server. Raises `Unavailable`."""
    client = cast("Any", redis)
    async with redis_answers():
        info: dict[str, Any] = await client.info("server")
        seconds, microseconds = await client.time()
        told = await _configuration(client)
    return ServerSettings(
        version=str(info.get("redis_version", "unknown")),
        now=datetime.fromtimestamp(int(seconds) + int(microseconds) / 1e6, UTC),
        eviction=told.get("maxmemory-policy"),
        appends=told["appendonly"] == "yes" if "appendonly" in told else None,
        snapshots=bool(told["save"]) if "save" in told else None,
    )


async def _configuration(client: Any) -> dict[str, str]:
    names = ("maxmemory-policy", "appendonly", "save")
    try:
        found: list[dict[Any, Any]] = [await client.config_get(name) for name in names]
    except ResponseError:  # `CONFIG` is no command there, or not for this user
        return {}
    return {_text(name): _text(value) for one in found for name, value in one.items()}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
