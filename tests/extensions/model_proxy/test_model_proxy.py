"""The commands `mcpenv model-proxy` and `mcpenv trajectories join`, used as in docs/how-to/record-models.md."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_model import ScriptedModel, scripted_model

from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome, Trajectory

WAIT_S = 60.0
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


def mcpenv(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcpenv", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def asked(model: ScriptedModel, turns: Path, folder: Path) -> dict[str, Any]:
    """Ask a model once through a proxy of its own. Return the answer."""
    ready = folder / "ready.json"
    options = ["--base-url", f"{model.url}/v1", "--out", str(turns), "--ready-file", str(ready), "--json"]
    command = [sys.executable, "-m", "mcpenv", "model-proxy", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            told = json.loads(proxy.stdout.readline())
            assert told == json.loads(ready.read_text())
            body = {"model": "m", "messages": [{"role": "user", "content": "count"}], "tools": [TOOL]}
            url = f"{told['url']}/episodes/e1/v1/chat/completions"
            answer = httpx.post(url, json=body, timeout=WAIT_S, trust_env=False)
        finally:
            proxy.send_signal(signal.SIGINT)
        out, err = proxy.communicate(timeout=WAIT_S)
        assert (proxy.returncode, out, err) == (0, "", "")
    assert not ready.exists()
    return dict(answer.json())


@pytest.mark.slow
def test_turns_of_a_proxy_are_joined_with_the_record_of_a_server(tmp_path: Path) -> None:
    with scripted_model() as model:
        answer = asked(model, tmp_path / "turns", tmp_path)
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"
    step = StepRecord(ToolCall("add", {"by": 1}, 1), ToolOutcome.returned("1", 0.1), started_at=time.time())
    with Recorder(tmp_path / "record") as recorder:
        recorder.write(RecordedEpisode(Trajectory("e1", steps=[step]), RecordedEnvironment("count")))
        recorder.write(RecordedEpisode(Trajectory("e2"), RecordedEnvironment("count")))
    options = ["--turns", str(tmp_path / "turns"), "--out", str(tmp_path / "joined"), "--json"]
    done = mcpenv("trajectories", "join", tmp_path / "record", *options)
    assert (done.returncode, done.stderr) == (0, "")
    counts = {"episodes": 2, "joined": 1, "turns": 1, "calls": 1, "linked": 1, "unknown": []}
    assert json.loads(done.stdout) == counts
    first, second = read_episodes(tmp_path / "joined")
    assert first.model_turns is not None
    assert [(call.name, call.step) for call in first.model_turns[0].calls] == [("add", 1)]
    assert second.model_turns is None
    again = mcpenv("trajectories", "join", tmp_path / "record", *options)
    assert (again.returncode, "has a record already" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--base-url", "api.openai.com"], "is not an http:// or https:// URL of a model endpoint"),
        (["--base-url", "http://127.0.0.1:9", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY has no key"),
        (["--base-url", "http://127.0.0.1:9", "--request-fields", "[]"], "--request-fields is not a JSON object"),
    ],
)
def test_wrong_options_are_refused(options: list[str], says: str, tmp_path: Path) -> None:
    done = mcpenv("model-proxy", "--out", tmp_path / "turns", *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "turns").exists()
