"""Samples of a pool: policies that give the model's tokens, on three backends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from pool_worlds import Dice, rolls_at_once
from test_env_pool import KINDS, TASKS

from mcpenv_client.pool import EnvPool, Limits, PolicyFailed
from mcpenv_client.samples import Sample, SampledTurn
from mcpenv_client.types.model_turns import ModelTurn, TurnCall, TurnTokens


async def two_rolls(episode: Any) -> None:
    """Roll twice; each roll is an answer of three tokens to a prompt that continues the one before."""
    prompt = [1, 2]
    for number in range(2):
        ids = [10 + number, 20, episode.assignment.sample]
        episode.wrote(prompt, ids, [-0.5, -0.25, -0.125], policy_version=4 + number)
        result = await episode.call_tool("roll", {})
        prompt = [*prompt, *ids, 30, len(result.text)]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_come_in_groups_with_advantages(kind: Callable[[], Any]) -> None:
    async def body() -> list[Sample]:
        async with kind() as pool:
            return [sample async for sample in pool.samples(two_rolls, TASKS[:3], group=4, seed=3)]

    samples = asyncio.run(body())
    assert len(samples) == 12
    for number in range(0, 12, 4):
        group = samples[number : number + 4]
        assert len({sample.group for sample in group}) == 1
        assert len({sample.task for sample in group}) == 1
        assert [sample.tokens[4] for sample in group] == [0, 1, 2, 3]
        assert abs(sum(sample.advantage or 0.0 for sample in group)) < 1e-9
    for sample in samples:
        assert sum(sample.mask) == 6
        assert [span.steps for span in sample.spans] == [(1,), (2,)]
        assert [span.policy_version for span in sample.spans] == [4, 5]
        assert sample.policy_version == 4
        assert sample.usable and sample.reward is not None and sample.environment == "Dice"
        assert len(sample.logprobs or []) == len(sample.tokens)


async def hangs_then_rolls(episode: Any) -> None:
    episode.wrote([1], [2])
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(episode.call_tool("hang", {"seconds": 0.3}), 0.05)
    episode.wrote([1, 2], [3])
    await episode.call_tool("roll", {})


async def hangs(episode: Any) -> None:
    episode.wrote([1], [2])
    await episode.call_tool("hang", {"seconds": 0.4})


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_the_policy_does_not_await_to_its_end_is_a_step_of_its_answer(kind: Callable[[], Any]) -> None:
    async def body() -> list[Any]:
        async with kind() as pool:
            left = [sample async for sample in pool.samples(hangs_then_rolls, TASKS[:1], seed=3)]
            late = pool.samples(hangs, TASKS[:1], seed=3, limits=Limits(episode_timeout_s=0.1))
            return [*left, *[sample async for sample in late]]

    left, late = asyncio.run(body())
    assert [(span.steps, span.reward) for span in left.spans] == [((1,), 0.125), ((2,), 0.125)]
    assert [(span.steps, span.reward) for span in late.spans] == [((1,), 0.125)]
    assert late.truncated


def test_what_an_earlier_play_left_is_left_by_one_that_is_closed_before_it_began() -> None:
    async def body() -> None:
        async with EnvPool(Dice) as pool:
            async with pool.play(two_rolls, TASKS[:3]) as stream:
                await anext(stream)
            left = stream.unfinished
            assert len(left) == 2
            plays: list[Any] = [pool.play, pool.groups, pool.samples]
            for play in plays:
                async with play(two_rolls, [], group=1, unfinished=iter(left)) as closed:
                    pass
                assert closed.unfinished == left
            async with pool.play(two_rolls, [], unfinished=left) as stream:
                assert (await anext(stream)).assignment in left
            assert len(stream.unfinished) == 1

    asyncio.run(body())


def test_a_sample_of_the_policys_own_stays_unusable_and_keeps_its_labels() -> None:
    async def gives(episode: Any) -> Sample:
        await episode.call_tool("roll", {})
        return Sample([1, 2], [0, 1], usable=episode.assignment.number > 0, labels={"mine": 1})

    async def body() -> list[Sample]:
        async with EnvPool(Dice) as pool:
            return [sample async for sample in pool.samples(gives, TASKS[:2])]

    assert {(sample.usable, sample.labels["mine"]) for sample in asyncio.run(body())} == {(False, 1), (True, 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_calls_at_once_belong_to_the_answer_that_made_them(kind: Callable[[], Any]) -> None:
    async def body() -> list[Sample]:
        async with kind() as pool:
            return [sample async for sample in pool.samples(rolls_at_once, TASKS[:2], group=2, seed=3)]

    samples = asyncio.run(body())
    assert len(samples) == 4
    for sample in samples:
        assert [span.steps for span in sample.spans] == [(1, 2, 3), (4,)] and (sample.pieces, sample.gap) == (1, None)
        earned = [span.reward for span in sample.spans if span.reward is not None]
        assert sample.reward == pytest.approx(sum(earned) + (sample.end_reward or 0.0)) and len(earned) == 2


@pytest.mark.parametrize("kind", [np.array, tuple])
def test_tokens_may_be_arrays_of_any_kind(kind: Callable[[Any], Any]) -> None:
    async def policy(episode: Any) -> None:
        episode.wrote(kind([1, 2]), kind([3, 4]), kind([-0.5, -0.25]))
        await episode.call_tool("roll")

    async def body() -> list[Sample]:
        async with EnvPool(Dice, 2) as pool:
            return [sample async for sample in pool.samples(policy, TASKS[:1], seed=1)]

    (sample,) = asyncio.run(body())
    assert (sample.tokens, sample.logprobs) == ([1, 2, 3, 4], [0.0, 0.0, -0.5, -0.25])
    assert json.loads(json.dumps([sample.tokens, sample.logprobs])) == [sample.tokens, sample.logprobs]
    assert sample.advantage is None  # it is alone in its group


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (([1], [0.5]), "wrote: ids must be a sequence of integers"),
        (([1], np.array([[1, 2]])), "wrote: ids must be a sequence of integers"),
        ((7, [1]), "wrote: prompt_ids must be a sequence of integers"),
        (([1], [2], [None]), "wrote: logprobs must be a sequence of numbers"),
    ],
)
def test_what_is_no_sequence_of_tokens_is_refused_by_name(given: Any, problem: str) -> None:
    async def policy(episode: Any) -> None:
        episode.wrote(*given)

    async def body() -> None:
        async with EnvPool(Dice, 1) as pool:
            await pool.rollout(policy, ["t1"])

    with pytest.raises(PolicyFailed) as failed:
        asyncio.run(body())
    assert isinstance(failed.value.__cause__, TypeError) and problem in str(failed.value.__cause__)


def values(*given: Any) -> list[Sample]:
    """Return the samples of a group of two, whose policy returns one value in each of its episodes, or the same."""

    async def policy(episode: Any) -> Any:
        await episode.call_tool("roll", {})
        return given[episode.assignment.number % len(given)]

    async def body() -> list[Sample]:
        async with EnvPool(Dice, 2) as pool:
            return [sample async for sample in pool.samples(policy, TASKS[:1], group=2, seed=1)]

    return asyncio.run(body())


def test_a_policy_may_return_samples_or_turns() -> None:
    one, other = values(Sample([1, 2], [0, 1]))
    assert (one.tokens, one.mask, one.usable, one.group) == ([1, 2], [0, 1], True, 0)
    assert one.episode_id != other.episode_id
    one, _ = values([SampledTurn([1], [2], [-1.0])])
    assert (one.tokens, one.mask, one.logprobs) == ([1, 2], [0, 1], [0.0, -1.0])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nothing", "the policy returned str and called no episode.wrote()"),
        (None, "the policy returned NoneType"),
        ([], "the policy returned no turns"),
        ([Sample([1], [1]), SampledTurn([1], [2])], "the policy returned Sample, SampledTurn"),
        ([SampledTurn([1], [])], "the model sampled no tokens"),
    ],
)
def test_an_episode_without_tokens_is_told_by_its_id_and_the_stream_goes_on(
    value: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = values(Sample([1, 2], [0, 1]), value)
    assert (good.tokens, good.usable, good.left_out) == ([1, 2], True, ())
    assert (bad.tokens, bad.usable, bad.reward is not None) == ([], False, True)
    assert reason in bad.left_out[0].reason
    assert f"({bad.episode_id}): 1 turns are in no sample: {reason}" in caplog.text


def recorded(prompt: list[int] | None, ids: list[int] | None, *calls: TurnCall) -> ModelTurn:
    """A turn as the model proxy records it, not joined to steps."""
    made = ModelTurn("chat_completions", "/v1", {"messages": []}, status=200, answer={}, prompt_ids=prompt)
    return replace(made, started_at=time.time(), calls=list(calls), tokens=[TurnTokens(ids, [-0.5] * len(ids or ()))])


def test_the_turns_of_a_model_proxy_are_joined_to_the_steps_and_lack_no_turn_silently() -> None:
    async def policy(episode: Any) -> list[ModelTurn]:
        first = recorded([1], [2], TurnCall("a", "mcp__env__roll", {}))
        await episode.call_tool("roll", {})
        without = recorded(None, None)
        odd = recorded([1, 2, 3], [4, 4])
        odd.tokens[0].logprobs = [-0.5]
        last = recorded([1, 2, 3, 4, 4, 5], [6], TurnCall("b", "mcp__env__roll", {}), TurnCall("c", "Bash", {}))
        await episode.call_tool("roll", {})
        return [first, without, odd, last]

    async def body() -> list[Sample]:
        async with EnvPool(Dice, 1) as pool:
            return [sample async for sample in pool.samples(policy, TASKS[:1], seed=1)]

    (sample,) = asyncio.run(body())
    assert [span.steps for span in sample.spans] == [(1,), (2,)]
    assert all(span.reward is not None for span in sample.spans)
    assert [(each.turn, each.reason) for each in sample.left_out] == [
        (1, "the endpoint gave no token ids of the prompt and the answer"),
        (2, "the endpoint gave 1 log-probabilities for 2 tokens"),
    ]
    assert sample.usable


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (None, "the answers of the model have no calls, and the episode has 1 steps"),
        (TurnCall("a", "Bash", {}), "none of the 1 calls (Bash) has the name of a tool of the steps (roll)"),
        (TurnCall("a", "mcp__env__roll", {"times": 2}), "the 1 calls have other arguments or times than the 1 steps"),
    ],
)
def test_turns_whose_calls_are_joined_to_no_step_are_told_with_the_reason_and_not_for_each_episode(
    call: TurnCall | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def policy(episode: Any) -> list[ModelTurn]:
        await episode.call_tool("roll", {})
        return [recorded([1], [2], *([] if call is None else [call]))]

    async def body() -> list[Sample]:
        async with EnvPool(Dice, 1) as pool:
            return [sample async for sample in pool.samples(policy, TASKS[:1] * 5, seed=1)]

    samples = asyncio.run(body())
    assert len(samples) == 5 and all(span.reward is None for sample in samples for span in sample.spans)
    told = [each.getMessage() for each in caplog.records if reason in each.getMessage()]
    assert [text.rpartition("; ")[2] for text in told] == [f"so far in {number} episodes" for number in (1, 2, 4)]
    assert f"({samples[0].episode_id}): its turns have no rewards of their own" in told[0]


def test_an_episode_whose_calls_are_joined_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def policy(episode: Any) -> list[ModelTurn]:
        if episode.assignment.number == 0:
            return [recorded([1], [2])]  # no call, and no step
        turn = recorded([1], [2], TurnCall("a", "Bash", {}), TurnCall("b", "env__roll", {}))
        await episode.call_tool("roll", {})
        return [turn]

    async def body() -> None:
        async with EnvPool(Dice, 1) as pool:
            assert len([sample async for sample in pool.samples(policy, TASKS[:2], seed=1)]) == 2

    asyncio.run(body())
    assert "rewards of their own" not in caplog.text


class Tokens(list[int]):
    """Token ids that note the threads which read them."""

    read_in: ClassVar[set[int]] = set()

    def __iter__(self) -> Any:
        self.read_in.add(threading.get_ident())
        return super().__iter__()


def test_a_tokenizer_without_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="a tokenizer needs the package transformers; install it"):
        EnvPool(Dice).samples(two_rolls, TASKS, tokenizer="some")


def test_samples_are_made_beside_the_event_loop() -> None:
    async def policy(episode: Any) -> list[SampledTurn]:
        await episode.call_tool("roll", {})
        return [SampledTurn(Tokens([1]), [2])]

    async def body() -> int:
        async with EnvPool(Dice, 1) as pool:
            assert [sample.tokens async for sample in pool.samples(policy, TASKS[:1])] == [[1, 2]]
        return threading.get_ident()

    Tokens.read_in.clear()
    loop = asyncio.run(body())
    assert Tokens.read_in and loop not in Tokens.read_in


def test_the_version_of_a_recorded_turn_is_read_and_a_stale_one_is_not_usable() -> None:
    def version(number: int | None) -> ModelTurn:
        made = ModelTurn("chat_completions", "/v1", {}, status=200, answer={}, prompt_ids=[1], policy_version=number)
        return replace(made, tokens=[TurnTokens([2])])

    def versions(limit: int | None, present: int | None, written: int | None) -> list[tuple[int | None, bool]]:
        async def policy(episode: Any) -> list[ModelTurn]:
            await episode.call_tool("roll", {})
            return [version(written)]

        async def body() -> list[tuple[int | None, bool]]:
            async with EnvPool(Dice, 1) as pool:
                pool.resume(present)
                found = pool.samples(policy, TASKS[:1], max_staleness=limit)
                return [(sample.policy_version, sample.usable) async for sample in found]

        return asyncio.run(body())

    assert (versions(2, 9, 7), versions(2, 9, 6)) == ([(7, True)], [(6, False)])
    assert versions(None, None, None) == [(None, True)]
    with pytest.raises(ValueError, match="the present version is unknown"):
        versions(2, None, 7)
    assert versions(2, 9, None) == [(9, True)]  # it was written by the version of the pool, or a later one
