"""What the suite expects beside tools: resources, prompts, completions, and a tool whose schema no signature has."""

from __future__ import annotations

import base64
import json
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.prompts import Message, Prompt
from fastmcp.tools import FunctionTool
from mcp_types import (
    CompletionArgument,
    CompletionContext,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    PromptListChangedNotification,
    PromptReference,
    ResourceTemplateReference,
    TextResourceContents,
)

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)
"""One pixel, red."""

SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
"""Keywords that no signature gives; a listing must keep them."""

CITIES = ("paris", "park", "party", "test", "testing")

server = FastMCP("conformance")
"""One for all instances: FastMCP's caches keep what it parses."""


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """Text that stays the same."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """A picture that stays the same."""
    return PNG


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """Text that clients subscribe to; the tool test_update_resource says that it changed."""
    return "This resource is watched."


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> str:
    """Data by id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.prompt
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
    """A prompt that embeds a resource."""
    text = TextResourceContents(uri=resourceUri, mime_type="text/plain", text="Embedded resource content for testing.")
    return [
        Message(EmbeddedResource(type="resource", resource=text)),
        Message("Please process the embedded resource above."),
    ]


@server.prompt
def test_prompt_with_image() -> list[Message]:
    """A prompt with a picture."""
    image = ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")
    return [Message(image), Message("Please analyze the image above.")]


@server.prompt
def test_input_required_result_prompt(ctx: Context) -> Any:
    """A prompt that asks its client for input first."""
    answer = (ctx.input_responses or {}).get("user_context")
    content = getattr(answer, "content", None)
    if content is None:
        return InputRequiredResult(
            input_requests={"user_context": asked("What context should the prompt use?", context="string")}
        )
    return f"Use this context: {content['context']}"


@server.completion
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> list[str]:
    """What the arguments of the prompts begin with."""
    return [city for city in CITIES if city.startswith(argument.value)]


def json_schema_2020_12_tool(
    name: str | None = None,
    address: dict[str, str] | None = None,
    contactMethod: str | None = None,
    phone: str | None = None,
    email: str | None = None,
) -> str:
    """Tool with JSON Schema 2020-12 features."""
    return f"{name}: {phone or email}"


server.add_tool(FunctionTool.from_function(json_schema_2020_12_tool).model_copy(update={"parameters": SCHEMA_2020_12}))


def asked(message: str, **properties: str) -> ElicitRequest:
    """A form with one required field per property: name and JSON type."""
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


async def change_prompts(ctx: Context) -> None:
    """Add a prompt, or take it away again, and say so."""
    name = "test_dynamic_prompt"
    if any(prompt.name == name for prompt in await server.list_prompts()):
        server.local_provider.remove_prompt(name)
    else:
        server.add_prompt(
            Prompt.from_function(lambda: "A prompt that came later.", name=name, description="Came later.")
        )
    await ctx.send_notification(PromptListChangedNotification())
