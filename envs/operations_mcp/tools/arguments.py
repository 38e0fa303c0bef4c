"""The types of arguments that several groups of tools have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mcpenv.extensions.generated_worlds import Row

Id = Annotated[int, Field(ge=1, le=1_000_000_000)]
Short = Annotated[str, Field(min_length=1, max_length=200)]
Long = Annotated[str, Field(min_length=1, max_length=4000)]
ServiceName = Annotated[
    str,
    Field(
        min_length=1, max_length=60, description="The name of a service; list_services has all", examples=["gateway"]
    ),
]
AnyService = Annotated[
    str | None, Field(max_length=60, description="The name of a service; none for all", examples=["gateway"])
]
Minutes = Annotated[int, Field(ge=1, le=240, description="How many minutes back")]
Words = Annotated[str | None, Field(max_length=200, description="Words that it has; none for all")]
Rows = list[Row]
