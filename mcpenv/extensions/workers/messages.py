"""The messages between the processes of one server: calls of the hub and the workers, and requests in tunnels.

Each message is a pydantic model with a ``type`` of its own. `framing` encodes it as JSON with its body beside it, and
checks it against the schema of the connection on arrival.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    TypeAdapter,
    ValidationInfo,
)

from mcpenv_client.types.server import ServerCapacityStatus, SessionInfo


class Message(BaseModel):
    """The base of all messages. A field of another type than its own is refused, at both ends."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class MessageWithBody(Message):
    """The base of the messages whose bytes are sent as they are, after the JSON of the other fields."""

    body: Annotated[bytes, Field(exclude=True)] = b""


# -- calls of a worker to the hub; the reply of each stands beside it


class Hello(Message):
    """Ask for this worker's tag: `WorkerTag`."""

    type: Literal["hello"] = "hello"


class Claim(Message):
    """Claim a session id that a client chose: `WorkerTag` of the worker that has it."""

    type: Literal["claim"] = "claim"
    session_id: str


class Reserve(Message):
    """Reserve a free session id that a client chose: `Verdict`, False if it is taken."""

    type: Literal["reserve"] = "reserve"
    session_id: str


class Place(Message):
    """Ask for the worker of a new session: `WorkerTag`."""

    type: Literal["place"] = "place"


class FindSession(Message):
    """Ask which other worker has a session: `Location`."""

    type: Literal["find_session"] = "find_session"
    session_id: str


class TakeSlot(Message):
    """Wait for a slot: `Done`."""

    type: Literal["take_slot"] = "take_slot"
    orchestrated: bool


class GetCapacity(Message):
    """Ask for the capacity of the whole server: `Capacity`."""

    type: Literal["get_capacity"] = "get_capacity"


class SpendRequest(Message):
    """Count a request of an agent against its rate: `Done`."""

    type: Literal["spend_request"] = "spend_request"
    agent: str


# -- calls in both directions: a worker asks the hub for all other workers, the hub asks each of them


class ListSessions(Message):
    """Ask for the descriptions of sessions: `Sessions`."""

    type: Literal["list_sessions"] = "list_sessions"


class CountEpisodes(Message):
    """Ask for the counts of recorded episodes: `EpisodeCounts`."""

    type: Literal["count_episodes"] = "count_episodes"


class CollectMetrics(Message):
    """Ask for the samples of metrics: `Metrics`."""

    type: Literal["collect_metrics"] = "collect_metrics"


# -- calls of the hub to a worker


class HasSession(Message):
    """Ask if the worker has a session: `Verdict`."""

    type: Literal["has_session"] = "has_session"
    session_id: str


class FindEvictable(Message):
    """Ask when the session that the worker would evict was last used: `LastUsed`."""

    type: Literal["find_evictable"] = "find_evictable"
    orchestrated: bool


class Evict(Message):
    """Evict the least recently used session that may be evicted: `Done`."""

    type: Literal["evict"] = "evict"
    orchestrated: bool


Request = Annotated[
    Hello
    | Claim
    | Reserve
    | Place
    | FindSession
    | TakeSlot
    | GetCapacity
    | SpendRequest
    | ListSessions
    | CountEpisodes
    | CollectMetrics
    | HasSession
    | FindEvictable
    | Evict,
    Field(discriminator="type"),
]
"""A message that is answered with a `Reply`."""


# -- replies


class Done(Message):
    """The reply that has no value."""

    type: Literal["done"] = "done"


class WorkerTag(Message):
    """The tag of a worker."""

    type: Literal["worker_tag"] = "worker_tag"
    tag: str


class Location(Message):
    """The tag of the worker that has a session; None if none has it."""

    type: Literal["location"] = "location"
    tag: str | None


class Verdict(Message):
    """The answer to a question that is answered with yes or no."""

    type: Literal["verdict"] = "verdict"
    yes: bool


class Sessions(Message):
    """The descriptions of sessions."""

    type: Literal["sessions"] = "sessions"
    sessions: list[SessionInfo]


class EpisodeCounts(Message):
    """The counts of recorded episodes by name, for each worker that records."""

    type: Literal["episode_counts"] = "episode_counts"
    counts: list[dict[str, int]]


class Metrics(Message):
    """The samples of metrics, for each worker, and of workers that are gone."""

    type: Literal["metrics"] = "metrics"
    samples: list[dict[str, float]]


class Capacity(Message):
    """The capacity of the whole server."""

    type: Literal["capacity"] = "capacity"
    status: ServerCapacityStatus


class LastUsed(Message):
    """The time (monotonic seconds) at which a session was last used; None if there is no such session."""

    type: Literal["last_used"] = "last_used"
    at: float | None


Reply = Annotated[
    Done | WorkerTag | Location | Verdict | Sessions | EpisodeCounts | Metrics | Capacity | LastUsed,
    Field(discriminator="type"),
]


# -- notices of a worker to the hub


class Ready(Message):
    """The worker serves; ``limit`` is the number of slots of the server."""

    type: Literal["ready"] = "ready"
    limit: int


class Failed(Message):
    """The worker could not start."""

    type: Literal["failed"] = "failed"
    reason: str


class Draining(Message):
    """The worker takes no new sessions, and waits for its running episodes."""

    type: Literal["draining"] = "draining"


class Leaving(Message):
    """The worker is shutting down."""

    type: Literal["leaving"] = "leaving"


class HoldId(Message):
    """Claim a session id for a session of this worker."""

    type: Literal["hold_id"] = "hold_id"
    session_id: str


class ReleaseId(Message):
    """Release a claim on a session id."""

    type: Literal["release_id"] = "release_id"
    session_id: str


