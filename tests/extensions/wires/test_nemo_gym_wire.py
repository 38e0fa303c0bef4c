"""NeMo Gym's wire: the routes of a resources server."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastmcp import Client
from trainer_worlds import Doors

from mcpenv import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.wires.nemo_gym import TAKEN
from mcpenv.server.app import EnvServer
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import Listening, serve_workers, serving
from mcpenv_client import ToolNotExpressible
from mcpenv_client.trainers.nemo_gym import rows

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples"))
from serving import GUESS_NUMBER, served  # noqa: E402

TIMEOUT_S = 30
TOKEN = "the-control-token"
WIRES = ServerConfig(wires=("nemo-gym",))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Doors, WIRES) as base_url:
        yield base_url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        yield client


def typed(name: str, task: str = "red", **data: Any) -> dict[str, Any]:
    """Return what an environment server sends."""
    return {
        "resources_session_id": name,
        "episode_id": {"rollout_id": "r", "attempt": 0},
        "task_id": {"taskset": "doors", "task_id": task},
        "task_data": data,
    }


def test_a_seed_with_an_agents_body_begins_the_rows_episode_under_a_cookie(http: httpx.Client) -> None:
    seeded = http.post("/seed_session", json={"responses_create_params": {"input": []}, "split": "train", "index": 1})
    assert seeded.status_code == 200 and seeded.json()["mcp"]["url_path"].startswith("/episodes/")
    assert http.post("/look", json={}).text == '{"colour":"green"}'
    refused = http.post("/open_door", json={"colour": "pink"})
    assert refused.status_code == 422 and "'red', 'green' or 'blue'" in refused.text
    assert http.post("/nothing", json={}).status_code == 404
    assert http.post("/open_door", json={"colour": "green"}).text == "opened"
    over = http.post("/look", json={})
    assert (over.status_code, over.text) == (409, "The episode is over.")
    for _ in range(2):  # its client repeats a request whose answer was lost
        verified = http.post("/verify", json={"response": {"output": []}, "expected": 3}).json()
        assert verified["reward"] == 1.25 and not verified["mask_sample"] and verified["expected"] == 3
        assert verified["mcpenv"]["status"]["code"] == "completed"


def test_the_mcp_server_of_a_seed_is_at_the_same_address_and_plays_the_same_episode(http: httpx.Client) -> None:
    tools = http.post("/seed_session", json=typed("mcp-1", split="train", index=2)).json()["resources_tools"]

    async def play() -> None:
        async with Client(str(http.base_url.join(tools["url_path"]))) as client:
            await client.call_tool("open_door", {"colour": "blue"})

    asyncio.run(play())
    assert http.post("/verify", json={}).json()["reward"] == 1.0


def test_a_seed_is_repeated_and_a_closed_session_is_not_seeded_again(http: httpx.Client) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: http.post("/seed_session", json=typed("twice")), range(4)))
    assert len({answer.text for answer in answers}) == 1 and answers[0].json()["resources_session_id"] == "twice"
    close = {"resources_session_id": "twice", "episode_id": {"rollout_id": "r"}}
    for _ in range(2):
        assert http.post("/close_session", json=close).json() == {"resources_session_id": "twice"}
    late = http.post("/seed_session", json=typed("twice"))
    assert late.status_code == 409 and "was closed" in late.json()["message"]
    assert http.post("/close_session", json={**close, "resources_session_id": "never"}).status_code == 200
    assert http.post("/seed_session", json=typed("never")).status_code == 409


def test_an_id_of_the_task_is_enough_and_a_row_without_a_task_is_refused(http: httpx.Client) -> None:
    assert http.post("/seed_session", json=typed("by-id", task="blue")).status_code == 200
    assert http.post("/look", json={}).text == '{"colour":"blue"}'
    refused = http.post("/seed_session", json={"question": "?"})
    assert refused.status_code == 422 and "names no task" in refused.json()["message"]
    unknown = http.post("/seed_session", json=typed("unknown", task="pink"))
    assert unknown.status_code == 400 and "pink" in unknown.json()["message"]
    again = http.post("/seed_session", json=typed("unknown"))
    assert again.status_code == 200  # a seed that failed left nothing behind


def test_a_sample_that_is_not_about_the_agent_is_masked(http: httpx.Client) -> None:
    http.post("/seed_session", json=typed("broken"))
    http.post("/break_verifier", json={})
    broken = http.post("/verify", json={}).json()
    assert broken["mask_sample"] and broken["failure_kind"] == "verifier_error"
    assert broken["mcpenv"]["status"]["code"] == "judge_error"
    http.post("/close_session", json={"resources_session_id": "broken", "episode_id": {"rollout_id": "r"}})
    lost = http.post("/verify", json={}).json()
    assert lost["mask_sample"] and lost["failure_kind"] == "session_lost"
    assert http.post("/look", json={}).status_code == 404


def test_an_episode_that_nothing_scores_is_masked_and_no_reward_of_zero() -> None:
    class Unscored(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            def look() -> str:
                """Look."""
                return "nothing"

    with serving(Unscored, WIRES) as url, httpx.Client(base_url=url, timeout=TIMEOUT_S) as http:
        http.post("/seed_session", json={})
        assert http.post("/look", json={}).text == "nothing"
        verified = http.post("/verify", json={}).json()
        assert verified["mask_sample"] and verified["failure_reason"] == "nothing scored the episode"


def test_a_response_that_was_cut_off_truncates_the_episode(http: httpx.Client) -> None:
    http.post("/seed_session", json=typed("cut"))
    cut = http.post("/verify", json={"response": {"incomplete_details": {"reason": "max_output_tokens"}}}).json()
    assert cut["mcpenv"]["status"] == {"code": "truncated", "retryable": False, "limit": "incomplete"}
    assert cut["reward"] == 0.0 and not cut["mask_sample"]


def test_masked_samples_are_not_in_the_mean(http: httpx.Client) -> None:
    samples = [
        {"_ng_task_index": 0, "reward": 1.0},
        {"_ng_task_index": 0, "reward": 0.0},
        {"_ng_task_index": 1, "reward": 0.0, "mask_sample": True},
    ]
    found = http.post("/aggregate_metrics", json={"verify_responses": samples}).json()
    assert found["agent_metrics"] == {"mean/reward": 0.5}
    assert found["group_level_metrics"] == [{"_ng_task_index": 0, "mean/reward": 0.5}]


def test_the_routes_need_the_control_token_and_exist_only_if_asked_for() -> None:
    with serving(Doors, ServerConfig(wires=("nemo-gym",), control_token=TOKEN)) as url:
        for path in ("seed_session", "verify", "close_session", "look"):
            assert httpx.post(f"{url}/{path}", json={}).status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert httpx.post(f"{url}/seed_session", json=typed("t"), headers=headers).status_code == 200
    with serving(Doors) as url:
        assert httpx.post(f"{url}/seed_session", json=typed("t")).status_code == 404


def test_a_tool_that_its_route_would_hide_is_refused_at_the_seed() -> None:
    class Hidden(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            def verify() -> str:
                """Verify."""
                return "verified"

    with serving(Hidden, WIRES) as url:
        refused = httpx.post(f"{url}/seed_session", json={})
    assert refused.status_code == 422 and "rename the tool" in refused.json()["message"]


@pytest.mark.process
def test_a_server_with_one_worker_which_is_replaced_if_it_hangs_speaks_the_wires() -> None:
    with (
        served(GUESS_NUMBER, "--workers", "1", "--wire", "nemo-gym", "--wire", "ors") as url,
        httpx.Client(base_url=url, timeout=TIMEOUT_S) as http,
    ):
        assert http.get("/list_environments").json() == ["GuessNumber"]
        assert http.post("/seed_session", json={"seed": 1}).status_code == 200
        number = random.Random(1).randint(1, 100)
        assert http.post("/guess", json={"number": number}).text == "right"
        assert http.post("/verify", json={}).json()["reward"] == 1.0
        (session,) = http.get("/sessions").json()["sessions"]
        assert session["session_id"].startswith("0.")  # of the first worker


def test_every_route_that_takes_a_post_is_a_name_that_tools_cannot_have() -> None:
    routes = EnvServer(Doors, config=ServerConfig(wires=("nemo-gym", "ors"))).routes()
    posts = {getattr(route, "path", "") for route in routes if "POST" in (getattr(route, "methods", None) or ())}
    assert {path[1:] for path in posts if path.count("/") == 1 and "{" not in path} <= TAKEN


def test_settings_that_the_wire_cannot_have_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no wire 'nemo'"):
        ServerConfig(wires=("nemo",))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="production mode"):
        ServerConfig(mode=ServerConfig().mode.__class__.PRODUCTION, wires=("nemo-gym",))
    with pytest.raises(ConfigurationError, match="a server with one worker; there are 2"):
        serve_workers(lambda: None, WIRES, 2, Listening())  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="one address"):
        Listening(control_port=0).check(WIRES, agents_need_token=False)


def test_rows_have_a_prompt_the_tools_and_what_names_the_task() -> None:
    first, second, _ = rows(Doors)
    assert second["split"], second["index"] == ("train", 1)
    params = first["responses_create_params"]
    assert params["input"] == [{"role": "user", "content": "Number 0."}]
    opening = next(tool for tool in params["tools"] if tool["name"] == "open_door")
    assert opening["type"] == "function" and opening["parameters"]["properties"]["colour"]["enum"]
    assert len(rows(Doors, num_tasks=2, system="Play.")[0]["responses_create_params"]["input"]) == 2


def test_a_row_whose_prompt_comes_with_the_reset_is_refused() -> None:
    with pytest.raises(ValueError, match="'test-red' has no prompt"):
        rows(Doors, "test")


def test_a_tool_that_models_would_call_by_another_name_is_refused() -> None:
    class Dotted(MCPEnvironment):
        tasks = Doors.tasks

        def __init__(self) -> None:
            @self.tool("a.b")
            def ab() -> str:
                """Do it."""
                return ""

        def reset(self, seed: int | None = None, episode_id: str | None = None, door: str | None = None) -> None:
            pass

    with pytest.raises(ToolNotExpressible, match=r"a\.b"):
        rows(Dotted)
