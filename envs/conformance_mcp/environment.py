"""Provide all fixtures that the official MCP conformance suite requires of a server."""

from __future__ import annotations

import asyncio
import io
import wave
from typing import Annotated, Any

from conformance_server import PNG, asked, change_prompts, server
from fastmcp.utilities.types import Audio, Image
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitResult,
    EmbeddedResource,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ResourceUpdatedNotification,
    ResourceUpdatedNotificationParams,
    SamplingCapability,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import Field

from mcpenv import Context, MCPEnvironment, ToolError

PAUSE_S = 0.05
"""Seconds between two messages of a tool, so that a client receives them separately."""

ALL_DEFAULTS: dict[str, Any] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}

_OPTIONS = ["option1", "option2", "option3"]
_TITLED = [
    {"const": "value1", "title": "First"},
    {"const": "value2", "title": "Second"},
    {"const": "value3", "title": "Third"},
]
ALL_CHOICES: dict[str, Any] = {
    "untitledSingle": {"type": "string", "enum": _OPTIONS},
    "titledSingle": {"type": "string", "oneOf": _TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
}


class ConformanceEnvironment(MCPEnvironment):
    """Show every feature of MCP.

    Description:
        The fixtures of the official conformance suite (npm ``@modelcontextprotocol/conformance``): tools by the names
        that its scenarios call; resources, prompts and completions are in ``conformance_server.py``. Nothing to solve.

    Tools:
        test_simple_text(), test_image_content(), test_audio_content(), test_embedded_resource(),
        test_multiple_content_types(), test_error_handling(): kinds of content.
        test_mirrored_argument(region): an argument that is also sent as a header.
        test_tool_with_logging(), test_logging_tool(), test_tool_with_progress(), test_reconnection():
        messages during a call.
        test_sampling(prompt), test_elicitation(message), test_elicitation_sep1034_defaults(),
        test_elicitation_sep1330_enums(): questions to clients of the handshake era.
        test_input_required_result_*(), test_streaming_elicitation(), test_missing_capability(): the same, 2026-07-28.
        test_trigger_tool_change(), test_trigger_prompt_change(), test_update_resource(uri): changes to subscribe to.
        json_schema_2020_12_tool(...): a schema that a listing must preserve.

    Observation:
        The tool's.

    Reward:
        None: no call is scored.

    Start:
        Every instance has the same initial state. The seed has no effect.

    End:
        Never.

    Arguments:
        None.

    Version:
        0.1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "0.1.0"

    def __init__(self) -> None:
        super().__init__(server)
        self._add_contents()
        self._add_messages()
        self._add_questions()
        self._add_input_required()
        self._add_input_required_with_state()
        self._add_changes()

    def _add_contents(self) -> None:
        @self.tool
        def test_simple_text() -> str:
            """Return simple text."""
            return "This is a simple text response for testing."

        @self.tool
        def test_image_content() -> Image:
            """Return a picture."""
            return Image(data=PNG, format="png")

        @self.tool
        def test_audio_content() -> Audio:
            """Return a sound."""
            return Audio(data=_silence(), format="wav")

        @self.tool
        def test_embedded_resource() -> EmbeddedResource:
            """Return an embedded resource."""
            return _embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")

        @self.tool(output_schema=None)
        def test_multiple_content_types() -> list[Any]:
            """Return text, picture and resource together."""
            return [
                TextContent(type="text", text="Multiple content types test:"),
                Image(data=PNG, format="png"),
                _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
            ]

        @self.tool
        def test_mirrored_argument(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
            """Return the argument, which clients repeat as a header for routers."""
            return f"Served in {region}."

        @self.tool
        def test_error_handling() -> str:
            """Raise an error, always."""
            raise ToolError("This tool intentionally returns an error for testing")

    def _add_messages(self) -> None:
        @self.tool
        async def test_tool_with_logging(ctx: Context) -> str:
            """Log three messages."""
            await ctx.info("Tool execution started")
            await asyncio.sleep(PAUSE_S)
            await ctx.info("Tool processing data")
            await asyncio.sleep(PAUSE_S)
            await ctx.info("Tool execution completed")
            return "Logged."

        @self.tool
        async def test_logging_tool(ctx: Context) -> str:
            """Log a message, if the request asked for it."""
            await ctx.info("A message for those who asked for messages")
            return "Done."

        @self.tool
        async def test_tool_with_progress(ctx: Context) -> str:
            """Report progress."""
            for progress in (0, 50, 100):
                await ctx.report_progress(progress, 100)
                await asyncio.sleep(PAUSE_S)
            return "Completed."

        @self.tool
        async def test_reconnection(ctx: Context) -> str:
            """Close the response stream early. The client reconnects for the result."""
            await ctx.close_sse_stream()
            await asyncio.sleep(2 * PAUSE_S)
            return "Reconnected."

    def _add_questions(self) -> None:
        @self.tool
        async def test_sampling(prompt: str, ctx: Context) -> str:
            """Ask the client's model."""
            message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
            answer = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
            return f"LLM response: {getattr(answer.content, 'text', answer.content)}"

        @self.tool
        async def test_elicitation(message: str, ctx: Context) -> str:
            """Ask the client's user."""
            properties = {
                "username": {"type": "string", "description": "User's response"},
                "email": {"type": "string", "description": "User's email address"},
            }
            return f"User response: {await _ask(ctx, message, properties, required=list(properties))}"

        @self.tool
        async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
            """Ask with a default for each primitive type."""
            return f"Elicitation completed: {await _ask(ctx, 'Please review.', ALL_DEFAULTS)}"

        @self.tool
        async def test_elicitation_sep1330_enums(ctx: Context) -> str:
            """Ask with every kind of choice."""
            return f"Elicitation completed: {await _ask(ctx, 'Please choose.', ALL_CHOICES)}"

    def _add_input_required(self) -> None:
        @self.tool(output_schema=None)
        def test_input_required_result_elicitation(ctx: Context) -> Any:
            """Ask for a name."""
            name = _field(ctx, "user_name", "name")
            if name is None:
                return _require(user_name=asked("What is your name?", name="string"))
            return f"Hello, {name}!"

        @self.tool(output_schema=None)
        def test_input_required_result_sampling(ctx: Context) -> Any:
            """Ask the client's model for a capital."""
            answer = _answer(ctx, "capital_question")
            if answer is None:
                return _require(capital_question=_sampling("What is the capital of France?"))
            return str(getattr(answer.content, "text", answer.content))

        @self.tool(output_schema=None)
        def test_input_required_result_list_roots(ctx: Context) -> Any:
            """Ask for the client's roots."""
            answer = _answer(ctx, "client_roots")
            if answer is None:
                return _require(client_roots=ListRootsRequest())
            return f"Roots: {', '.join(str(root.uri) for root in answer.roots)}"

        @self.tool(output_schema=None)
        def test_input_required_result_capabilities(ctx: Context) -> Any:
            """Ask only for input that the client declared that it can provide."""
            can = ctx.session.client_capabilities or ClientCapabilities()
            requests: dict[str, InputRequest] = {}
            if can.sampling is not None:
                requests["capital_question"] = _sampling("What is the capital of France?")
            if can.elicitation is not None:
                requests["user_name"] = asked("What is your name?", name="string")
            return InputRequiredResult(input_requests=requests) if requests else "There is nothing that you can answer."

        @self.tool(output_schema=None)
        def test_streaming_elicitation(ctx: Context) -> Any:
            """Ask for a confirmation by the result, without a request from the server."""
            if _field(ctx, "confirm", "ok") is None:
                return _require(confirm=asked("Please confirm", ok="boolean"))
            return "Confirmed."

        @self.tool
        def test_missing_capability(ctx: Context) -> str:
            """Raise an error unless the client can sample."""
            can = ctx.session.client_capabilities
            if can is None or can.sampling is None:
                needed = ClientCapabilities(sampling=SamplingCapability())
                raise MCPError(
                    MISSING_REQUIRED_CLIENT_CAPABILITY,
                    "This tool needs a client with the sampling capability.",
                    {"requiredCapabilities": needed.model_dump(by_alias=True, exclude_none=True)},
                )
            return "The client can sample."

    def _add_input_required_with_state(self) -> None:
        @self.tool(output_schema=None)
        def test_input_required_result_request_state(ctx: Context) -> Any:
            """Ask for a confirmation, with state that the client returns."""
            return _confirm(ctx, "confirming")

        @self.tool(output_schema=None)
        def test_input_required_result_tampered_state(ctx: Context) -> Any:
            """Ask for a confirmation. A client that changes the state is refused before the tool runs."""
            return _confirm(ctx, "sealed")

        @self.tool(output_schema=None)
        def test_input_required_result_multiple_inputs(ctx: Context) -> Any:
            """Ask three questions at once."""
            if ctx.request_state != "three" or len(ctx.input_responses or {}) < 3:
                return _require(
                    "three",
                    user_name=asked("What is your name?", name="string"),
                    greeting=_sampling("Generate a greeting"),
                    client_roots=ListRootsRequest(),
                )
            return f"Hello, {_field(ctx, 'user_name', 'name')}!"

        @self.tool(output_schema=None)
        def test_input_required_result_multi_round(ctx: Context) -> Any:
            """Ask one question after the other."""
            name, color = _field(ctx, "step1", "name"), _field(ctx, "step2", "color")
            state = ctx.request_state or ""
            if state.startswith("name:") and color is not None:
                return f"{state.removeprefix('name:')} likes {color}."
            if state == "began" and name is not None:
                return _require(f"name:{name}", step2=asked("Step 2: What is your favorite color?", color="string"))
            return _require("began", step1=asked("Step 1: What is your name?", name="string"))

    def _add_changes(self) -> None:
        self.has_dynamic_tool = False

        def test_dynamic_tool() -> str:
            """Return a text. This tool is added and removed."""
            return "A tool that came later."

        @self.tool
        def test_trigger_tool_change() -> str:
            """Add a tool, or remove it again."""
            if self.has_dynamic_tool:
                self.remove_tool("test_dynamic_tool")
            else:
                self.tool(test_dynamic_tool)
            self.has_dynamic_tool = not self.has_dynamic_tool
            return "Changed the tools."

        @self.tool
        async def test_trigger_prompt_change(ctx: Context) -> str:
            """Add a prompt, or remove it again."""
            await change_prompts(ctx)
            return "Changed the prompts."

        @self.tool
        async def test_update_resource(uri: str, ctx: Context) -> str:
            """Announce that a resource has changed."""
            params = ResourceUpdatedNotificationParams(uri=uri)
            await ctx.send_notification(ResourceUpdatedNotification(params=params))
            return f"{uri} has changed."


def _silence() -> bytes:
    """Return a tenth of a second of silence, as WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(1)
        out.setframerate(8000)
        out.writeframes(b"\x80" * 800)
    return file.getvalue()


def _embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


async def _ask(ctx: Context, message: str, properties: dict[str, Any], required: list[str] | None = None) -> str:
    """Ask with a given schema. FastMCP's own ``ctx.elicit`` makes a schema from a type."""
    schema = {"type": "object", "properties": properties, "required": required or []}
    answer = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
    return f"action={answer.action}, content={answer.content}"


def _sampling(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))


def _require(state: str | None = None, **requests: InputRequest) -> InputRequiredResult:
    return InputRequiredResult(input_requests=requests, request_state=state)


def _answer(ctx: Context, key: str) -> Any:
    """Return the client's answer to that request; None in the first round."""
    return (ctx.input_responses or {}).get(key)


def _field(ctx: Context, key: str, name: str) -> Any:
    """Return one field of a form that the client's user accepted, or None."""
    answer = _answer(ctx, key)
    return (answer.content or {}).get(name) if isinstance(answer, ElicitResult) else None


def _confirm(ctx: Context, state: str) -> Any:
    if ctx.request_state != state or _field(ctx, "confirm", "ok") is None:
        return _require(state, confirm=asked("Please confirm", ok="boolean"))
    return "state-ok"
