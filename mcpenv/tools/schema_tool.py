"""Define tools from their schemas alone, because another process runs them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastmcp.tools.base import Tool as Component
from mcp_types import ToolAnnotations
from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from mcpenv_client.types.json_types import copied
from mcpenv_client.types.tools import Tool

from .definition import ToolDefinition, ToolOptions
from .returns import Returns


class SchemaTool(ToolDefinition):
    """The definition of a tool that another process runs. That process checks the arguments.

    Its function is async and takes the arguments as one ``dict``.

    Args:
        spec: the tool as agents see it.
        options: timeout, end and concurrency. Other options have no effect.
        icons: icons of the tool.
        bound: arguments that the environment sets itself, and that agents must not give.
    """

    __slots__ = ("_bound",)

    def __init__(
        self,
        spec: Tool,
        options: ToolOptions | None = None,
        icons: list[Any] | None = None,
        bound: Collection[str] = (),
    ) -> None:
        annotations = None if spec.annotations is None else ToolAnnotations.model_validate(spec.annotations)
        component = Component(
            name=spec.name,
            title=spec.title,
            description=spec.description,
            parameters=spec.input_schema,
            output_schema=spec.output_schema,
            annotations=annotations,
            meta=spec.meta,
            icons=icons,
        )
        self.name = spec.name
        self.spec = spec
        self.component = component  # type: ignore[assignment]
        self.is_async = True
        self.injected = False
        self.plain_return = None
        self.returns = Returns(Any, spec.output_schema, given=True)
        self.parameter_names = ()
        self._bound = tuple(bound)
        self.options = options or ToolOptions()
        self.timeout_s, self.terminal = self.options.timeout_s, self.options.terminal
        self.concurrent = self.options.concurrent

    def validate(self, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the JSON object of arguments as one argument. Only bound names are checked.

        Raises:
            pydantic.ValidationError: a bound argument is given.
        """
        given = [
            InitErrorDetails(type="extra_forbidden", loc=(name,), input=arguments[name])
            for name in self._bound
            if name in arguments
        ]
        if given:
            raise ValidationError.from_exception_data(self.name, given)
        return (copied(arguments),), {}
