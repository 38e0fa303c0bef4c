"""The store in a Redis database. Needs redis: ``mcpenv[redis]``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mcpenv.errors import ConfigurationError

from .sql_store import MAX_REPLIES
from .store import (
    RECORDED,
    SNAPSHOT,
    Claimant,
    Entry,
    Fenced,
    KeptSession,
    OtherEnvironment,
    Owned,
    StoreError,
    Totals,
    shown,
)

try:
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError as Disconnected
    from redis.exceptions import RedisError
except ImportError as error:
    raise ConfigurationError("a Redis store needs redis: pip install 'mcpenv[redis]'") from error

ANSWER_S = 10.0
"""Seconds after which a database that does not answer counts as gone."""

CONNECTIONS = 8

# The keys: `owners` and `sessions` are sorted sets, with the end of the lease and the time of the last write; `handles`
# leads to ids; `wanted` and `unrecorded` are sets of ids; `bytes` is a sum. Each session has three hashes: itself, the
# bodies and the replies of its entries by number. A reply is a JSON list: text, id of the request, and its digest in
# hexadecimal.
_COMMON = f"""
local root = 'mcpenv:durable:'
local function now_s()
    local time = redis.call('TIME')
    return tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local function stamp(number) return string.format('%.6f', number) end
local function session_of(id) return root .. 'session:' .. id end
local function bodies_of(id) return root .. 'bodies:' .. id end
local function replies_of(id) return root .. 'replies:' .. id end
local function alive(owner)
    if not owner or owner == '' then return false end
    local till = redis.call('ZSCORE', root .. 'owners', owner)
    return till and tonumber(till) > now_s()
end
local function fenced(id, fence) return redis.call('HGET', session_of(id), 'fence') ~= fence end
local function touched(id)
    local at = stamp(now_s())
    redis.call('HSET', session_of(id), 'updated', at)
    redis.call('ZADD', root .. 'sessions', at, id)
end
local function more(id, bytes)
    redis.call('HINCRBY', session_of(id), 'bytes', bytes)
    redis.call('INCRBY', root .. 'bytes', bytes)
