"""Record episodes, read them, export them for a trainer, and replay them with the same outcome.

Run it::

    python examples/record_and_replay.py
"""

import json
import sys
import tempfile
from pathlib import Path

from mcpenv import Recorder, read_episodes
from mcpenv.extensions.exports import openai_row
from mcpenv.extensions.records.replay import Verdict, replay

sys.path.insert(0, str(Path(__file__).resolve().parent))
from write_an_environment import GuessNumber

with tempfile.TemporaryDirectory() as folder:
    with Recorder(folder) as recorder:
        env = GuessNumber()
        recorder.attach(env)
        for seed in range(3):
            env.reset(seed=seed)
            low, high = 1, 100
            while True:
                guess = (low + high) // 2
                observation = env.call_tool("guess", {"number": guess})
                if observation.done:
                    break
                low, high = (guess + 1, high) if observation.text == "higher" else (low, guess - 1)
        env.close()

    episodes = list(read_episodes(folder))
    for episode in episodes:
        trajectory = episode.trajectory
        print(f"seed {trajectory.seed}: {len(trajectory.steps)} guesses, return {trajectory.total_reward:g}")
        assert episode.ending == "terminated"

    # `mcpenv trajectories export --format chat-openai` writes such rows.
    row = openai_row(episodes[0], recorder.tools.read(episodes[0].tools))
    first_call = row["messages"][1]["tool_calls"][0]["function"]
    print("first call:", first_call["name"], first_call["arguments"])
    assert json.loads(first_call["arguments"]) == {"number": 50}

    # `mcpenv trajectories replay` does this for a whole record.
    for episode in episodes:
        played = replay(GuessNumber(), episode)
        assert played.verdict is Verdict.AGREES and played.recorded_hash == played.replayed_hash
    print("replayed:", len(episodes), "agree")

    # If a reward in the record is changed, replay reports the first difference.
    step = episodes[0].trajectory.steps[-1]
    assert step.reward is not None
    object.__setattr__(step.reward, "value", 1000.0)
    difference = replay(GuessNumber(), episodes[0]).difference
    assert difference is not None
    print(f"tampered: step {difference.step}, {difference.field}: {difference.recorded:g}, not {difference.replayed:g}")
    assert difference.step == step.call.step and difference.field == "reward.value"