class FreeSlot(Message):
    """Release a slot."""

    type: Literal["free_slot"] = "free_slot"


class Quarantined(Message):
    """Add to the worker's count of quarantined instances; ``change`` may be negative."""

    type: Literal["quarantined"] = "quarantined"
    change: int


# -- notices of the hub to a worker


class End(Message):
    """Shut down gracefully, without waiting for episodes; sent a second time, immediately."""

    type: Literal["end"] = "end"


class Hurry(Message):
    """Do not wait for episodes at the shutdown that goes on or comes."""

    type: Literal["hurry"] = "hurry"


class Running(Message):
    """The tags of the workers that serve."""

    type: Literal["running"] = "running"
    tags: list[str]


class SlotCounts(Message):
    """The counts of the whole server."""

    type: Literal["slot_counts"] = "slot_counts"
    taken: int
    quarantined: int


Notice = Annotated[
    Ready
    | Failed
    | Draining
    | Leaving
    | HoldId
    | ReleaseId
    | FreeSlot
    | Quarantined
    | End
    | Hurry
    | Running
    | SlotCounts,
    Field(discriminator="type"),
]
"""A message without a reply."""


# -- what a channel between the hub and a worker carries


class Call(Message):
    """A request, with the number under which it is answered."""

    type: Literal["call"] = "call"
    number: int
    request: Request


class Answer(Message):
    """The reply to a call."""

    type: Literal["answer"] = "answer"
    number: int
    reply: Reply


class Refusal(Message):
    """The `WireError` with which a call ended, as its ``to_wire`` returns it."""

    type: Literal["refusal"] = "refusal"
    number: int
    error: dict[str, JsonValue]


class Cancel(Message):
    """The caller has stopped waiting."""

    type: Literal["cancel"] = "cancel"
    number: int


class Notify(Message):
    """A notice."""

    type: Literal["notify"] = "notify"
    notice: Notice


ChannelMessage = Annotated[Call | Answer | Refusal | Cancel | Notify, Field(discriminator="type")]
CHANNEL: TypeAdapter[Any] = TypeAdapter(ChannelMessage)


# -- what a tunnel carries: the scope and the events of ASGI, with the names that ASGI gives them


def _header_bytes(value: Any, info: ValidationInfo) -> Any:
    """Return the bytes of a header from its text in JSON; a value of this process stays as it is."""
    return value.encode("latin-1") if info.mode == "json" and isinstance(value, str) else value


HeaderBytes = Annotated[bytes, BeforeValidator(_header_bytes), PlainSerializer(lambda value: value.decode("latin-1"))]
Headers = list[tuple[HeaderBytes, HeaderBytes]]


class OpenRequest(Message):
    """The scope of a request, and the number of the listening socket that accepted it."""

    type: Literal["http", "websocket"]
    door: int
    path: str
    headers: Headers
    asgi: dict[str, str] | None = None
    http_version: str | None = None
    method: str | None = None
    scheme: str | None = None
    raw_path: HeaderBytes | None = None
    query_string: HeaderBytes | None = None
    root_path: str | None = None
    client: tuple[str, int | None] | None = None
    server: tuple[str, int | None] | None = None
    subprotocols: list[str] | None = None
    extensions: dict[str, dict[str, str]] | None = None


class RequestBody(MessageWithBody):
    """A part of the body of a request."""

    type: Literal["http.request"] = "http.request"
    more_body: bool = False


class HTTPDisconnect(Message):
    """The HTTP client has disconnected."""

    type: Literal["http.disconnect"] = "http.disconnect"


class SocketConnect(Message):
    """The client opens the WebSocket."""

    type: Literal["websocket.connect"] = "websocket.connect"


class SocketReceive(MessageWithBody):
    """The frame of a client: text, or bytes if ``text`` is None."""

    type: Literal["websocket.receive"] = "websocket.receive"
    text: str | None = None


class SocketDisconnect(Message):
    """The WebSocket is closed."""

    type: Literal["websocket.disconnect"] = "websocket.disconnect"
    code: int = 1005
    reason: str = ""


class ResponseStart(Message):
    """The status and the headers of an answer, also of one that denies a WebSocket."""

    type: Literal["http.response.start", "websocket.http.response.start"] = "http.response.start"
    status: int
    headers: Headers = []


class ResponseBody(MessageWithBody):
    """A part of the body of an answer."""

    type: Literal["http.response.body", "websocket.http.response.body"] = "http.response.body"
    more_body: bool = False


class SocketAccept(Message):
    """The application accepts the WebSocket."""

    type: Literal["websocket.accept"] = "websocket.accept"
    subprotocol: str | None = None
    headers: Headers = []


class SocketSend(MessageWithBody):
    """The frame of an application: text, or bytes if ``text`` is None."""

    type: Literal["websocket.send"] = "websocket.send"
    text: str | None = None


class SocketClose(Message):
    """The application closes the WebSocket."""

    type: Literal["websocket.close"] = "websocket.close"
    code: int = 1000
    reason: str = ""


class Returned(Message):
    """The application has returned, or has failed."""

    type: Literal["returned"] = "returned"
    failed: bool


FromClient = Annotated[
    OpenRequest | RequestBody | HTTPDisconnect | SocketConnect | SocketReceive | SocketDisconnect,
    Field(discriminator="type"),
]
FromApplication = Annotated[
    ResponseStart | ResponseBody | SocketAccept | SocketSend | SocketClose | Returned, Field(discriminator="type")
]
FROM_CLIENT: TypeAdapter[Any] = TypeAdapter(FromClient)
FROM_APPLICATION: TypeAdapter[Any] = TypeAdapter(FromApplication)