end
local function put(id, key, name, value)
    more(id, #value - redis.call('HSTRLEN', key, name))
    if value == '' then redis.call('HDEL', key, name) else redis.call('HSET', key, name, value) end
end
local function write(id, from) -- entries from that argument on: number, body and reply of each
    for at = from, #ARGV, 3 do
        local number = tonumber(ARGV[at])
        put(id, bodies_of(id), ARGV[at], ARGV[at + 1])
        put(id, replies_of(id), ARGV[at], ARGV[at + 2])
        if number == {RECORDED} then redis.call('SREM', root .. 'unrecorded', id) end
        if number > {MAX_REPLIES} and number < {SNAPSHOT} then
            put(id, replies_of(id), string.format('%d', number - {MAX_REPLIES}), '')
        end
    end
end
local function unhandled(id)
    local handle = redis.call('HGET', session_of(id), 'handle')
    if handle and redis.call('HGET', root .. 'handles', handle) == id then
        redis.call('HDEL', root .. 'handles', handle)
    end
end
local function delete(id)
    unhandled(id)
    redis.call('DECRBY', root .. 'bytes', redis.call('HGET', session_of(id), 'bytes') or 0)
    redis.call('DEL', session_of(id), bodies_of(id), replies_of(id))
    redis.call('ZREM', root .. 'sessions', id)
    redis.call('SREM', root .. 'wanted', id)
    redis.call('SREM', root .. 'unrecorded', id)
end
local function over(id, yes)
    redis.call('HSET', session_of(id), 'over', yes)
    redis.call(yes == '' and 'SREM' or 'SADD', root .. 'unrecorded', id)
end
local function read(id)
    local found = redis.call('HGETALL', session_of(id))
    if #found > 0 then
        table.insert(found, 'alive')
        table.insert(found, alive(redis.call('HGET', session_of(id), 'owner')) and '1' or '')
    end
    return found
end
"""

_BEAT = """
local owner, lease_s = ARGV[1], tonumber(ARGV[2])
redis.call('ZADD', root .. 'owners', stamp(now_s() + lease_s), owner)
redis.call('ZREMRANGEBYSCORE', root .. 'owners', '-inf', stamp(now_s() - 10 * lease_s))
local found = {}
for _, id in ipairs(redis.call('SMEMBERS', root .. 'wanted')) do
    if redis.call('HGET', session_of(id), 'owner') == owner then table.insert(found, id) end
end
return found
"""

_BEGIN = f"""
local id, owner, fence, new = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local session = session_of(id)
if new == '' then
    if fenced(id, fence) then return 0 end
elseif redis.call('EXISTS', session) == 1 then -- written by a try whose answer was lost, or another's
    if fenced(id, fence) or redis.call('HGET', session, 'owner') ~= owner then return 0 end
else
    redis.call('HSET', session, 'owner', owner, 'fence', fence, 'digest', ARGV[5])
end
touched(id) -- first, because it is refused where memory is full
unhandled(id)
redis.call('HSET', session, 'environment', ARGV[6], 'handle', ARGV[7], 'address', ARGV[8], 'header', ARGV[9], 'steps',
    ARGV[11])
over(id, ARGV[10])
redis.call('HSET', root .. 'handles', ARGV[7], id)
local found, replies, last = redis.call('HGETALL', replies_of(id)), {{}}, 0
redis.call('DEL', bodies_of(id), replies_of(id))
more(id, 0 - (redis.call('HGET', session, 'bytes') or 0)) -- Redis takes no -0
local function keep(number, reply)
    if number >= -{MAX_REPLIES} then put(id, replies_of(id), string.format('%d', number), reply) end
end
local again = false -- this episode was written by a try whose answer was lost: the replies have moved
for at = 1, #found, 2 do
    local number = tonumber(found[at])
    if number == 0 and ARGV[12] == '0' and ARGV[14] == found[at + 1] then again = true end
    if string.sub(found[at + 1], 1, 5) ~= '[null' then replies[number] = found[at + 1] end
end
for number in pairs(replies) do last = math.max(last, number) end
-- Replies of the last episode may still be on their way to the client: they move before the new ones.
for number, reply in pairs(replies) do
    if again and number < 0 then keep(number, reply) end
    if not again and number >= 0 then keep(number - last - 1, reply) end
end
write(id, 12)
return 1
"""

_APPEND = """
local id, fence, steps, header = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if fenced(id, fence) then return 0 end
local session = session_of(id)
if tonumber(redis.call('HGET', session, 'steps')) < steps then redis.call('HSET', session, 'steps', ARGV[3]) end
if header ~= '' then
    redis.call('HSET', session, 'header', header)
    over(id, '1')
end
touched(id)
write(id, 5)
return 1
"""

_CLAIM = """
local id, owner, digest = ARGV[1], ARGV[2], ARGV[3]
local session = session_of(id)
if redis.call('EXISTS', session) == 0 then return {'none'} end
if digest ~= '' and redis.call('HGET', session, 'digest') ~= digest then return {'secret'} end
if redis.call('HGET', session, 'environment') ~= ARGV[5] then return {'environment', read(id)} end
local last = redis.call('HGET', session, 'owner')
if last ~= owner and alive(last) then
    redis.call('SADD', root .. 'wanted', id)
    return {'owned'}
end
local found = read(id)
redis.call('HSET', session, 'owner', owner, 'address', ARGV[4])
redis.call('HINCRBY', session, 'fence', 1)
redis.call('SREM', root .. 'wanted', id)
return {'', found}
"""

_RELEASE = """
if fenced(ARGV[1], ARGV[2]) then return 0 end
redis.call('HSET', session_of(ARGV[1]), 'owner', '')
redis.call('SREM', root .. 'wanted', ARGV[1])
return 1
"""

_DISCARD = """
local id, fence = ARGV[1], ARGV[2]
if redis.call('EXISTS', session_of(id)) == 0 or (fence ~= '' and fenced(id, fence)) then return 0 end
delete(id)
return 1
"""

_ENTRIES = "return {redis.call('HGETALL', bodies_of(ARGV[1])), redis.call('HGETALL', replies_of(ARGV[1]))}"

_SESSIONS = """
local found = {}
for _, id in ipairs(redis.call('ZRANGE', root .. 'sessions', 0, -1)) do table.insert(found, {id, read(id)}) end
return found
"""

_UNRECORDED = """
local found = {}
local function look(id)
    local session = redis.call('HMGET', session_of(id), 'owner', 'environment')
    if session[2] == ARGV[1] and not alive(session[1]) then table.insert(found, id) end
end
for _, id in ipairs(redis.call('SMEMBERS', root .. 'unrecorded')) do look(id) end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', root .. 'sessions', '-inf', '(' .. ARGV[2])) do
    if redis.call('HGET', session_of(id), 'over') == '' then look(id) end
end
return found
"""

_TOTALS = "return {redis.call('ZCARD', root .. 'sessions'), redis.call('GET', root .. 'bytes') or 0}"

_SWEEP = """
local deleted = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', root .. 'sessions', '-inf', '(' .. ARGV[1])) do
    if not alive(redis.call('HGET', session_of(id), 'owner')) then
        delete(id)
        table.insert(deleted, id)
    end
end
return deleted
"""

_OF_HANDLE = """
local id = redis.call('HGET', root .. 'handles', ARGV[1])
if not id then return {} end
return {id, read(id)}
"""

_CLOSE = "for _, owner in ipairs(ARGV) do redis.call('ZREM', root .. 'owners', owner) end return 1"


class RedisStore:
    """A store in a Redis database: each change is one script, which Redis runs whole.

    Args:
        place: its URL, with the parameters that redis-py takes.
        make: has no effect, because there is nothing to make.
    """

    def __init__(self, place: str, *, make: bool = True) -> None:
        limits: dict[str, Any] = {
            "socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S / 2, "max_connections": CONNECTIONS,
            "timeout": ANSWER_S,
            # An idle connection may be one to a server that has started again. A script may run twice.
            "retry": Retry(NoBackoff(), 1, (Disconnected,)),
        }  # fmt: skip
        try:
            pool = BlockingConnectionPool.from_url(place, **limits)
            pool.connection_class(**pool.connection_kwargs)  # which takes the parameters
        except (ValueError, TypeError, RedisError):
            # The text has parts of the URL, which may be those of a password.
            raise ConfigurationError(
                f"--durable {shown(place)}: that is no URL of Redis, or a parameter in it is none"
            ) from None
        self._redis = Redis(connection_pool=pool)
        self._owners: set[str] = set()

    async def beat(self, owner: str, lease_s: float) -> Sequence[str]:
        """Renew a lease."""
        self._owners.add(owner)
        return [_text(id) for id in await self._run(_BEAT, owner, lease_s)]

    async def begin(self, kept: KeptSession, entries: Sequence[Entry], *, new: bool) -> None:
        """Write an episode from its beginning."""
        written = await self._run(
            _BEGIN, kept.id, kept.owner or "", kept.fence, "1" if new else "", kept.digest, kept.environment,
            kept.handle, kept.address, kept.header, "1" if kept.over else "", kept.steps, *_flat(entries),
        )  # fmt: skip
        if not written:
            raise Fenced

    async def append(self, session_id: str, fence: int, entries: Sequence[Entry], header: bytes | None) -> None:
        """Write steps."""
        steps = max((entry.number for entry in entries if entry.is_step), default=0)
        if not await self._run(_APPEND, session_id, fence, steps, header or b"", *_flat(entries)):
            raise Fenced

    async def claim(self, session_id: str, claimant: Claimant, digest: str | None) -> KeptSession | None:
        """Become the owner."""
        owner, address, environment = claimant
        refused, *found = await self._run(_CLAIM, session_id, owner, digest or "", address, environment)
        if refused == b"none":
            return None
        if refused == b"secret":
            raise PermissionError
        if refused == b"owned":
            raise Owned
        kept = _kept(session_id, found[0])
        if refused == b"environment":
            raise OtherEnvironment(kept)
        return replace(kept, owner=owner, address=address, fence=kept.fence + 1)

    async def entries(self, session_id: str) -> Sequence[Entry]:
        """Return the entries."""
        bodies, replies = (_pairs(found) for found in await self._run(_ENTRIES, session_id))
        found = []
        for number in sorted({*map(int, bodies), *map(int, replies)}):
            name = str(number)
            reply, request_id, digest = json.loads(replies.get(name, b"[null, null, null]"))
            found.append(
                Entry(number, bodies.get(name), request_id, None if digest is None else bytes.fromhex(digest), reply)
            )
        return found

    async def release(self, session_id: str, fence: int) -> None:
        """Put a session away."""
        await self._run(_RELEASE, session_id, fence)

    async def discard(self, session_id: str, fence: int | None) -> bool:
        """Delete a session."""
        return bool(await self._run(_DISCARD, session_id, "" if fence is None else fence))

    async def of_handle(self, handle: str) -> KeptSession | None:
        """Return a handle's session."""
        found = await self._run(_OF_HANDLE, handle)
        return _kept(_text(found[0]), found[1]) if found else None

    async def sessions(self) -> Sequence[KeptSession]:
        """Return all sessions."""
        return [_kept(_text(id), found) for id, found in await self._run(_SESSIONS)]

    async def totals(self) -> Totals:
        """Return the sums."""
        sessions, size = await self._run(_TOTALS)
        return Totals(int(sessions), int(size))

    async def unrecorded(self, environment: str, before: float) -> Sequence[str]:
        """Return what no record has."""
        return [_text(id) for id in await self._run(_UNRECORDED, environment, f"{before:.6f}")]

    async def sweep(self, before: float) -> Sequence[str]:
        """Delete what nobody continues."""
        return [_text(id) for id in await self._run(_SWEEP, f"{before:.6f}")]

    async def close(self) -> None:
        """End the leases of this process, and release the connections."""
        try:
            if self._owners:
                await self._run(_CLOSE, *self._owners)
        finally:
            with _answering():
                await self._redis.aclose()

    async def _run(self, script: str, *arguments: str | bytes | float) -> Any:
        with _answering():
            return await self._redis.eval(_COMMON + script, 0, *arguments)


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise StoreError(str(error) or type(error).__name__) from error


def _flat(entries: Sequence[Entry]) -> Iterator[str | bytes]:
    """Yield number, body and reply of each entry, empty where there is none."""
    for entry in entries:
        yield str(entry.number)
        yield entry.body or b""
        digest = None if entry.digest is None else entry.digest.hex()
        empty = entry.request_id is None and entry.reply is None
        yield "" if empty else json.dumps([entry.reply, entry.request_id, digest])


def _pairs(found: Sequence[bytes]) -> dict[str, bytes]:
    return {_text(found[at]): found[at + 1] for at in range(0, len(found), 2)}


def _text(value: bytes) -> str:
    return value.decode()


def _kept(session_id: str, found: Sequence[bytes]) -> KeptSession:
    field = _pairs(found)
    text = {name: _text(value) for name, value in field.items() if name != "header"}
    return KeptSession(
        session_id, text["digest"], text["environment"], text["handle"], text["address"], field["header"],
        bool(text["over"]), text["owner"] or None, int(text["fence"]), int(text["steps"]), float(text["updated"]),
        bool(text["alive"]),
    )  # fmt: skip
