"""Convert the rows of a source to tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import ValidationError

from mcpenv.errors import InvalidTasks, InvalidVerifier, meant
from mcpenv.rewards.verifiers.specs import parse
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.tasks import LABELS, Task
from mcpenv_client.types.values import decode, encode
from mcpenv_client.wire.faults import faults, place_of

_OPEN = ("metadata", "options")
"""Fields of a task that contain named values."""

_NESTED = ("options", "limits", "metadata", "oracle", "verifier", "reward_range", "tags")
_WITHOUT_NULLS = ("options", "limits", "oracle", "verifier")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a source.

    Attributes:
        place: the location for errors: ``tasks.jsonl, line 3``.
        data: the content of the row.
        split: the split that its source gives it; None if the row itself names one.
        index: 0-based number in its source.
    """

    place: str
    data: Any
    split: str | None = None
    index: int = 0


class Columns:
    """The mapping of a source's columns to the fields of a task.

    Args:
        mapping: a field for each named column: a field of `Task`, ``metadata.NAME``, ``options.NAME``, or None to leave
            the column out. A column that a row does not have is a path into an object: ``reward_model.ground_truth``.
            With a mapping, other columns that are not a field of a task go to the metadata, and so do ``level``,
            ``family`` and ``tags``, which have other meanings in other data. Rows without an id are named by split and
            number. None: every column is a field.
        table: True if the source is a table (Parquet, a dataset), where every row has every column. Null and NaN then
            mean "not given", and nested values may be JSON text.

    Raises:
        InvalidTasks: if the mapping names an unknown field, or one field twice.
    """

    def __init__(self, mapping: Mapping[str, str | None] | None = None, *, table: bool = False) -> None:
        self._mapping = None if mapping is None else dict(mapping)
        self._table = table
        self._unseen = set(self._mapping or ())
        self._known: dict[Any, None] = {}
        given = [target for target in (self._mapping or {}).values() if target is not None]
        for column, target in (self._mapping or {}).items():
            if target is not None and not _is_field(target):
                raise InvalidTasks("columns", f"a task has no field {target!r}", field=column)
            if target is not None and given.count(target) > 1:
                raise InvalidTasks("columns", f"two columns are mapped to {target!r}", field=column)

    def task(self, row: Row, split: str | None) -> Task:
        """Convert a row to a task.

        Args:
            row: the row.
            split: the split of rows that name none.

        Raises:
            InvalidTasks: with the row and the field.
        """
        fields = row.data
        if not isinstance(fields, Task):
            if not isinstance(fields, Mapping):
                raise InvalidTasks(row.place, f"a task must be an object; this is {_kind(fields)}")
            fields = self._with_place(row, self._fields(row), split)
        try:
            # Validated as JSON: tuples may be lists, dates are text, and nothing is shared with the source.
            task = Task.model_validate_json(_text(row, fields), strict=True)
        except ValidationError as error:
            raise self._fault(row, error) from error
        if task.verifier is not None:
            try:
                parse(task.verifier)
            except InvalidVerifier as error:
                raise InvalidTasks(row.place, error.reason, field=error.path) from error
        return task

    def refuse_unseen(self) -> None:
        """Refuse a column of the mapping that none of the rows had which have become tasks.

        Raises:
            InvalidTasks: with the column.
        """
        for column in sorted(self._unseen if self._known else ()):
            message = f"no row has this column. The columns are {_shown(self._known)}{meant(column, self._known)}"
            raise InvalidTasks("columns", message, field=column)

    def _with_place(self, row: Row, fields: dict[str, Any], split: str | None) -> dict[str, Any]:
        """Add split and id to the fields, if the row does not have them."""
        if row.split is not None and fields.setdefault("split", row.split) != row.split:
            raise InvalidTasks(row.place, f"the row belongs to the split {row.split!r}", field="split")
        if split is not None:
            fields.setdefault("split", split)
        if self._mapping is not None and "id" not in fields:
            fields["id"] = f"{fields.get('split', 'train')}-{row.index}"
        return fields

    def _fields(self, row: Row) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        named: dict[str, dict[str, Any]] = {}
        for column, value in self._cells(row).items():
            field, name = self._target(str(column))
            if field is None or (self._table and (value is None or (isinstance(value, float) and math.isnan(value)))):
                continue
            if field == "prompt" and name is None and isinstance(value, list):
                value = _prompt_of(row, value)
            if name is not None:
                named.setdefault(field, {})[name] = value
            else:
                fields[field] = self._cell(row, field, value) if self._table else value
        for field, values in named.items():
            own = fields.get(field, {})
            if not isinstance(own, dict):
                raise InvalidTasks(row.place, f"an object is needed; this is {_kind(own)}", field=field)
            fields[field] = {**own, **values}
        return fields

    def _cells(self, row: Row) -> Mapping[str, Any]:
        """Return the values of a row by column, with those that the mapping names by a path.

        Raises:
            InvalidTasks: a column that the mapping needs is not there.
        """
        paths: dict[str, Any] = {}
        for column, field in (self._mapping or {}).items():
            if column in row.data or field is None:
                continue
            try:
                paths[column] = _at(row.data, column)
            except KeyError as error:
                if self._table or field in ("id", "prompt"):
                    message = f"there is no column {column!r}. The columns are {_shown(row.data)}"
                    raise InvalidTasks(row.place, message + meant(column, row.data), field=field) from error
        if self._unseen:
            self._known.update(dict.fromkeys(row.data))
            self._unseen -= {*row.data, *paths}
        return {**row.data, **paths}

    def _target(self, column: str) -> tuple[str | None, str | None]:
        """Return the field of a column, and for ``metadata`` and ``options`` the name of the value in it."""
        if self._mapping is None:
            return column, None
        if column in self._mapping:
            field, dot, name = (self._mapping[column] or "").partition(".")
            return field or None, name if dot else None
        is_own = column in Task.model_fields and column not in LABELS
        return (column, None) if is_own else ("metadata", column)

    def _cell(self, row: Row, field: str, value: Any) -> Any:
        if field in _NESTED and isinstance(value, str):
            try:
                return decode(value.encode())
            except ValueError as error:
                raise InvalidTasks(row.place, f"the text is not JSON: {error}", field=field) from error
        return _without_nulls(value) if field in _WITHOUT_NULLS else value

    def _fault(self, row: Row, error: ValidationError) -> InvalidTasks:
        first = faults(error)[0]
        if self._mapping is None and list(first["loc"]) == ["id"] and first["type"] == "missing":
            message = "it has no id. Name the column with the prompt, and rows get ids; or name the column with the id"
            if not {"id", "prompt"} & set(row.data):
                message = f"it has no id and no prompt. Say which of its columns ({_shown(row.data)}) is which"
            own = "prompt" if "prompt" in row.data else "NAME"
            return InvalidTasks(row.place, f"{message}, with columns= (--columns prompt={own})")
        field = place_of(first["loc"])
        message = str(first["msg"])
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            message = "a task has no such field. Put your own fields into metadata (from a file, with columns=)"
        return InvalidTasks(row.place, message, field=field)


