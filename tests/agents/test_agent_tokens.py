"""Tokens of agent programs that we did not write: each episode is a chain, or says where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import token_model
from jinja2.sandbox import SandboxedEnvironment as Environment
from scripted_model import DONE, scripted_model
from test_agent_programs import CODEX, COUNTING, KEY, PROGRAMS, RECORDED, TIMEOUT_S, mcpenv, variables

from mcpenv.trajectories import read_episodes
from mcpenv_client.samples import samples_of_recorded
from mcpenv_client.samples.rendered import ChatTokens

Answering = Callable[[str, token_model.JSON], tuple[str | None, bytes]]
ENDPOINTS = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "SCRIPTED_KEY")


def evaluated(name: str, folder: Path, command: str, answering: Answering) -> dict[str, str]:
    """Evaluate a program on an episode with its model recorded, and return the variables of its environment."""
    with scripted_model(answering) as model:
        env = {**variables(PROGRAMS[name], model, folder), "THE_KEY": KEY}
        for variable in ENDPOINTS:
            env.pop(variable, None)
        if (config := folder / "home" / ".codex" / "config.toml").exists():
            config.write_text('model = "gpt-5"\n')
        options = ["--split", "odd", "--out", str(folder / "out"), "--isolation", "none", "--json"]
        options += ["--base-url", f"{model.url}/v1", "--api-key-env", "THE_KEY", "--timeout-s", str(TIMEOUT_S - 30)]
        done = mcpenv("eval", COUNTING, "--agent", command, *options, env=env)
        said = "".join(log.read_text() for log in (folder / "out" / "agents").glob("*.log"))
        assert done.returncode == 0, f"{done.stderr}\n{said[-3000:]}"
    return env


def exported(name: str, folder: Path, command: str, thought: str = token_model.THOUGHT) -> list[dict[str, Any]]:
    """Evaluate a program on an episode with its model recorded, and return the exported samples."""
    env = evaluated(name, folder, command, partial(token_model.answered, thought=thought))
    out = folder / "samples.jsonl"
    done = mcpenv("trajectories", "export", str(folder / "out" / "record"), "-f", "tokens", "-o", str(out), env=env)
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    return [json.loads(line) for line in out.read_text().splitlines()]


class Bytes:
    """A tokenizer with a token for each byte, and one for the end of a message."""

    eos_token_id = 256
    template = """\
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>
{% endif %}{{ message.content }}{% for call in message.tool_calls or () %}
<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

    def apply_chat_template(self, messages: Any, *, tokenize: bool, **given: Any) -> str | list[int]:
        text = Environment(keep_trailing_newline=True).from_string(self.template).render(messages=messages, **given)
        if not tokenize:
            return text
        ends = [[*part.encode(), self.eos_token_id] for part in text.split("<|im_end|>")]
        return [token for each in ends for token in each][:-1]


@pytest.mark.world
@pytest.mark.parametrize("name", ["Claude Code", "Codex"])
def test_a_program_at_an_endpoint_without_ids_is_tokenised_by_a_template(name: str, tmp_path: Path) -> None:
    evaluated(name, tmp_path, PROGRAMS[name].command.replace(CODEX, CODEX + RECORDED[name]), token_model.without_ids)
    (episode,) = read_episodes(tmp_path / "out" / "record")
    assert not any(turn.tokens or turn.prompt_ids for turn in episode.model_turns or ())
    samples = samples_of_recorded(episode.model_turns or (), episode.trajectory, ChatTokens(Bytes()), "bytes")
    assert {each.tokenizer for each in samples} == {"bytes"} and not any(each.left_out for each in samples)
    assert all(each.logprobs is None for each in samples)
    sample = samples[-1]
    calling, last = sample.spans[-2:]
    assert (calling.steps, last.steps, sample.reward, sample.usable) == ((1, 2), (), 1.0, True)
    written = bytes(sample.tokens[calling.start : calling.end - 1]).decode()
    assert written.startswith(f"<think>{token_model.THOUGHT}</think>") and written.count("<tool_call>") == 2
    assert sample.tokens[calling.end - 1] == Bytes.eos_token_id
    assert bytes(sample.tokens[last.start : last.end - 1]).decode() == DONE
    between = bytes(token for token in sample.tokens[calling.end : last.start] if token < 256).decode()
    assert between.count("<|im_start|>tool\n") == 2 and not any(sample.mask[calling.end : last.start])
    # Claude Code has asked for the schema of the tool before, which changed the list at the head of the prompt.
    assert len(samples) == (2 if name == "Claude Code" else 1)


