"""What the proxy passes on, and what it keeps of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
from scripted_endpoint import JSON, Answering, Asked, Handler, endpoint

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.model_proxy import relay
from mcpenv.extensions.model_proxy.app import proxied
from mcpenv.extensions.model_proxy.store import TurnMemory
from mcpenv.extensions.model_proxy.upstream import Upstream
from mcpenv_client.types.model_turns import ModelTurn, TurnCall, TurnTokens, TurnUsage

WAIT_S = 20.0
KEY = "sk-upstream-0123456789"
Using = Callable[[httpx2.AsyncClient], Awaitable[None]]

CALL = {"id": "call_7", "type": "function", "function": {"name": "add", "arguments": '{"by": 1}'}}
USAGE = {"prompt_tokens": 11, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}, "cost": 0.25}
LOGPROBS = [
    {"token": "1", "logprob": -0.5, "bytes": [49], "top_logprobs": []},
    {"token": "2", "logprob": -1.5, "bytes": [50], "top_logprobs": []},
]


def run(answering: Answering, using: Using, **options: Any) -> tuple[list[ModelTurn], list[Asked]]:
    """Use the proxy of an episode in front of an endpoint. Return the turns, and what the endpoint was asked."""

    async def main(url: str) -> list[ModelTurn]:
        store = TurnMemory()
        async with asyncio.timeout(WAIT_S), proxied(Upstream(url, **options), store) as base:
            async with store.episode("e1") as kept:
                async with httpx2.AsyncClient(base_url=f"{base}/episodes/e1", timeout=WAIT_S) as http:
                    await using(http)
            return kept.turns

    with endpoint(answering) as served:
        return asyncio.run(main(served.url)), served.asked


def chat(handler: Handler, body: JSON) -> None:
    choice = {"index": 0, "finish_reason": "tool_calls", "logprobs": {"content": LOGPROBS}, "token_ids": [1, 2]}
    choice["message"] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    answer = {"id": "c1", "object": "chat.completion", "model": "m-1", "choices": [choice], "usage": USAGE}
    handler.whole(200, {**answer, "prompt_token_ids": [7, 8, 9]}, x_request_id="r1")


def test_an_answer_is_passed_on_byte_by_byte_and_its_tokens_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM", KEY)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    answers: list[httpx2.Response] = []

    async def using(http: httpx2.AsyncClient) -> None:
        answers.append(await http.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer agent"}))

    (turn,), (asked,) = run(chat, using, api_key_env="UPSTREAM")
    assert asked.path == "/chat/completions"
    assert (json.loads(asked.body), asked.headers["authorization"]) == (body, f"Bearer {KEY}")
    assert answers[0].headers["x-request-id"] == "r1"
    assert answers[0].json()["choices"][0]["token_ids"] == [1, 2]
    assert (turn.api, turn.path, turn.status, turn.streamed) == ("chat_completions", "/v1/chat/completions", 200, False)
    assert (turn.request, turn.model, turn.finish_reason) == (body, "m-1", "tool_calls")
    assert turn.calls == [TurnCall("call_7", "add", {"by": 1})]
    assert turn.usage == TurnUsage(11, 2, 4, 0.25)
    assert (turn.prompt_ids, turn.tokens) == ([7, 8, 9], [TurnTokens([1, 2], [-0.5, -1.5], ["1", "2"])])
    assert "token_ids" not in str(turn.answer)
    assert 0.0 < (turn.first_byte_s or 0.0) <= turn.duration_s


@pytest.mark.parametrize(
    ("header", "field", "version"),
    [("7", None, 7), ("7", "8", 7), (None, "8", 8), (None, "default", None), ("v7", None, None), (None, None, None)],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_the_version_of_the_weights_is_kept(
    header: str | None, field: str | None, version: int | None, streamed: bool
) -> None:
    headers = {} if header is None else {"X-Policy-Version": header}
    whole = {"model": "m", "choices": [], **({} if field is None else {"metadata": {"weight_version": field}})}

    def answering(handler: Handler, body: JSON) -> None:
        if streamed:
            handler.stream(**headers)
            handler.event(whole)
            handler.end()
        else:
            handler.whole(200, whole, **headers)

    async def using(http: httpx2.AsyncClient) -> None:
        answer = await http.post("/v1/chat/completions", json={"messages": []})
        assert answer.headers.get("x-policy-version") == header

    (turn,), _ = run(answering, using)
    assert turn.policy_version == version


def test_pieces_of_a_stream_are_passed_on_before_the_endpoint_sends_the_next() -> None:
    passed_on = threading.Event()

    def answering(handler: Handler, body: JSON) -> None:
        handler.stream()
        whole = {"id": "c1", "object": "chat.completion.chunk", "model": "m-1"}
        handler.event(
            {**whole, "prompt_token_ids": [7], "choices": [_delta({"role": "assistant", "content": "o"}, [5])]}
        )
        if passed_on.wait(WAIT_S):
            handler.event({**whole, "choices": [_delta({"content": "ne"}, [6], LOGPROBS[:1])]})
            handler.event({**whole, "choices": [], "usage": USAGE})
            handler.event("[DONE]")
        handler.end()

    async def using(http: httpx2.AsyncClient) -> None:
        async with http.stream("POST", "/v1/chat/completions", json={"messages": [], "stream": True}) as answer:
            pieces = answer.aiter_bytes()
            assert b'"o"' in await anext(pieces)
            passed_on.set()
            assert b"[DONE]" in b"".join([piece async for piece in pieces])

    (turn,), _ = run(answering, using)
    assert isinstance(turn.answer, dict)
    assert turn.answer["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "one"}}]
    assert (turn.streamed, turn.prompt_ids, turn.tokens[0].ids, turn.cut) == (True, [7], [5, 6], None)
    assert turn.usage == TurnUsage(11, 2, 4, 0.25)


def _delta(delta: JSON, ids: list[int], logprobs: list[JSON] | None = None) -> JSON:
    return {"index": 0, "delta": delta, "token_ids": ids, "logprobs": logprobs and {"content": logprobs}}


def test_calls_are_put_together_from_the_chunks_of_a_chat() -> None:
    def answering(handler: Handler, body: JSON) -> None:
        handler.stream()
        first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}
        other = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "look", "arguments": "{"}}
        pieces: list[JSON] = [first, {"index": 0, "function": {"arguments": '{"by"'}}, other]
        pieces += [{"index": 0, "function": {"arguments": ": 2}"}}, {"index": 1, "function": {"arguments": "oops"}}]
        for piece in pieces:
            handler.event({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]})
        handler.end()

    (turn,), _ = run(answering, _post("/v1/chat/completions"))
    assert turn.calls == [TurnCall("call_1", "add", {"by": 2}), TurnCall("call_2", "look", "{oops")]


def _post(path: str, body: JSON | None = None) -> Using:
    async def using(http: httpx2.AsyncClient) -> None:
        await http.post(path, json={"model": "m"} if body is None else body)

    return using


def test_a_stream_of_responses_is_read_with_calls_and_log_probabilities() -> None:
    text = {"type": "output_text", "text": "12", "logprobs": LOGPROBS}
    items = [
        {"type": "message", "role": "assistant", "content": [text]},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"by": 1}'},
    ]
    usage = {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 3}}

    def answering(handler: Handler, body: JSON) -> None:
        handler.stream()
        handler.event({"type": "response.created", "response": {"model": "m-1", "status": "in_progress", "output": []}})
        for index, item in enumerate(items):
            handler.event({"type": "response.output_item.done", "output_index": index, "item": item})
        done = {"model": "m-1", "status": "completed", "output": [], "usage": usage}
        handler.event({"type": "response.completed", "response": done}, "response.completed")
        handler.end()

    (turn,), (asked,) = run(answering, _post("/v1/responses", {"model": "m", "input": "count"}))
    assert asked.path == "/responses"
    assert (turn.api, turn.finish_reason, turn.usage) == ("responses", "completed", TurnUsage(5, 2, 3))
    assert turn.calls == [TurnCall("call_1", "add", {"by": 1})]
    assert turn.tokens == [TurnTokens(None, [-0.5, -1.5], ["1", "2"])]


def test_a_stream_of_messages_is_read_with_thoughts_calls_and_cached_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM", KEY)
    start = {"model": "m-1", "content": [], "usage": {"input_tokens": 3, "cache_read_input_tokens": 90}}
    events: list[JSON] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "one, "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "two"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t1", "name": "add"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"by":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": " 1}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 8}},
        {"type": "message_stop"},
    ]

    def answering(handler: Handler, body: JSON) -> None:
        handler.stream()
        for event in events:
            handler.event(event, event["type"])
        handler.end()

    (turn,), (asked,) = run(answering, _post("/v1/messages?beta=true"), api_key_env="UPSTREAM")
    assert (asked.path, asked.headers["x-api-key"]) == ("/v1/messages?beta=true", KEY)
    assert "authorization" not in asked.headers
    assert isinstance(turn.answer, dict)
    assert turn.answer["content"][0]["thinking"] == "one, two"
    assert (turn.calls, turn.finish_reason) == ([TurnCall("t1", "add", {"by": 1})], "tool_use")
    assert turn.usage == TurnUsage(93, 8, 90)


def test_a_stream_of_gemini_is_read_with_calls_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM", KEY)
    chosen = [
        {"token": "o", "tokenId": 5, "logProbability": -0.5},
        {"token": "k", "tokenId": 6, "logProbability": -1.5},
    ]
    parts: list[list[JSON]] = [
        [{"text": "hm", "thought": True}, {"text": "o"}],
        [{"text": "k"}, {"functionCall": {"name": "add", "args": {"by": 1}}}],
    ]
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "cachedContentTokenCount": 4}

    def answering(handler: Handler, body: JSON) -> None:
        handler.stream()
        for index, each in enumerate(parts):
            candidate = {
                "content": {"role": "model", "parts": each},
                "logprobsResult": {"chosenCandidates": [chosen[index]]},
            }
            handler.event({"candidates": [candidate], "modelVersion": "g-1", "usageMetadata": usage})
        handler.event({"candidates": [{"finishReason": "STOP"}]})
        handler.end()

    path = "/v1beta/models/g:streamGenerateContent?alt=sse&key=of-the-agent"
    (turn,), (asked,) = run(answering, _post(path, {"contents": []}), api_key_env="UPSTREAM")
    assert asked.path == "/v1beta/models/g:streamGenerateContent?alt=sse"
    assert (asked.headers["x-goog-api-key"], turn.path) == (KEY, "/v1beta/models/g:streamGenerateContent")
    assert isinstance(turn.answer, dict)
    (candidate,) = turn.answer["candidates"]
    assert [part.get("text") for part in candidate["content"]["parts"]] == ["hm", "ok", None]
    assert (turn.model, turn.finish_reason, turn.usage) == ("g-1", "STOP", TurnUsage(9, 5, 4))
    assert turn.calls == [TurnCall(None, "add", {"by": 1})]
    assert turn.tokens == [TurnTokens([5, 6], [-0.5, -1.5], ["o", "k"])]


def test_counts_of_tokens_and_lists_of_models_pass_without_a_turn() -> None:
    async def using(http: httpx2.AsyncClient) -> None:
        counted = await http.post("/v1/messages/count_tokens", json={"messages": []})
        assert counted.json() == {"asked": "/v1/messages/count_tokens"}
        assert (await http.get("/v1/models")).json() == {"asked": "/v1/models"}

    turns, _ = run(lambda handler, body: handler.whole(200, {"asked": handler.path}), using)
    assert turns == []


def test_an_agent_reaches_models_only_and_nothing_outside_of_the_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it sends: dot segments, their encodings, other methods and paths, headers that stand for them."""
    monkeypatch.setenv("UPSTREAM", KEY)
    refused = [
        "",
        "/",
        "/v1",
        "/v1/files",
        "/v1/fine_tuning/jobs",
        "/v1/organization/admin_api_keys",
        "/admin",
        "/v1/responses/r1",
    ]
    refused += [
        "/../admin",
        "/v1/../../admin/models",
        "/v1/models/../../admin",
        "/v1/models/..",
        "/v1/./models",
        "//models",
    ]
    refused += ["/%2e%2e/admin", "/v1/models/%2e%2e/%2e%2e/admin", "/v1/models/..%2f..%2fadmin", "/v1/models/a%3f/../x"]
    refused += ["/v1/models/..%5c..%5cadmin", "/v1/models/%252e%252e/admin", "/v1/models/a%0d%0ax", "/v1/models/a%23b"]
    refused += ["/v1/x/chat/completions", "/v1/chat/completions/../../admin", "/v1/models/a%00"]
    statuses: dict[tuple[str, str], str] = {}

    async def using(http: httpx2.AsyncClient) -> None:
        base = http.base_url
        for method, path in [("POST", path) for path in refused] + [("GET", path) for path in refused]:
            statuses[method, path] = await _raw(base, method, path)
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"):
            statuses[method, "/v1/chat/completions"] = await _raw(base, method, "/v1/chat/completions")
        for method in ("POST", "DELETE"):
            statuses[method, "/v1/models/m"] = await _raw(base, method, "/v1/models/m")
            statuses[method, "/v1/models/m:delete"] = await _raw(base, method, "/v1/models/m:delete")
        override = {"x-http-method-override": "DELETE", "x-original-url": "/admin", "x-rewrite-url": "/admin"}
        assert (await http.get("/v1/models/org/a-model", headers=override)).status_code == 200
        model = "/v1beta/models/g-1.5:countTokens"
        assert (await http.post(model, json={})).status_code == 200

    def answering(handler: Handler, body: JSON) -> None:
        assert not {"x-http-method-override", "x-original-url", "x-rewrite-url"} & {*map(str.lower, handler.headers)}
        handler.whole(200, {})

    turns, asked = run(answering, using, api_key_env="UPSTREAM")
    assert {key: status for key, status in statuses.items() if status not in ("404", "400")} == {}
    assert [each.path for each in asked] == ["/v1/models/org/a-model", "/v1beta/models/g-1.5:countTokens"]
    assert turns == []


