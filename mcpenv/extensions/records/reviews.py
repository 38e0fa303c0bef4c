"""Reviews of recorded episodes by people: ratings, tags and notes, in a file beside the record.

Each line of ``reviews.jsonl`` is one review. The last one of a rater stands; earlier ones stay in the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from mcpenv_client.errors import InvalidMessage

FILE = "reviews.jsonl"
MAX_FILE_BYTES = 256 << 20
"""Maximum bytes of the file that are read."""

_LINE = StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]*$")


class Review(BaseModel):
    """What one person says of one episode.

    Attributes:
        episode: the id of the episode.
        rater: the person's name, 1 to 100 characters.
        rating: 1, the worst, to 5; None: not rated.
        tags: at most 20, of 1 to 100 characters each.
        note: at most 10,000 characters.
        at: seconds since the epoch, UTC.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    episode: str
    rater: Annotated[str, _LINE]
    rating: Annotated[int, Field(strict=True, ge=1, le=5)] | None = None
    tags: Annotated[tuple[Annotated[str, _LINE], ...], Field(max_length=20)] = ()
    note: Annotated[str, StringConstraints(max_length=10_000)] = ""
    at: float = 0.0

    @property
    def empty(self) -> bool:
        """True if it says nothing, which takes the rater's earlier review back."""
        return self.rating is None and not self.tags and not self.note.strip()


Said = Mapping[str, Sequence[Review]]
"""The reviews that stand, by the id of their episode, in the order in which their raters first appear."""


def review_of(data: Mapping[str, Any]) -> Review:
    """Return a checked review, as of now.

    Raises:
        InvalidMessage: naming the field.
    """
    try:
        return Review.model_validate({**data, "at": time.time()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = [*map(str, first["loc"])]
        raise InvalidMessage(
            f"{'.'.join(place)}: {first['msg']}", errors=[{"loc": place, "msg": first["msg"], "type": first["type"]}]
        ) from None


class Reviews:
    """The reviews of a record. Several processes may write to them. Its methods block.

    Args:
        record: the folder of the record.
    """

    def __init__(self, record: Path) -> None:
        self._record = record
        self.file = record / FILE
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._said: Said = {}
        self.unreadable = 0
        """The number of lines that are no reviews."""

    def said(self) -> Said:
        """Return the reviews that stand. They are read again when the file has changed: compare by identity.

        A link out of the record, a pipe and a file of more than 256 MiB have none.
        """
        with self._lock:
            seen = text = None
            # `resolve` raises a RuntimeError for a loop before Python 3.13.
            with contextlib.suppress(OSError, RuntimeError):
                path = self.file.resolve(strict=True)
                status = path.stat()
                seen = (status.st_ino, status.st_size, status.st_mtime_ns)
                if seen != self._seen and path.is_file() and path.is_relative_to(self._record.resolve()):
                    text = path.read_bytes() if status.st_size <= MAX_FILE_BYTES else None
            if seen != self._seen:
                self._seen, self._said = seen, self._of(text or b"")
            return self._said

    def _of(self, text: bytes) -> Said:
        found: dict[str, dict[str, Review]] = defaultdict(dict)
        self.unreadable = 0
        for line in text.splitlines():
            try:
                review = Review.model_validate_json(line)
            except ValidationError:
                self.unreadable += 1
                continue
            found[review.episode][review.rater] = review
        standing = {each: [one for one in raters.values() if not one.empty] for each, raters in found.items()}
        return {each: reviews for each, reviews in standing.items() if reviews}

    def write(self, review: Review) -> None:
        """Append a review.

        Raises:
            OSError: it was not written.
        """
        line = json.dumps(review.model_dump(), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.file, flags, 0o666)
        with open(descriptor, "ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line  # a writer was stopped in its line
            file.write(line)


def said_in(records: Iterable[Reviews]) -> Said:
    """Return the reviews that stand of several records."""
    found: dict[str, dict[str, Review]] = defaultdict(dict)
    for record in records:
        for episode, reviews in record.said().items():
            found[episode] |= {each.rater: each for each in reviews}
    return {episode: list(raters.values()) for episode, raters in found.items()}


def facts_of(reviews: Sequence[Review]) -> dict[str, Any]:
    """Return what rows of episodes have of their reviews.

    ``rating`` is the mean of the raters, None without a rating; ``raters`` their number, ``review_tags`` all tags,
    ``note`` all notes, or None.
    """
    ratings = [each.rating for each in reviews if each.rating is not None]
    return {
        "rating": statistics.fmean(ratings) if ratings else None,
        "raters": len(reviews),
        "review_tags": sorted({tag for each in reviews for tag in each.tags}),
        "note": "\n".join(each.note for each in reviews if each.note) or None,
    }


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much two raters agree on the episodes that both rated.

    Attributes:
        one, other: their names.
        episodes: the number of these episodes.
        equal, close: the shares with the same rating, and with ratings that differ by at most 1.
        kappa: Cohen's kappa with quadratic weights: 1 for equal ratings, 0 for the agreement of chance; None if each
            rater always gave the same rating.
    """

    one: str
    other: str
    episodes: int
    equal: float
    close: float
    kappa: float | None

    def to_plain(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


def agreements(said: Said) -> list[Agreement]:
    """Return the agreement of each two raters who rated an episode both, those with the most episodes first."""
    rated: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for reviews in said.values():
        own = sorted((each.rater, each.rating) for each in reviews if each.rating is not None)
        for (one, first), (other, second) in combinations(own, 2):
            rated[one, other].append((first, second))
    found = [
        Agreement(
            *raters,
            len(pairs),
            statistics.fmean(one == other for one, other in pairs),
            statistics.fmean(abs(one - other) <= 1 for one, other in pairs),
            _kappa(pairs),
        )
        for raters, pairs in rated.items()
    ]
    return sorted(found, key=lambda each: -each.episodes)


def _kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Return Cohen's kappa with quadratic weights (J. Cohen, Psychological Bulletin 70, 1968)."""
    ones, others = (Counter(each) for each in zip(*pairs, strict=True))
    observed = sum((one - other) ** 2 for one, other in pairs) / len(pairs)
    squares = (n * m * (one - other) ** 2 for one, n in ones.items() for other, m in others.items())
    by_chance = sum(squares) / len(pairs) ** 2
    return None if by_chance == 0 else 1 - observed / by_chance