def text(sample: dict[str, Any], start: int, end: int) -> str:
    return bytes(sample["tokens"][start:end]).decode()


@pytest.mark.world
@pytest.mark.parametrize("name", ["Claude Code", "Codex"])
def test_an_episode_of_a_program_is_a_chain_of_tokens(name: str, tmp_path: Path) -> None:
    command = PROGRAMS[name].command.replace(CODEX, CODEX + RECORDED[name])
    samples = exported(name, tmp_path, command)
    (sample,) = [each for each in samples if any(span["steps"] for span in each["spans"])]
    calling = next(span for span in sample["spans"] if span["steps"])
    assert (calling["steps"], sample["reward"], sample["usable"]) == ([1, 2], 1.0, True)
    written = text(sample, calling["start"], calling["end"])
    assert written.count("add") == 2 and '"by": 1' in written.replace("\\", "")
    last = sample["spans"][-1]
    assert last["turn"] > calling["turn"] and DONE in text(sample, last["start"], last["end"])
    between = text(sample, calling["end"], last["start"])
    assert "1" in between and not any(sample["mask"][calling["end"] : last["start"]])
    assert sum(sample["mask"]) == sum(span["end"] - span["start"] for span in sample["spans"])
    assert [each for each, kept in zip(sample["logprobs"], sample["mask"], strict=True) if kept] == [
        token_model.LOGPROB
    ] * sum(sample["mask"])
    assert token_model.THOUGHT in written  # and it comes back, or the chain would be broken behind it
    if name == "Claude Code":
        # It has asked for the schema of the tool before, which changed the list of tools at the head of the prompt.
        assert (sample["piece"], sample["pieces"], sample["gap"]["place"]) == (1, 2, "prompt")
    else:
        assert (sample["pieces"], sample["gap"]) == (1, None)


@pytest.mark.world
def test_a_program_that_compacts_its_conversation_has_a_sample_after_it(tmp_path: Path) -> None:
    limit = "-c model_auto_compact_token_limit=10000 "  # less than its first prompt
    before, after = exported(
        "Codex", tmp_path, PROGRAMS["Codex"].command.replace(CODEX, CODEX + limit + RECORDED["Codex"])
    )
    calling, summary = before["spans"]
    assert (calling["steps"], before["gap"], after["gap"]["turn"]) == ([1, 2], None, 2)
    assert "COMPACTION" in text(before, calling["end"], summary["start"])
    (last,) = after["spans"]
    prompt = text(after, 0, last["start"])
    assert DONE in prompt and '"add"' not in prompt.split("\n{", 1)[1]  # the calls are gone, their summary is not
    assert after["gap"]["at"] < after["gap"]["of"] and after["gap"]["place"] == "prompt"
    assert sum(after["mask"]) == last["end"] - last["start"]
    assert (before["reward"], after["reward"], before["pieces"]) == (1.0, 1.0, 2)


@pytest.mark.world
def test_claude_code_compacts_and_has_samples_after_it(tmp_path: Path) -> None:
    limit = "env CLAUDE_CODE_AUTO_COMPACT_WINDOW=100000 CLAUDE_AUTOCOMPACT_PCT_OVERRIDE=60 "
    thought = token_model.THOUGHT * 2500  # more tokens than that, but its first prompt has fewer
    samples = exported("Claude Code", tmp_path, limit + PROGRAMS["Claude Code"].command, thought)
    (calling,) = [each for each in samples if any(span["steps"] for span in each["spans"])]
    (calls,) = calling["spans"]  # what comes next does not continue it
    assert (calls["steps"], calling["reward"]) == ([1, 2], 1.0)
    assert thought in text(calling, calls["start"], calls["end"])
    summing, after = samples[calling["piece"] + 1], samples[-1]
    assert token_model.SUMMING in text(summing, 0, summing["spans"][0]["start"])
    (last,) = after["spans"]
    assert DONE in text(after, 0, last["start"]) and token_model.SUMMING not in text(after, 0, last["start"])
    for sample in samples[1:]:
        first = sample["spans"][0]
        assert sample["gap"]["turn"] == first["turn"] and sample["gap"]["at"] < sample["gap"]["of"]
        assert sample["gap"]["place"] == "prompt" and not any(sample["mask"][: first["start"]])
    turns = [span["turn"] for sample in samples for span in sample["spans"]]
    assert sorted(turns) == list(range(len(turns)))  # none is trained on twice
    assert {each["reward"] for each in samples} == {1.0} and {each["pieces"] for each in samples} == {len(samples)}