async def _raw(base: httpx2.URL, method: str, path: str) -> str:
    """Return the status of a request whose path no client makes shorter."""
    reader, writer = await asyncio.open_connection(base.host, base.port)
    target = f"{base.path.rstrip('/')}{path}"
    head = f"{method} {target} HTTP/1.1\r\nHost: {base.host}\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}"
    writer.write(head.encode())
    answer = await reader.read()
    writer.close()
    return answer.split(b" ")[1].decode()


def test_large_requests_are_bounded_each_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused unread if its head says so; those that are under way are bounded together."""
    monkeypatch.setattr(relay, "MAX_BODY_BYTES", 100_000)
    monkeypatch.setattr(relay, "MAX_BYTES", 150_000)
    asked, answered = threading.Event(), threading.Event()

    def answering(handler: Handler, body: JSON) -> None:
        asked.set()
        answered.wait(WAIT_S)
        handler.whole(200, {})

    async def using(http: httpx2.AsyncClient) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(300):
                yield b"x" * 1000

        path = "/v1/chat/completions"
        assert (await http.post(path, content=b"x" * 200_000)).status_code == 413
        assert (await http.post(path, content=pieces())).status_code == 413
        first = asyncio.create_task(http.post(path, content=b"x" * 90_000))
        await asyncio.to_thread(asked.wait, WAIT_S)
        assert (await http.post(path, content=b"x" * 90_000)).status_code == 429
        answered.set()
        assert (await first).status_code == 200
        assert (await http.post(path, content=b"x" * 90_000)).status_code == 200

    turns, requests = run(answering, using)
    assert len(turns) == len(requests) == 2


def test_an_error_of_the_endpoint_is_passed_on_as_it_is_and_kept() -> None:
    refusal = {"error": {"type": "rate_limit_error", "message": "slow down"}}
    answers: list[httpx2.Response] = []

    async def using(http: httpx2.AsyncClient) -> None:
        answers.append(await http.post("/v1/messages", json={"messages": []}))

    (turn,), _ = run(lambda handler, body: handler.whole(429, refusal, retry_after="7"), using)
    assert (answers[0].status_code, answers[0].headers["retry-after"], answers[0].json()) == (429, "7", refusal)
    assert (turn.status, turn.error, turn.answer) == (429, "rate_limit_error: slow down", refusal)


def test_a_stream_that_the_endpoint_cuts_is_cut_for_the_agent_too() -> None:
    def answering(handler: Handler, body: JSON) -> None:
        handler.stream()
        handler.event({"choices": [{"index": 0, "delta": {"content": "half"}}]})
        handler.cut()

    async def using(http: httpx2.AsyncClient) -> None:
        with pytest.raises(httpx2.RemoteProtocolError):
            await http.post("/v1/chat/completions", json={"stream": True})

    (turn,), _ = run(answering, using)
    assert (turn.status, turn.cut) == (200, "endpoint")
    assert "closed the connection" in str(turn.error)
    assert isinstance(turn.answer, dict)
    assert turn.answer["choices"][0]["message"] == {"content": "half"}


def test_an_answer_that_cannot_be_decompressed_is_cut_for_the_agent_too() -> None:
    def answering(handler: Handler, body: JSON) -> None:
        handler.whole(200, b"this is not gzip", content_encoding="gzip")

    async def using(http: httpx2.AsyncClient) -> None:
        with pytest.raises(httpx2.RemoteProtocolError):
            await http.post("/v1/chat/completions", json={})

    (turn,), _ = run(answering, using)
    assert (turn.status, turn.cut) == (200, "endpoint")
    assert "cannot be decompressed" in str(turn.error)


def test_a_disconnect_of_the_agent_ends_the_request_at_the_endpoint() -> None:
    ended = threading.Event()

    def answering(handler: Handler, body: JSON) -> None:
        handler.stream()
        handler.event({"choices": [{"index": 0, "delta": {"content": "half"}}]})
        handler.connection.settimeout(WAIT_S)
        if handler.rfile.read(1) == b"":
            ended.set()
        handler.cut()

    async def using(http: httpx2.AsyncClient) -> None:
        async with http.stream("POST", "/v1/chat/completions", json={"stream": True}) as answer:
            await anext(answer.aiter_bytes())
        assert await asyncio.to_thread(ended.wait, WAIT_S)

    (turn,), _ = run(answering, using)
    assert (turn.cut, turn.error) == ("agent", None)


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/responses", {"type": "response.completed", "response": {"status": "completed"}}),
        ("/v1/messages", {"type": "message_stop"}),
        ("/v1/chat/completions", "[DONE]"),
        ("/v1beta/models/m:streamGenerateContent", {"candidates": [{"finishReason": "STOP"}]}),
    ],
)
def test_an_agent_that_hangs_up_behind_the_end_of_an_answer_has_cut_nothing(path: str, last: JSON | str) -> None:
    def answering(handler: Handler, body: JSON) -> None:
        handler.stream()
        handler.event(last)
        handler.connection.settimeout(WAIT_S)
        handler.rfile.read(1)  # until the agent is gone: the stream itself does not end
        handler.cut()

    async def using(http: httpx2.AsyncClient) -> None:
        async with http.stream("POST", path, json={"stream": True}) as answer:
            await anext(answer.aiter_bytes())

    (turn,), _ = run(answering, using)
    assert (turn.status, turn.cut, turn.error) == (200, None, None)


def test_an_endpoint_that_cannot_be_reached_is_an_error_that_names_it() -> None:
    async def main() -> None:
        store = TurnMemory()
        async with asyncio.timeout(WAIT_S), proxied(Upstream("http://127.0.0.1:9/v1"), store) as base:
            async with store.episode("e1") as kept:
                async with httpx2.AsyncClient() as http:
                    answer = await http.post(f"{base}/episodes/e1/v1/chat/completions", json={})
                    other = await http.post(f"{base}/episodes/e2/v1/chat/completions", json={})
                    without = await http.post(f"{base}/v1/chat/completions", json={})
        assert answer.status_code == 502
        assert "http://127.0.0.1:9/v1 gave no answer: ConnectError" in answer.json()["error"]["message"]
        assert (kept.turns[0].status, kept.turns[0].error) == (None, answer.json()["error"]["message"])
        assert (other.status_code, other.json()["error"]["type"]) == (404, "unknown_episode")
        assert (without.status_code, without.json()["error"]["type"]) == (404, "no_episode")

    asyncio.run(main())


def test_a_page_of_another_site_cannot_use_the_endpoint() -> None:
    answers: list[int] = []

    async def using(http: httpx2.AsyncClient) -> None:
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            answers.append((await http.post("/v1/chat/completions", json={}, headers=headers)).status_code)

    turns, asked = run(chat, using)
    assert (answers, turns, asked) == ([403, 421], [], [])


def test_further_fields_are_added_to_requests_and_kept() -> None:
    fields = {"logprobs": True, "return_token_ids": True}
    (turn,), (asked,) = run(chat, _post("/v1/chat/completions", {"model": "m"}), request_fields=fields)
    assert json.loads(asked.body) == turn.request == {"model": "m", **fields}


def test_a_request_that_cannot_be_read_is_passed_on_and_kept_with_its_answer() -> None:
    body = b"\x28\xb5\x2f\xfd compressed"

    async def using(http: httpx2.AsyncClient) -> None:
        await http.post("/v1/chat/completions", content=body, headers={"content-encoding": "zstd"})

    (turn,), (asked,) = run(chat, using)
    assert (asked.body, asked.headers["content-encoding"]) == (body, "zstd")
    assert (turn.request, turn.status, turn.prompt_ids) == ({}, 200, [7, 8, 9])
    assert str(turn.error).endswith("its body is no JSON object, but compressed (zstd)")


def test_keys_are_in_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM", KEY)
    own = "sk-of-the-agent-0123456789"

    def answering(handler: Handler, body: JSON) -> None:
        handler.whole(401, {"error": {"message": f"no such key: {handler.headers['authorization']}"}})

    async def using(http: httpx2.AsyncClient) -> None:
        body = {"messages": [{"role": "user", "content": f"{KEY} {own}"}]}
        await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {own}"})

    (turn,), (asked,) = run(answering, using, api_key_env="UPSTREAM")
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(turn)
    (turn,), (asked,) = run(answering, using)
    assert asked.headers["authorization"] == f"Bearer {own}"
    assert own not in repr(turn)
    assert turn.error == "no such key: Bearer ***"


def test_a_key_in_a_query_is_in_no_turn() -> None:
    def answering(handler: Handler, body: JSON) -> None:
        handler.whole(400, {"error": {"message": f"no such key: {key}"}})

    async def using(http: httpx2.AsyncClient) -> None:
        await http.post("/v1beta/models/g:generateContent", params={"alt": "json", "key": key}, json={})

    key = "AIza+of/the=agent-0123456789"
    (turn,), (asked,) = run(answering, using)
    assert "key=AIza" in asked.path
    assert turn.error == "no such key: ***"


@pytest.mark.parametrize(
    ("base_url", "path", "url"),
    [
        ("https://api.openai.com/v1", "v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://router.example/api/v1/", "v1/responses", "https://router.example/api/v1/responses"),
        ("http://127.0.0.1:8000/v1", "v1/messages", "http://127.0.0.1:8000/v1/messages"),
        ("https://api.anthropic.com", "v1/messages", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1", "v1/models", "https://api.anthropic.com/v1/models"),
        ("https://api.anthropic.com", "v1/models", "https://api.anthropic.com/v1/models"),
        ("https://router.example/api/v2", "v1/models", "https://router.example/api/v2/models"),
        (
            "https://gemini.example",
            "v1beta/models/g:generateContent",
            "https://gemini.example/v1beta/models/g:generateContent",
        ),
    ],
)
def test_the_version_in_a_base_url_is_not_doubled(base_url: str, path: str, url: str) -> None:
    assert Upstream(base_url).url(path, "") == url


def test_an_upstream_without_url_or_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not an http:// or https:// URL"):
        Upstream("api.openai.com")
    with pytest.raises(ConfigurationError, match="NO_SUCH_KEY has no key"):
        Upstream("https://api.openai.com/v1", "NO_SUCH_KEY")
