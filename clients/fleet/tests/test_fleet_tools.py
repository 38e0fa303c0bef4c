"""The tools of an instance: the union over its endpoints, tries, failures told apart, and results."""

from __future__ import annotations

import logging

import pytest
from conftest import QUICK
from fleet_platform import API, MCP, PNG, Fault, Platform

from mcpenv_client import ListingFailed, ToolCallFailed
from mcpenv_fleet import CallNotDelivered, FleetEnv, FleetTools, OutcomeUnknown
from mcpenv_fleet.retries import OF_CALLS, Retries

Made = tuple[FleetEnv, FleetTools]

OF_API = ["add_ticket", "list_tickets", "shared", "answer"]
CALL = f"{API} tools/call"


def test_line_5_the_tools_are_the_union_of_both_endpoints_and_the_first_seen_owns_a_name(made: Made) -> None:
    tools = made[1]
    assert [tool.name for tool in tools.list_tools()] == [*OF_API, "computer"]
    assert tools.call_tool("shared").text == "of api"
    assert tools.call_tool("computer", {"action": "screenshot"}).content[0]["text"] == "screenshot"


def test_line_5_the_owner_of_a_tool_is_cached(platform: Platform, made: Made) -> None:
    tools = made[1]
    tools.call_tool("shared")
    asked = platform.count(f"{MCP} tools/list"), platform.count(f"{MCP} tools/call")
    tools.call_tool("shared")
    tools.call_tool("add_ticket", {"title": "second"})
    assert (platform.count(f"{MCP} tools/list"), platform.count(f"{MCP} tools/call")) == asked
    assert asked[1] == 0


def test_line_5_the_tools_have_openais_format(made: Made) -> None:
    (function,) = [each["function"] for each in made[1].to_openai() if each["function"]["name"] == "add_ticket"]
    assert function["parameters"]["required"] == ["title"]
    assert function["description"] == "Add a ticket."


def test_line_7_discovery_errors_differ_from_execution_errors(platform: Platform, made: Made) -> None:
    tools = made[1]
    with pytest.raises(ToolCallFailed, match="there is no such ticket"):
        tools.call_tool("answer", {"kind": "error"})
    for endpoint in (API, MCP):
        platform.fail(f"{endpoint} tools/list", Fault(status=500, times=3))
    with pytest.raises(ListingFailed):
        tools.list_tools()


def test_line_8_a_listing_is_tried_three_times_with_pauses_that_double_from_one_second() -> None:
    assert Retries() == OF_CALLS == Retries(tries=3, first_pause_s=1.0)


