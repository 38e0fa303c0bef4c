"""Let an agent act on an episode of an orchestrator. The agent sees tools, the orchestrator sees rewards.

The orchestrator resets an episode over ``/ws`` and gives its address to an agent. The agent is a separate program
(``agent_program.py``, with the ``mcp`` package's client). The orchestrator waits, and gets the last observation, the
reward and the trajectory. This runs four times: with clients of both protocol eras, on a server without credentials,
and on one with a control token for orchestrators and bearer tokens for agents.

Run it::

    python examples/agent_on_episode.py
"""

import asyncio
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from serving import GUESS_NUMBER, served

from mcpenv_client import EnvClient

AGENT = Path(__file__).resolve().parent / "agent_program.py"
CONTROL_TOKEN, ADAS_TOKEN = "the-orchestrators-secret", "the-secret-of-ada"
NOT_FOR_AGENTS = ("reward", "return", "done", "terminated", "truncated", "score", "episode_id")


async def agent(url: str, era: str, token: str | None) -> str:
    """Run the agent with that URL and return its output."""
    variables = {} if token is None else {"AGENT_TOKEN": token}
    program = await asyncio.create_subprocess_exec(
        sys.executable, str(AGENT), url, era, stdout=asyncio.subprocess.PIPE, env={**os.environ, **variables}
    )
    said, _ = await program.communicate()
    assert program.returncode == 0
    return said.decode()


async def episode(server: str, era: str, *, secured: bool) -> str:
    """Let an agent play one episode, and return a line about it."""
    headers = {"Authorization": f"Bearer {CONTROL_TOKEN}"} if secured else {}
    async with EnvClient(server, headers=headers) as env:
        first = await env.reset(seed=7)
        playing = agent(first.info["mcp_url"], era, ADAS_TOKEN if secured else None)
        last, said = await asyncio.gather(env.wait(timeout_s=60), playing)
        trajectory = await env.trajectory()

    # The orchestrator sees the end, the reward and every step.
    assert last.done and last.terminated and last.text == "right"
    assert last.reward == 1.0 and last.info["return"] == 1.0
    assert trajectory.terminated and trajectory.total_reward == 1.0
    *before, final = trajectory.steps
    assert final.reward is not None and final.reward.value == 1.0
    assert [step.reward for step in before] == [None] * len(before)
    assert {step.call.plane.value for step in trajectory.steps} == {"agent"}
    assert {step.call.principal for step in trajectory.steps} == {"ada" if secured else None}

    # The agent sees the same answers and that the episode is over, and nothing else.
    guesses = [line for line in said.splitlines() if line.startswith("guess ")]
    assert len(guesses) == len(trajectory.steps) + 1
    assert "right" in guesses[-2] and "The episode is over." in guesses[-1]
    assert [word for word in NOT_FOR_AGENTS if word in said.lower()] == []
    how = f"{said.splitlines()[0]}{', with tokens' if secured else ''}"
    return f"{how}: {len(trajectory.steps)} steps, return {last.info['return']}"


async def main(plain: str, secured: str) -> None:
    played = await asyncio.gather(
        *(
            episode(server, era, secured=server is secured)
            for server in (plain, secured)
            for era in ("legacy", "2026-07-28")
        )
    )
    print("\n".join(played))


with ExitStack() as stack:
    folder = Path(stack.enter_context(TemporaryDirectory()))
    (folder / "control").write_text(CONTROL_TOKEN)
    (folder / "agents").write_text(f"ada={ADAS_TOKEN}\n")
    tokens = ("--control-token-file", str(folder / "control"), "--agent-tokens-file", str(folder / "agents"))
    asyncio.run(
        main(
            stack.enter_context(served(GUESS_NUMBER)),
            stack.enter_context(served(GUESS_NUMBER, *tokens)),
        )
    )
