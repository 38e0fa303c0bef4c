"""A record in which everything that can be a text attacks the page that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from console_world import ATTACK, ConsoleWorld

from mcpenv import Recorder
from mcpenv.trajectories import RecordedEpisode, read_episodes


def attacked(folder: Path) -> RecordedEpisode:
    """Record an episode in which everything that can be a text is an attack."""
    with Recorder(folder) as recorder:
        env: Any = ConsoleWorld()
        recorder.attach(env)
        env.reset(episode_id=ATTACK)
        env.call_tool("attack", {"text": ATTACK})
        env.call_tool("attack", {"text": "</pre></style><script>window.attacked=1</script>"})
        for name in ("attack_by_error", "attack_by_media", "attack_by_keys"):
            env.call_tool(name)
        env.end(reason=ATTACK)
    (episode,) = read_episodes(folder)
    call = {"id": ATTACK, "type": "function", "function": {"name": ATTACK, "arguments": ATTACK}}
    episode.messages = [
        {"role": "system", "content": ATTACK},
        {"role": "user", "content": [{"type": "text", "text": ATTACK}, {"type": ATTACK, ATTACK: ATTACK}]},
        {"role": "assistant", "content": ATTACK, "tool_calls": [call], ATTACK: ATTACK},
        {"role": "tool", "tool_call_id": ATTACK, "content": ATTACK},
    ]
    episode.agent = {ATTACK: ATTACK}
    return episode