def test_line_8_each_try_of_a_listing_is_logged(
    platform: Platform, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    for endpoint in (API, MCP):
        platform.fail(f"{endpoint} tools/list", Fault(status=503, times=2))
    with caplog.at_level(logging.WARNING, "mcpenv_fleet"):
        assert len(made[1].list_tools()) == 5
    assert [message.split(" failed")[0].split(": ")[-1] for message in caplog.messages] == ["try 1 of 3", "try 2 of 3"]


def test_line_8_a_listing_fails_after_three_tries(
    platform: Platform, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    for endpoint in (API, MCP):
        platform.fail(f"{endpoint} tools/list", Fault(status=503, times=9))
    before = platform.count(f"{API} tools/list")
    with pytest.raises(ListingFailed):
        made[1].list_tools()
    assert platform.count(f"{API} tools/list") == before + 3
    assert "try 3 of 3 failed, it is given up" in caplog.messages[-1]


def test_line_8_a_partial_failure_is_tried_again_and_then_a_warning(
    platform: Platform, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    platform.fail(f"{MCP} tools/list", Fault(status=503, times=9))
    assert [tool.name for tool in made[1].list_tools()] == OF_API
    assert sum("are not complete" in message for message in caplog.messages) == 3


def test_line_8_an_endpoint_that_an_environment_does_not_have_is_a_warning_without_tries(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    platform.endpoints = (API,)
    env, tools = FleetEnv.from_fleet("fira", **QUICK)
    with env:
        assert [each["function"]["name"] for each in tools.to_openai()] == OF_API
        assert platform.count(f"{API} tools/list") == 1
    assert sum("are not complete" in message and "404" in message for message in caplog.messages) == 1


def test_line_8_an_empty_list_is_a_failure(platform: Platform) -> None:
    platform.without_tools = {API, MCP}
    with pytest.raises(ListingFailed, match="the endpoints answer, and have no tools"):
        FleetEnv.from_fleet("fira", **QUICK)
    assert platform.count(f"{API} tools/list") == 3
    assert platform.running == []


@pytest.mark.parametrize("status", [429, 503])
def test_line_9_a_call_that_was_refused_before_it_ran_is_sent_again(
    platform: Platform, made: Made, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    platform.fail(CALL, Fault(status=status, times=2))
    assert made[1].call_tool("add_ticket", {"title": "second"}).text == "added second"
    assert next(iter(platform.instances.values())).calls == ["second"]
    assert platform.count(CALL) == 3
    assert sum("call add_ticket: try" in message for message in caplog.messages) == 2


def test_line_9_three_tries_that_were_not_delivered_are_an_error(platform: Platform, made: Made) -> None:
    platform.fail(CALL, Fault(status=503, times=9))
    with pytest.raises(CallNotDelivered, match="503"):
        made[1].call_tool("add_ticket", {"title": "second"})
    assert platform.count(CALL) == 3
    assert next(iter(platform.instances.values())).calls == []


@pytest.mark.parametrize("status", [500, 502, 504])
def test_line_9_a_call_that_ran_and_whose_answer_is_lost_is_never_repeated(
    platform: Platform, made: Made, status: int
) -> None:
    platform.fail(CALL, Fault(status=status, before=False))
    with pytest.raises(OutcomeUnknown, match=str(status)):
        made[1].call_tool("add_ticket", {"title": "second"})
    assert next(iter(platform.instances.values())).calls == ["second"]
    assert platform.count(CALL) == 1
    assert made[1].call_tool("shared").text == "of api"  # the session goes on


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<h1>It works</h1>", "text/html"),
        ("{", "application/json"),
        ("[]", "application/json"),
        ("", "text/event-stream"),
        (": nothing\n\n", "text/event-stream"),
    ],
)
def test_line_9_a_call_that_ran_and_whose_answer_is_none_is_never_repeated(
    platform: Platform, made: Made, text: str, kind: str
) -> None:
    platform.fail(CALL, Fault(raw=text, content_type=kind, before=False))
    with pytest.raises(OutcomeUnknown):
        made[1].call_tool("add_ticket", {"title": "second"})
    assert next(iter(platform.instances.values())).calls == ["second"]
    assert platform.count(CALL) == 1
    assert made[1].call_tool("shared").text == "of api"


def test_line_9_a_call_without_an_answer_in_time_is_never_repeated(platform: Platform) -> None:
    env, tools = FleetEnv.from_fleet("fira", **QUICK, call_timeout_s=2)
    with env:
        platform.fail(CALL, Fault(hang=True))
        with pytest.raises(OutcomeUnknown, match="no answer within 2 s"):
            tools.call_tool("add_ticket", {"title": "second"})
        assert platform.count(CALL) == 1


def test_line_9_a_tool_that_is_not_found_is_never_asked_for_again(platform: Platform, made: Made) -> None:
    with pytest.raises(ToolCallFailed, match="there is no tool 'delete_all'; there are: add_ticket"):
        made[1].call_tool("delete_all")
    assert platform.count(CALL) == 0


def test_line_9_an_endpoint_that_is_not_found_is_never_asked_again(platform: Platform, made: Made) -> None:
    made[1].call_tool("shared")
    next(iter(platform.instances.values())).status = "stopped"
    with pytest.raises(CallNotDelivered, match="404"):
        made[1].call_tool("shared")
    assert platform.count(CALL) == 2


def test_line_24_a_text_is_the_text(made: Made) -> None:
    result = made[1].call_tool("answer", {"kind": "text"})
    assert (result.text, result.data) == ("plain", None)


def test_line_24_json_stays_the_text_it_was_and_is_data_too(made: Made) -> None:
    result = made[1].call_tool("answer", {"kind": "json"})
    assert (result.text, result.data) == ('{"count": 2}', {"count": 2})


def test_line_24_several_texts_are_lines(made: Made) -> None:
    assert made[1].call_tool("answer", {"kind": "texts"}).text == "one\ntwo"


def test_line_24_structured_content_is_the_data(made: Made) -> None:
    result = made[1].call_tool("answer", {"kind": "structured"})
    assert (result.text, result.data) == ("2 tickets", {"count": 2})


def test_line_24_an_error_of_a_tool_is_a_result_that_says_so(made: Made) -> None:
    result = made[1].call_tool("answer", {"kind": "error"}, raise_on_error=False)
    assert result.is_error
    assert result.text.endswith("there is no such ticket")


def test_line_24_an_empty_result_is_empty_and_nothing_is_a_repr(made: Made) -> None:
    result = made[1].call_tool("answer", {"kind": "empty"})
    assert (result.text, result.content, result.is_error) == ("", [], False)


def test_line_27_a_screenshot_stays_image_content(made: Made) -> None:
    _, image = made[1].call_tool("computer", {"action": "screenshot"}).content
    assert image == {"type": "image", "data": PNG, "mimeType": "image/png"}