def _prompt_of(row: Row, chat: list[Any]) -> str:
    """Return the text of a chat that the system and the user begin.

    Raises:
        InvalidTasks: it has other messages, or content that is no text.
    """
    asked = [each for each in chat if isinstance(each, Mapping) and each.get("role") in ("system", "user")]
    texts = [str(each["content"]) for each in asked if isinstance(each.get("content"), str)]
    if not chat or len(texts) < len(chat):
        raise InvalidTasks(
            row.place,
            "a text is needed, or messages of the system and the user. Keep a chat with others in the metadata "
            "(columns=, or --columns metadata.messages=NAME)",
            field="prompt",
        )
    return "\n\n".join(texts)


def parse_columns(text: str) -> dict[str, str | None]:
    """Return the mapping that ``FIELD=COLUMN,FIELD=COLUMN`` describes. A FIELD that no task has is in the metadata.

    Raises:
        InvalidTasks: a part is not of this form.
    """
    mapping: dict[str, str | None] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        field, equals, column = part.partition("=")
        if not equals or not field or not column:
            raise InvalidTasks("columns", f"{part!r}: write FIELD=COLUMN, such as prompt=question")
        if column in mapping:
            raise InvalidTasks("columns", f"the column {column!r} is named twice")
        mapping[column] = field if _is_field(field) or "." in field else f"metadata.{field}"
    return mapping


def _text(row: Row, data: Any) -> bytes:
    """Return the JSON text of a row."""
    try:
        return encode(data, "task")
    except NotSerializable as error:
        raise InvalidTasks(row.place, error.reason, field=error.path.removeprefix("task.")) from error


def _is_field(target: str) -> bool:
    field, dot, name = target.partition(".")
    return (field in _OPEN and bool(name)) if dot else field in Task.model_fields


def _without_nulls(value: Any) -> Any:
    """Remove null values: a cell of a table has the keys of all other rows too, as nulls."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _at(data: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of names with dots between them.

    Raises:
        KeyError: there is none.
    """
    value: Any = data
    for name in path.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(path)
        value = value[name]
    return value


def _shown(columns: Iterable[Any]) -> str:
    return ", ".join(map(str, islice(columns, 10)))


def _kind(value: Any) -> str:
    return "null" if value is None else f"of the type {type(value).__name__}"
