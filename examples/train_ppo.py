"""Train a small policy with PPO: it learns to escape from mazes, sixty-four episodes at once on one server.

The policy is a network of 23 inputs and two layers of 64. Its inputs are a tool's answer and the number of visits to
the rooms around. Every episode is a new maze. Needs ``pip install torch``, no GPU and no language model. Run it::

    python examples/train_ppo.py --seed 1 --json curve.json     # starts a server of its own; some minutes
    python examples/train_ppo.py --url http://127.0.0.1:8000    # mcpenv run envs/maze_mcp
    python examples/train_ppo.py --cheat                        # in a maze that pays for a cheat
    python examples/train_ppo.py --quick                        # only shows that it runs
"""

import argparse
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from serving import HERE, served
from torch import nn

from mcpenv_client import CallToolAction, StepResult, Task, TaskLimits
from mcpenv_client.pool import EnvPool, SyncEnvPool

MAZE, LEAKY_MAZE = HERE.parent / "envs" / "maze_mcp", HERE / "leaky_maze.py"
SIZE, MOVES = 4, 48
TASK = Task(id="escape", options={"size": SIZE}, limits=TaskLimits(max_steps=1 + MOVES))  # the first step is a look

STEPS = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
LOOK = CallToolAction(tool_name="look")
CALLS = [CallToolAction(tool_name="walk", arguments={"direction": way}) for way in STEPS]
CALLS += [CallToolAction(tool_name="take_key"), CallToolAction(tool_name="unlock_door")]

EPISODES, UPDATES, STEPS_PER_UPDATE = 64, 80, 32
LEARNING_RATE, DISCOUNT, TRACE, CLIP, ENTROPY, EPOCHS, BATCHES = 3e-3, 0.95, 0.95, 0.2, 0.01, 4, 8
KEY_BONUS, MOVE_COST = 0.3, 0.01  # what the trainer adds; the curve has the environment's own reward only
SHOWN = 10  # updates whose mean is the reward before, and after


class Mazes:
    """Mazes in step. Each begins anew when it ends, and never with a maze that was there before."""

    def __init__(self, pool: SyncEnvPool, seed: int) -> None:
        self.pool = pool
        self.seeds = itertools.count(seed * 1_000_000)
        self.views: list[dict[str, Any]] = [{} for _ in range(pool.size)]
        self.visits: list[Counter[Any]] = [Counter() for _ in range(pool.size)]
        self.moves = [0] * pool.size
        self.ended: list[dict[str, float]] = []
        self.lost = 0
        self.begin([True] * pool.size)

    def begin(self, which: list[bool]) -> None:
        """Begin an episode where ``which`` says so, with a look around."""
        while any(which):
            seeds = [next(self.seeds) if new else None for new in which]
            begun = self.pool.reset_all([TASK] * self.pool.size, seeds=seeds, which=which)
            looked = self.pool.step_all([LOOK if step and not step.done else None for step in begun])
            for index, step in enumerate(looked):
                if step and not step.done:
                    self.visits[index].clear()
                    self.moves[index], which[index] = 0, False
                    self.see(index, step)

    def see(self, index: int, step: StepResult[Any]) -> None:
        """Keep the view from a room, and count the visit."""
        assert step.result is not None, step.error
        view = self.views[index] = step.result.data
        self.visits[index][view["column"], view["row"], view["has_key"]] += 1

    def step(self, choices: Sequence[int]) -> list[tuple[float | None, bool]]:
        """Make one call in each maze. Return the trainer's reward, None if the episode was lost, and the end."""
        results: list[tuple[float | None, bool]] = []
        for index, step in enumerate(self.pool.step_all([CALLS[choice] for choice in choices])):
            assert step is not None
            if step.done and not (step.episode_status and step.episode_status.usable):
                self.lost += 1  # not a reward of 0
                results.append((None, True))
                continue
            had_key = self.views[index]["has_key"]
            self.see(index, step)
            self.moves[index] += 1
            found = not had_key and self.views[index]["has_key"]
            results.append(((step.reward or 0.0) + KEY_BONUS * found - MOVE_COST, step.done))
            if step.done:
                self.ended.append({"reward": step.info["return"], "verified": step.info["reward"]["verified"]})
        self.begin([done for _, done in results])
        return results

    def inputs(self) -> torch.Tensor:
        """Return the inputs of the policy, a row for each maze."""
        return torch.tensor([self.inputs_of(index) for index in range(self.pool.size)])

    def inputs_of(self, index: int) -> list[float]:
        view, visits = self.views[index], self.visits[index]
        column, row, has_key = view["column"], view["row"], view["has_key"]
        rooms = [(column + x, row + y, has_key) for x, y in [*STEPS.values(), (0, 0)]]
        return [
            column / SIZE,
            row / SIZE,
            *(float(view["rooms_ahead"].get(way, 0)) for way in STEPS),
            float(has_key),
            *(float(view["key_ahead"] == way) for way in [*STEPS, "here"]),
            *(float(view["door_ahead"] == way) for way in [*STEPS, "here"]),
            *(float(min(visits[room], 4)) for room in rooms),
            1 - self.moves[index] / MOVES,
        ]


