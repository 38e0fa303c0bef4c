"""Write the return values of one tool as JSON, and check them against the tool's output schema."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from fastmcp.exceptions import ToolError
from fastmcp.utilities.types import get_cached_typeadapter
from pydantic import PydanticSchemaGenerationError, TypeAdapter

from mcpenv_client.types.json_types import UNTYPED, plain, runs_no_code, writer_of, written_in_order

MAX_FAULT = 300
"""Maximum characters about a value that does not fit its schema."""


class Returns:
    """The return values of one tool.

    Args:
        hint: the annotation of the return value.
        schema: the output schema; None if the tool has none.
        given: True if the author gave the schema, so that it may differ from the annotation.
    """

    def __init__(self, hint: Any, schema: dict[str, Any] | None, *, given: bool) -> None:
        self._hint = Any if hint in (inspect.Signature.empty, None, ...) or isinstance(hint, str) else hint
        self._given = given
        self.schema = schema
        self.wraps = bool(schema and schema.get("x-fastmcp-wrap-result"))

    def write(self, value: Any) -> Any:
        """Return a value as plain JSON data.

        Raises:
            pydantic_core.PydanticSerializationError, TypeError: it has no JSON form.
        """
        try:
            return written_in_order(value, self._written)
        except AttributeError:
            # Pydantic takes it for a model that it is not. The check against the schema tells.
            return self.write_untyped(value)

    def write_untyped(self, value: Any) -> Any:
        """Return a value as plain JSON data, as if the tool had no annotation.

        Raises:
            pydantic_core.PydanticSerializationError, TypeError: it has no JSON form.
        """
        return UNTYPED.to_python(value, mode="json", warnings=False, fallback=plain)

    def _written(self, value: Any) -> Any:
        return self._writer.to_python(value, mode="json", warnings=False, fallback=plain)

    def check(self, structured: dict[str, Any] | None, text: bytes = b"") -> None:
        """Raise if a structured result does not fit the output schema, so that an MCP client would refuse it.

        Args:
            structured: the result, wrapped if the schema says so.
            text: JSON text of the return value. With it, most checks take no longer than writing it.

        Raises:
            ToolError: naming the field.
        """
        if self.schema is None or (text and self._is_of_the_type(text)):
            return
        if structured is None:
            raise ToolError("result: there is no structured content, which the output schema requires")
        fault = self._fault_of(structured)
        if fault is not None:
            path = [*fault.absolute_path][self.wraps :]
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
            raise ToolError(f"result{where}: {fault.message[:MAX_FAULT]}, which does not fit the output schema")

    def _is_of_the_type(self, text: bytes) -> bool:
        """Return True if the text is exactly the text that pydantic writes for a valid value of the type."""
        if self._quick is None:
            return False
        try:
            return self._quick.dump_json(self._quick.validate_json(text, strict=True)) == text
        except ValueError:
            return False

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        try:
            return get_cached_typeadapter(self._hint)
        except PydanticSchemaGenerationError:
            return TypeAdapter(Any)

    @functools.cached_property
    def _writer(self) -> Any:
        return writer_of(self._adapter.core_schema, unchecked=True)

    @functools.cached_property
    def _quick(self) -> TypeAdapter[Any] | None:
        return None if self._given or not runs_no_code(self._adapter.core_schema) else self._adapter

    def _fault_of(self, structured: dict[str, Any]) -> Any:
        """Return the first fault by path, or None. A schema that is none, or has other documents, checks nothing."""
        import jsonschema  # type: ignore[import-untyped]  # slow to import, and seldom needed
        from jsonschema.validators import validator_for  # type: ignore[import-untyped]
        from referencing import Registry
        from referencing.exceptions import Unresolvable

        kind = validator_for(self.schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(self.schema)
            faults = kind(self.schema, registry=Registry()).iter_errors(structured)
            # Not the first one found: jsonschema looks at some members in the order of a set, which differs by process.
            return min(faults, key=lambda fault: [str(part) for part in fault.absolute_path], default=None)
        except (jsonschema.SchemaError, Unresolvable):
            return None
