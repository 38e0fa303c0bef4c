"""Serve the suite's other fixtures: resources, prompts, completions, and a tool with a hand-written schema."""

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
"""A PNG image of one red pixel."""

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
"""A schema with keywords that no signature produces. A listing must preserve them."""

CITIES = ("paris", "park", "party", "test", "testing")

server = FastMCP("conformance")
"""The server of all instances. One is shared, because FastMCP's caches never release what they parse."""


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """Return a constant text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """Return a constant picture."""
    return PNG


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """Return a text that clients subscribe to. The tool test_update_resource announces a change of it."""
    return "This resource is watched."


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> str:
    """Return data by id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.prompt
def test_simple_prompt() -> str:
    """Return a prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Return a prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
    """Return a prompt that embeds a resource."""
    text = TextResourceContents(uri=resourceUri, mime_type="text/plain", text="Embedded resource content for testing.")
    return [
        Message(EmbeddedResource(type="resource", resource=text)),
        Message("Please process the embedded resource above."),
    ]


@server.prompt
def test_prompt_with_image() -> list[Message]:
    """Return a prompt with a picture."""
    image = ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")
    return [Message(image), Message("Please analyze the image above.")]


@server.prompt
def test_input_required_result_prompt(ctx: Context) -> Any:
    """Return a prompt after asking the client for input."""
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
    """Return the cities that start with the argument."""
    return [city for city in CITIES if city.startswith(argument.value)]


def json_schema_2020_12_tool(
    name: str | None = None,
    address: dict[str, str] | None = None,
    contactMethod: str | None = None,
    phone: str | None = None,
    email: str | None = None,
) -> str:
    """Return a text. The schema has JSON Schema 2020-12 features."""
    return f"{name}: {phone or email}"


server.add_tool(FunctionTool.from_function(json_schema_2020_12_tool).model_copy(update={"parameters": SCHEMA_2020_12}))


def asked(message: str, **properties: str) -> ElicitRequest:
    """Return a form with one required field per property: name and JSON type."""
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


async def change_prompts(ctx: Context) -> None:
    """Add a prompt, or remove it again, and notify the client."""
    name = "test_dynamic_prompt"
    if any(prompt.name == name for prompt in await server.list_prompts()):
        server.local_provider.remove_prompt(name)
    else:
        server.add_prompt(
            Prompt.from_function(lambda: "A prompt that came later.", name=name, description="Came later.")
        )
    await ctx.send_notification(PromptListChangedNotification())
