"""The routes ``/records``: the episodes that this server has recorded, for the console."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from mcpenv.errors import DamagedRecord
from mcpenv.extensions.exports.page import episode_page, policy
from mcpenv.extensions.exports.page.episode import facts_element
from mcpenv.extensions.exports.page.evidence import evidence_element
from mcpenv.extensions.exports.page.markup import Child, el, plain_of
from mcpenv.extensions.exports.page.overview import number_text
from mcpenv.extensions.live.extension import media
from mcpenv.extensions.records.overview import GROUP_KEYS, GROUPED_BY, groups_of, overview_of
from mcpenv.extensions.records.record_index import RecordIndex, Row
from mcpenv.extensions.records.reviews import Reviews, review_of
from mcpenv.extensions.records.rollouts import rollouts_of
from mcpenv.extensions.records.transcript import transcript_of
from mcpenv.extensions.records.where import (
    FIELDS,
    MAX_LENGTH,
    All,
    Compare,
    Condition,
    Has,
    Not,
    WhereError,
    completed,
    parse,
    parts_of,
    words_of,
)
from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered, object_in, plain_json
from mcpenv.server.extension import Access, Doc, Extension, ServerRoute, object_of
from mcpenv.trajectories.blobs import Blobs
from mcpenv.trajectories.episode import OBSERVATIONS, RecordedEpisode
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.fingerprint import digest, facts_of_end, facts_of_reset, facts_of_step
from mcpenv_client.types.values import decode

from .comparison import compared
from .family import Families
from .overview_charts import charts_of, heat_of
from .training_page import training_page

MAX_ROWS = 1000
"""Maximum rows of one page."""

MAX_REVIEW_BYTES = 64 << 10
"""Maximum bytes of a request with a review."""

MAX_LANES = 64
"""Maximum episodes of a task's page."""

_TOLD = 0.005
"""The least share of the differences in score that a parting of rollouts explains to be told."""

_CALL = 80
"""Maximum characters of a call in such a text."""

_TEXTS = ("task", "split", "status", "tool", "text", "agent", "not_agent", "where")
_PAGING = ("sort", "offset", "limit")
_BLOB = re.compile(r"[0-9a-f]{64}\.([a-z]{3})")
_TYPES = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp", "gif": "image/gif", "wav": "audio/wav"}


class Records(Extension):
    """The extension of a server that records.

    Args:
        server: its settings name the folder of the record.
    """

    def __init__(self, server: EnvServer) -> None:
        assert server.config.record is not None
        self._handlers = RecordRoutes(server.config.record, server)

    def routes(self) -> list[ServerRoute]:
        """Return the routes of the record."""
        return self._handlers.table()


