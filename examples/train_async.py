"""Train while episodes run: samples of older weights are weighed by their log-probabilities, or dropped when too old.

Episodes of ``coloured_doors.py`` run all the time; their policy is a tiny model, which gives its tokens to `wrote`. The
weights change whenever a batch of groups has ended, so that other episodes began with older ones. Run it with a seed::

    python examples/train_async.py 1
"""

import asyncio
import statistics
import sys
from collections import Counter

from coloured_doors import COLOURS, ColouredDoors
from tiny_model import TinyModel

from mcpenv_client.pool import EnvPool, Episode, TaskSampler
from mcpenv_client.samples import Sample

GROUP, BATCH, UPDATES, MOST_SAMPLES, MAX_STALENESS = 8, 64, 60, 9000, 2


class Policy:
    """Plays by the model, at the pace of a model server."""

    def __init__(self, model: TinyModel) -> None:
        self.model = model

    async def __call__(self, episode: Episode) -> None:
        tokens = self.model.read(episode.prompt)
        while not episode.done:
            version = self.model.version
            ids, logprobs = self.model.write(tokens)
            await asyncio.sleep(self.model.dice.expovariate(200))  # a model server has its own queue
            episode.wrote(tokens, ids, logprobs, policy_version=version)
            name, *values = self.model.text(ids)
            result = await episode.call_tool(name, {"colour": values[0]} if values else {})
            tokens = [*tokens, *ids, *self.model.read(result.text or "")]


async def measured(pool: EnvPool, policy: Policy) -> float:
    """Return the mean reward of tasks that are not trained on."""
    tasks = [{"split": "test", "index": index} for index in range(64)]
    return statistics.fmean(each.reward or 0.0 for each in await pool.rollout(policy, tasks))


async def main(seed: int) -> None:
    """Train, and print what was used."""
    model = TinyModel({"read_sign": [], "open_door": COLOURS}, seed)
    policy, sampler = Policy(model), TaskSampler([{"split": "train", "index": index} for index in range(64)], seed=seed)
    used, dropped, batch = Counter[int](), Counter[int](), list[Sample]()
    async with EnvPool(ColouredDoors, size=64) as pool:
        before = await measured(pool, policy)
        pool.resume(policy_version=0)
        async for sample in pool.samples(policy, sampler, group=GROUP, max_staleness=MAX_STALENESS):
            assert sample.policy_version is not None
            stale = model.version - sample.policy_version
            (used if sample.usable else dropped)[stale] += 1
            assert sample.usable == (stale <= MAX_STALENESS)
            if sample.usable and sample.advantage:
                batch.append(sample)
            if len(batch) >= BATCH:
                pool.pause()  # a real trainer sends its weights to the model server here
                model.learn(batch, rate=0.5)
                batch.clear()
                pool.resume(policy_version=model.version)
            if model.version == UPDATES or used.total() == MOST_SAMPLES:  # a good policy's groups have no advantage
                break
        after = await measured(pool, policy)
    for name, counted in (("used", used), ("dropped", dropped)):
        print(f"samples {name}, by staleness:", dict(sorted(counted.items())))
    print(f"reward {before:.2f} before, {after:.2f} after {model.version} updates")
    assert after > before + 0.5
    assert model.version > 1 and max(used) <= MAX_STALENESS < min(dropped, default=MAX_STALENESS + 1)


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