def network(outputs: int) -> Any:
    return nn.Sequential(nn.Linear(23, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def policy_of(actor: Any, inputs: torch.Tensor) -> Any:
    """Return the probabilities of the calls."""
    return torch.distributions.Categorical(logits=actor(inputs))


def play(mazes: Mazes, actor: Any, critic: Any, steps: int) -> tuple[torch.Tensor, ...]:
    """Take some steps. Return inputs, choices, their log-probabilities, advantages and returns, one row a step."""
    columns: tuple[list[torch.Tensor], ...] = tuple([] for _ in range(6))
    seen, chosen, logs, values, rewards, going = columns
    for _ in range(steps):
        inputs = mazes.inputs()
        policy, value = policy_of(actor, inputs), critic(inputs).squeeze(-1)
        choice = policy.sample()
        results = mazes.step(choice.tolist())
        # Of a lost episode nothing is known: the critic's own guess teaches nothing.
        given = [float(guess) if reward is None else reward for (reward, _), guess in zip(results, value, strict=True)]
        goes_on = torch.tensor([float(not done) for _, done in results])
        row = (inputs, choice, policy.log_prob(choice), value, torch.tensor(given), goes_on)
        for column, tensor in zip(columns, row, strict=True):
            column.append(tensor)
    advantages, advantage, later = [], torch.zeros(mazes.pool.size), critic(mazes.inputs()).squeeze(-1)
    for reward, value, goes_on in zip(reversed(rewards), reversed(values), reversed(going), strict=True):
        advantage = reward + DISCOUNT * goes_on * later - value + DISCOUNT * TRACE * goes_on * advantage
        later = value
        advantages.append(advantage)
    gained = torch.cat(advantages[::-1])
    return torch.cat(seen), torch.cat(chosen), torch.cat(logs), gained, gained + torch.cat(values)


def learn(actor: Any, critic: Any, optimizer: Any, rows: tuple[torch.Tensor, ...]) -> None:
    """Improve the policy by what was played (PPO, Schulman et al. 2017)."""
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(rows[0])).chunk(BATCHES):
            inputs, choices, logs, gained, returns = (each[batch] for each in rows)
            policy = policy_of(actor, inputs)
            ratio = (policy.log_prob(choices) - logs).exp()
            gained = (gained - gained.mean()) / (gained.std() + 1e-8)
            better = torch.minimum(ratio * gained, ratio.clamp(1 - CLIP, 1 + CLIP) * gained).mean()
            missed = (critic(inputs).squeeze(-1) - returns).square().mean()
            optimizer.zero_grad()
            (0.5 * missed - better - ENTROPY * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            optimizer.step()


def mean(points: Sequence[dict[str, Any]], name: str) -> float:
    """Return the mean over the episodes of some updates."""
    episodes = sum(point["episodes"] for point in points)
    return float(sum(point[name] * point["episodes"] for point in points if point["episodes"]) / max(episodes, 1))


def train(url: str, given: argparse.Namespace) -> dict[str, Any]:
    """Train one policy, and return its curve."""
    torch.set_num_threads(1)  # the network is small; the second core is the server's
    torch.manual_seed(given.seed)
    actor, critic = network(len(CALLS)), network(1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=LEARNING_RATE)
    curve: list[dict[str, Any]] = []
    before = torch.cat([each.detach().flatten().clone() for each in actor.parameters()])
    began = time.perf_counter()
    with EnvPool(url, given.episodes, backend="remote").sync() as pool:
        mazes = Mazes(pool, given.seed)
        for update in range(1, given.updates + 1):
            with torch.no_grad():
                rows = play(mazes, actor, critic, given.steps)
            learn(actor, critic, optimizer, rows)
            ended, mazes.ended = mazes.ended, []
            point: dict[str, Any] = {"update": update, "steps": update * len(rows[0]), "episodes": len(ended)}
            for name in ("reward", "verified"):
                point[name] = statistics.fmean(each[name] for each in ended) if ended else None
            curve.append(point)
            if update % SHOWN == 0:
                last = curve[-SHOWN:]
                print(
                    f"updates to {update:3}: reward {mean(last, 'reward'):.2f}, verified {mean(last, 'verified'):.2f}"
                )
    after = torch.cat([each.detach().flatten() for each in actor.parameters()])
    assert curve[-1]["steps"] == given.episodes * given.steps * given.updates
    assert after.isfinite().all() and not after.equal(before)
    return {
        "seed": given.seed,
        "cheat": given.cheat,
        "episodes_at_once": given.episodes,
        "seconds": round(time.perf_counter() - began, 1),
        "lost": mazes.lost,
        **{name: [mean(part, name) for part in (curve[:SHOWN], curve[-SHOWN:])] for name in ("reward", "verified")},
        "curve": curve,
    }


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server of envs/maze_mcp; without it the program starts one")
    parser.add_argument("--seed", type=int, default=1, help="of the network, the choices and the mazes (1)")
    parser.add_argument("--episodes", type=positive, default=EPISODES, help=f"episodes at once ({EPISODES})")
    parser.add_argument("--updates", type=positive, default=UPDATES, help=f"updates of the policy ({UPDATES})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the curve to this file")
    parser.add_argument("--cheat", action="store_true", help="train in examples/leaky_maze.py")
    parser.add_argument("--quick", action="store_true", help="2 updates of 8 steps, to see that it runs")
    given = parser.parse_args()
    if given.cheat and given.url:
        parser.error("--cheat starts a server of its own; leave out --url")
    given.steps = STEPS_PER_UPDATE
    if given.quick:
        given.updates, given.steps = 2, 8
    with ExitStack() as stack:
        url = given.url or stack.enter_context(served(LEAKY_MAZE if given.cheat else MAZE))
        run = train(url, given)
    if given.json:
        given.json.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    (reward, rewarded), (verified, escaped) = run["reward"], run["verified"]
    print(
        f"seed {given.seed}: {run['curve'][-1]['steps']} steps in {run['seconds']:.0f} s, {run['lost']} episodes lost"
    )
    print(f"reward {reward:.2f} to {rewarded:.2f}; verified {verified:.2f} to {escaped:.2f}")
    if given.updates < UPDATES or given.episodes < EPISODES:
        return  # too little to learn from
    assert rewarded > reward + 0.3, "the reward did not rise"
    if given.cheat:
        assert rewarded > escaped + 0.3, "the cheat was not found"


if __name__ == "__main__":
    main()