class RecordRoutes:
    """The handlers. Reading files is done in threads.

    Args:
        directory: the folder of the record.
        server: the server that writes it; None if none does.
    """

    def __init__(self, directory: Path, server: EnvServer | None = None) -> None:
        self._server = server
        self._index = RecordIndex(directory, below=server is None)
        self._related: tuple[list[Row], Families] | None = None
        self._trained: tuple[list[Row], Condition, dict[str, Any]] | None = None

    def table(self) -> list[ServerRoute]:
        """Return the routes."""
        one = "/records/{episode_id:path}"
        return [
            ServerRoute("/records", self.rows, Access.CONTROLLED, docs=_ROWS),
            # Before the episodes: one with such an id is read by the place of its row.
            ServerRoute("/records/overview", self.overview, Access.CONTROLLED, docs=_OVERVIEW),
            ServerRoute("/records/completions", self.completions, Access.CONTROLLED, docs=_COMPLETIONS),
            ServerRoute("/records/rollouts", self.rollouts, Access.CONTROLLED, docs=_ROLLOUTS),
            ServerRoute("/records/training", self.training, Access.CONTROLLED, docs=_TRAINING),
            ServerRoute("/records/alignment", self.alignment, Access.CONTROLLED, docs=_ALIGNMENT),
            ServerRoute(f"{one}/blobs/{{name}}", self.blob, Access.CONTROLLED, docs=_IMAGE),
            ServerRoute(f"{one}/page.html", self.page, Access.CONTROLLED, docs=_PAGE),
            ServerRoute(f"{one}/neighbours", self.neighbours, Access.CONTROLLED, docs=_NEIGHBOURS),
            ServerRoute(f"{one}/review", self.review, Access.CONTROLLED, ("PUT",), docs=_REVIEW),
            ServerRoute(one, self.episode, Access.CONTROLLED, docs=_EPISODE),
        ]

    @answered
    async def rows(self, request: Request) -> dict[str, Any]:
        """Answer a page of rows."""
        query = request.query_params
        wanted = _wanted(query, *_PAGING)
        sort = _sort(query)
        offset = _count("offset", query.get("offset") or "0", 0, 10**9)
        limit = _count("limit", query.get("limit") or "100", 1, MAX_ROWS)
        page = await asyncio.to_thread(self._index.find, wanted, offset, limit, sort)
        return {
            "total": page.total,
            "offset": offset,
            "limit": limit,
            "damaged": page.damaged,
            "left_out": [*await self._lost(), *page.left_out],
            "rows": page.rows,
        }

    @answered
    async def overview(self, request: Request) -> dict[str, Any]:
        """Answer the figures of the matching episodes, and their groups."""
        query = request.query_params
        wanted = _wanted(query, "group", "sort")
        group, sort = query.get("group"), query.get("sort") or "-episodes"
        if group and group not in GROUPED_BY:
            raise _wrong("group", f"it must be one of {', '.join(GROUPED_BY)}", "enum")
        if group and sort.removeprefix("-") not in GROUP_KEYS:
            raise _wrong("sort", f"it must be one of {', '.join(GROUP_KEYS)}", "enum")
        shown = _shown(query, "group", "sort")

        def read() -> dict[str, Any]:
            rows = [row.summary for row in self._index.select(wanted)]
            groups = groups_of(rows, group, sort) if group else None
            found = overview_of(rows)
            found |= {"charts": charts_of(found), "heat": {**found["heat"], **heat_of(found["heat"])}}
            return {**found, "groups": groups, "where": str(shown), "parts": parts_of(shown)}

        return await asyncio.to_thread(read)

    @answered
    async def completions(self, request: Request) -> dict[str, Any]:
        """Answer what may stand at the end of a condition that is being written."""
        query = request.query_params
        if unknown := query.keys() - {"where"}:
            raise _wrong(min(unknown), "there is no such condition", "extra_forbidden")
        text = query.get("where", "")[:MAX_LENGTH]
        return await asyncio.to_thread(self._completions, text)

    @answered
    async def rollouts(self, request: Request) -> dict[str, Any]:
        """Answer the newest episodes of a task as lanes of one trie."""
        wanted = _wanted(request.query_params, "task_id")
        task = request.query_params.get("task_id")
        if not task:
            raise _wrong("task_id", "name a task", "missing")
        return await asyncio.to_thread(self._rollouts, All((Compare("task", "=", task), wanted)))

    @answered
    async def training(self, request: Request) -> dict[str, Any]:
        """Answer the charts, alarms and tables of a run while it trains."""
        wanted, shown = _wanted(request.query_params), _shown(request.query_params)

        def read() -> dict[str, Any]:
            rows, known = self._index.select(wanted), self._trained
            if known is None or known[0] is not rows or known[1] != shown:
                page = training_page([row.summary for row in rows], shown, self._index.older)
                self._trained = known = (rows, shown, page)
            return known[2]

        return await asyncio.to_thread(read)

    async def alignment(self, request: Request) -> Response:
        """Answer which steps of two episodes stand for each other, and how they differ."""

        def read() -> Response | None:
            found = [self._index.read(request.query_params.get(name, "")) for name in ("one", "other")]
            episodes = [each[1] for each in found if each is not None]
            return plain_json(compared(*episodes)) if len(episodes) == 2 else None

        return await self._answer(read)

    def _completions(self, text: str) -> dict[str, Any]:
        start, words, subject = completed(text)
        rows = [row.summary for row in self._index.select()] if subject else []
        return {"start": start, "words": words_of(text[start:], words, subject, rows), "subject": subject}

    def _rollouts(self, wanted: Condition) -> dict[str, Any]:
        rows = [row.summary for row in self._index.select(wanted)]
        found = []
        for row in rows[:MAX_LANES]:
            with contextlib.suppress(DamagedRecord):
                if (episode := self._index.read(row["place"])) is not None:
                    found.append((row["place"], episode[1]))
        kinds = {by: groups_of(rows, by)["groups"] for by in ("split", "policy_version", "agent", "model")}
        rollouts = rollouts_of(found)
        return {"total": len(rows), "kinds": kinds, **rollouts, "told": _told(rollouts["partings"])}

    async def _lost(self) -> list[dict[str, str]]:
        """Return how many episodes the server has lost, which its record says only once it can be written again."""
        own = None if self._server is None else self._server.description.recording()
        if self._server is None or own is None:
            return []
        lost = (await self._server.membership.recorded(own))["episodes_lost"]
        said = f"{lost} episode{'s' if lost > 1 else ''} lost since it started; its log says why"
        return [{"where": "this server", "why": said}] if lost else []

    async def episode(self, request: Request) -> Response:
        """Answer one episode, and the hashes by which it is compared with another one."""
        run = request.path_params.get("run")
        base = "records" if run is None else f"evaluations/{quote(run, safe='')}/records"
        return await self._answer(lambda: self._read(request.path_params["episode_id"], base))

    async def page(self, request: Request) -> Response:
        """Answer one episode as an HTML file to keep."""
        return await self._answer(lambda: self._page(request.path_params["episode_id"]))

    @answered
    async def neighbours(self, request: Request) -> dict[str, Any]:
        """Answer which episodes stand before and after one among those that match, in their order."""
        wanted, sort = _wanted(request.query_params, "sort"), _sort(request.query_params)
        return await asyncio.to_thread(self._index.beside, request.path_params["episode_id"], wanted, sort)

    @answered
    async def review(self, request: Request) -> dict[str, Any] | Response:
        """Write a review of an episode, and answer all of the episode."""
        given = await _body(request)
        return await asyncio.to_thread(self._review, request.path_params["episode_id"], given)

    def _review(self, name: str, given: dict[str, Any]) -> dict[str, Any] | Response:
        episode = self._index.id_of(name)
        if episode is None:
            return unknown("no such episode in this server's record")
        review = review_of({**given, "episode": episode})
        try:
            Reviews(self._index.folder_of(name)).write(review)
        except OSError as error:
            raise NotWritten(f"the review is not written: {error.strerror or error}") from error
        return {"reviews": self._reviews(name)}

    def _reviews(self, name: str) -> list[dict[str, Any]]:
        return [each.model_dump() for each in self._index.reviews_of(name)]

    async def blob(self, request: Request) -> Response:
        """Answer an image or audio of an episode."""
        name = _BLOB.fullmatch(request.path_params["name"])
        folder = await asyncio.to_thread(self._index.folder_of, request.path_params["episode_id"])
        data = None if name is None else await asyncio.to_thread(Blobs(folder).read, name[0])
        if name is None or data is None:
            return unknown("no such image or audio in this server's record")
        return media(data, _TYPES.get(name[1], ""))

    async def _answer(self, read: Callable[[], Response | None]) -> Response:
        try:
            found = await asyncio.to_thread(read)
        except DamagedRecord as error:
            return unknown(f"this episode cannot be read any more: {error}")
        return unknown("no such episode in this server's record") if found is None else found

    def _page(self, episode_id: str) -> Response | None:
        found = self._index.read(episode_id)
        if found is None:
            return None
        episode = found[1]
        episode = Blobs(self._index.folder_of(episode_id)).restored(episode)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", episode.id)[:80]
        headers = {
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="episode-{name}.html"',
            "Content-Security-Policy": f"{policy()}; sandbox",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(episode_page(episode), 200, headers, "text/html; charset=utf-8")

    def _read(self, episode_id: str, base: str) -> Response | None:
        found = self._index.read(episode_id)
        if found is None:
            return None
        line, episode = found
        answer = {"episode": decode(line), "hashes": _hashes(episode), "transcript": transcript_of(episode)}
        drawn = {
            "summary": facts_element(episode),
            "tree": self._families().tree(episode.id, base),
            "evidence": evidence_element(episode.trajectory),
        }
        drawings = {name: None if each is None else plain_of(each) for name, each in drawn.items()}
        return plain_json({**answer, "reviews": self._reviews(episode_id), "drawings": drawings})

    def _families(self) -> Families:
        rows, known = self._index.select(), self._related
        if known is None or known[0] is not rows:
            self._related = known = (rows, Families([row.summary for row in rows]))
        return known[1]


def _hashes(episode: RecordedEpisode) -> dict[str, Any]:
    """Return the hashes of the facts that are equal in equal episodes: of the reset, each step, and the end."""
    trajectory, observations = episode.trajectory, episode.extra.get(OBSERVATIONS, {})
    return {
        "reset": digest(facts_of_reset(trajectory)),
        "steps": [digest(facts_of_step(step, observations.get(str(step.call.step)))) for step in trajectory.steps],
        "end": digest(facts_of_end(trajectory)),
    }


def _told(partings: list[dict[str, Any]]) -> list[Any] | None:
    """Return where the rollouts of a task part most, drawn for the page; None if no call tells winners from losers."""
    items: list[Element] = []
    for parting in [each for each in partings if each["explained"] > _TOLD][:3]:
        place = f"After step {parting['step']}" if parting["step"] else "At the first step"
        note = "" if items else ", where winners and losers part most"
        ways: list[Child] = []
        for way in parting["ways"]:
            call = way["call"]
            text = "" if call is None else f"{call['name']} {call['arguments']}"
            ways.append(el("code", text if len(text) <= _CALL else f"{text[:_CALL]}…") if call else "the end")
            ways.append(f" ({way['lanes']}, mean {number_text(way['mean'])}) ")
        share = f"{note}: {parting['explained']:.0%} of the differences in score. ".replace("%", " %")
        items.append(el("li", el("strong", place), share, *ways))
    return plain_of(el("ul", *items)) if items else None


class NotWritten(InvalidMessage):
    """The error for a review that the folder of the record does not take."""

    http_status = 409


def unknown(message: str) -> Response:
    """Return the answer that there is no such thing."""
    return plain_json({"message": message, "code": "NOT_FOUND"}, 404)


def _wanted(query: QueryParams, *others: str) -> Condition:
    """Return the condition of a query: that of ``where``, and a separate one for each of the others that it has."""
    unknown = set(query) - {*_TEXTS, "return_min", *others}
    if unknown:
        raise _wrong(sorted(unknown)[0], "there is no such condition", "extra_forbidden")
    try:
        parts = [parse(query.get("where", ""))]
    except WhereError as error:
        raise _wrong("where", str(error), "where", position=error.position, expected=error.expected) from None
    for name in _TEXTS[:-1]:
        value = query.get(name)
        if value and name in ("tool", "text"):
            parts.append(Has(name, value))
        elif value and name == "not_agent":
            parts.append(Not(Compare("agent", "=", value)))
        elif value:
            parts.append(Compare(name, "~" if name == "task" else "=", value))
    if query.get("return_min"):
        parts.append(Compare("return", ">=", _number("return_min", query["return_min"])))
    return parts[0] if len(parts) == 1 else All(tuple(part for part in parts if part != All(())))


def _shown(query: QueryParams, *others: str) -> Condition:
    """Return the condition of a query without the agent that the page hides."""
    return _wanted(QueryParams([(name, value) for name, value in query.items() if name != "not_agent"]), *others)


def _sort(query: QueryParams) -> str:
    sort = query.get("sort", "")
    if sort.removeprefix("-") not in ("", *FIELDS):
        raise _wrong("sort", f"it must be one of {', '.join(FIELDS)}, with - in front the largest first", "enum")
    return sort


async def _body(request: Request) -> dict[str, Any]:
    text = b""
    async for part in request.stream():
        text += part
        if len(text) > MAX_REVIEW_BYTES:
            raise InvalidMessage(f"the body is larger than {MAX_REVIEW_BYTES} bytes")
    return object_in(text)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _wrong(name, "it must be a number", "float_parsing")
    return value


def _count(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or not least <= int(text) <= most:
        raise _wrong(name, f"it must be a whole number from {least} to {most}", "int_parsing")
    return int(text)


def _wrong(name: str, message: str, kind: str, **more: Any) -> InvalidMessage:
    return InvalidMessage(f"{name}: {message}", errors=[{"loc": [name], "msg": message, "type": kind, **more}])


_FILE, _NO_EPISODE = "The file", {404: "No such episode"}
_COUNT, _OBJECT = {"type": "integer", "minimum": 0}, {"type": "object"}
_OBJECTS = {"type": "array", "items": _OBJECT}
_ARRAY = {"type": "array"}
_CHANGES = {"type": ["array", "null"]}
_NULLABLE = {"type": ["object", "null"]}

_CONDITIONS = {**{name: {"type": "string"} for name in _TEXTS}, "return_min": {"type": "number"}}
_NO_CONDITION = {422: "No such condition"}

_ROWS = Doc(
    "The recorded episodes, the newest first",
    object_of(
        {
            **dict.fromkeys(("total", "offset", "limit", "damaged"), _COUNT),
            **dict.fromkeys(("left_out", "rows"), _OBJECTS),
        }
    ),
    query={
        **_CONDITIONS,
        "sort": {"type": "string"},
        "offset": _COUNT,
        "limit": {"type": "integer", "minimum": 1},
    },
    errors=_NO_CONDITION,
)
_OVERVIEW = Doc(
    "Figures of the recorded episodes: a histogram of returns, steps by return, tasks by attempt, and groups",
    object_of(
        {
            **dict.fromkeys(("total", "unscored"), _COUNT),
            **dict.fromkeys(("returns", "scatter", "groups"), _NULLABLE),
            **dict.fromkeys(("heat", "parts"), _OBJECT),
            "charts": _ARRAY,
            "where": {"type": "string"},
        }
    ),
    query={**_CONDITIONS, "group": {"type": "string", "enum": list(GROUPED_BY)}, "sort": {"type": "string"}},
    errors=_NO_CONDITION,
)
_COMPLETIONS = Doc(
    "What may stand at the end of a condition",
    object_of({"start": _COUNT, "words": _OBJECTS, "subject": {"type": ["string", "null"]}}),
    query={"where": {"type": "string"}},
    errors=_NO_CONDITION,
)
_ALIGNMENT = Doc(
    "Two episodes compared: their steps as pairs of indices, and the differences in words and by path",
    object_of(
        {
            "pairs": _OBJECTS,
            "reset": _CHANGES,
            "end": _CHANGES,
            "first": {"type": ["integer", "null"]},
            "summary": {"type": "string"},
        }
    ),
    query={"one": {"type": "string"}, "other": {"type": "string"}},
    errors=_NO_EPISODE,
)
_TRAINING = Doc(
    "A run while it trains: charts, alarms and tables by policy version, or by time without one",
    object_of({"total": _COUNT, "notes": _ARRAY, **dict.fromkeys(("alarms", "charts", "tables"), _ARRAY)}),
    query=_CONDITIONS,
    errors=_NO_CONDITION,
)
_ROLLOUTS = Doc(
    "The newest episodes of a task as lanes of one trie, with their advantages, and where they part",
    object_of(
        {
            **dict.fromkeys(("total", "scored"), _COUNT),
            **dict.fromkeys(("lanes", "partings"), _OBJECTS),
            "kinds": _OBJECT,
            "told": {"type": ["array", "null"]},
            "mean": {"type": ["number", "null"]},
            "equal": {"type": "boolean"},
        }
    ),
    query={"task_id": {"type": "string"}, **_CONDITIONS},
    errors={422: "No such condition, or no task_id"},
)
_EPISODE = Doc(
    "One recorded episode",
    object_of(
        {
            **dict.fromkeys(("episode", "hashes", "drawings"), _OBJECT),
            **dict.fromkeys(("transcript", "reviews"), _OBJECTS),
        }
    ),
    errors=_NO_EPISODE,
)
_NAME = {"type": ["string", "null"]}
_NEIGHBOURS = Doc(
    "The episodes before and after one, among those that match",
    object_of(
        {
            "position": {"type": ["integer", "null"]},
            "total": _COUNT,
            **dict.fromkeys(("previous", "next"), _NAME),
        }
    ),
    query={**_CONDITIONS, "sort": {"type": "string"}},
    errors=_NO_CONDITION,
)
_TEXT = {"type": "string"}
_REVIEW = Doc(
    "Write a review of an episode. The last one of a rater stands; an empty one takes it back",
    object_of({"reviews": _OBJECTS}),
    body={
        "type": "object",
        "required": ["rater"],
        "properties": {
            "rater": _TEXT,
            "rating": {"type": ["integer", "null"], "minimum": 1, "maximum": 5},
            "tags": {"type": "array", "items": _TEXT},
            "note": _TEXT,
        },
    },
    errors={**_NO_EPISODE, 409: "The folder of the record takes no file", 422: "No review"},
)
_PAGE = Doc("One recorded episode as an HTML file to keep", "text/html", gives=_FILE, errors=_NO_EPISODE)
_IMAGE = Doc("An image or sound of a recorded episode", "*/*", gives=_FILE, errors={404: "No such image or sound"})
