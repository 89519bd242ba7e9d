"""Ways in which a Redis loses data: all of it, the newest part as after a failover, the end of one stream, or all
leases before their time."""

from dataclasses import dataclass
from typing import Any, cast

from arq.connections import ArqRedis

from shared.redis import keys

FOR_EVER = -1


@dataclass(frozen=True)
class Replica:
    """The data of a replica at some moment: each key with its value and its time of expiry."""

    values: dict[bytes, tuple[bytes, int]]


async def replicate(redis: ArqRedis) -> Replica:
    """A replica that is up to date, and from now on lags."""
    client = cast("Any", redis)
    values: dict[bytes, tuple[bytes, int]] = {}
    for key in await client.keys("*"):
        values[key] = await client.dump(key), await client.pexpiretime(key)
    return Replica(values)


async def fail_over(redis: ArqRedis, replica: Replica, *, now_ms: int) -> None:
    """The replica replaces the server that it followed."""
    client = cast("Any", redis)
    await client.flushdb()
    for key, (value, expires_ms) in replica.values.items():
        if expires_ms == FOR_EVER:
            await client.restore(key, 0, value)
        elif expires_ms > now_ms:
            await client.restore(key, expires_ms - now_ms, value)


async def lose_end_of_stream(redis: ArqRedis, key: str, count: int) -> int:
    """Loses the last `count` entries but never the first, and the memory of their ids; returns how many are gone."""
    client = cast("Any", redis)
    entries = await client.xrange(key)
    kept = entries[: max(1, len(entries) - count)]
    if len(kept) == len(entries):
        return 0
    expires_ms = await client.pexpiretime(key)
    await client.delete(key)
    for entry_id, fields in kept:
        await client.xadd(key, fields, id=entry_id)
    await client.pexpireat(key, expires_ms)
    return len(entries) - len(kept)


async def shorten_leases(redis: ArqRedis, *, to_s: float) -> None:
    """Sets the remaining time of all leases. Their holders are dead: only time ends them."""
    client = cast("Any", redis)
    seconds, micros = await client.time()
    ends_ms = seconds * 1000 + micros // 1000 + round(to_s * 1000)
    for job_id in await client.zrange(keys.QUEUE, 0, -1):
        await client.pexpireat(keys.LEASE_PREFIX.encode() + job_id, ends_ms)
        await client.zadd(keys.QUEUE, {job_id: ends_ms}, xx=True)


async def end_leases(redis: ArqRedis) -> None:
    """Ends all leases, as time would: the next worker finds the runs of dead workers. Leases that are longer
    than any standstill of a busy machine, and are ended so, make a test depend on the death alone."""
    client = cast("Any", redis)
    for job_id in await client.zrange(keys.QUEUE, 0, -1):
        await client.delete(keys.LEASE_PREFIX.encode() + job_id)
        await client.zadd(keys.QUEUE, {job_id: 1}, xx=True)
