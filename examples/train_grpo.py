"""Train a language model with TRL's GRPO: it learns to read a sign, and to open the door that the sign names.

Without ``--model`` it makes a tiny Qwen3 and a tokenizer on the spot, for a CPU. That model first imitates a
player who often guesses, until the right call has a probability of 0.45. GRPO begins there: it sharpens what imitation
began, and does not find the rule from nothing. Needs ``pip install "./clients/python[trl]" . jmespath``. Run it::

    python examples/train_grpo.py --seeds 1 --json curve.json   # starts a server of its own; some minutes a seed
    python examples/train_grpo.py --model Qwen/Qwen3-0.6B       # a real model on a GPU, without imitation
    python examples/train_grpo.py --url http://127.0.0.1:8000   # mcpenv run examples/coloured_doors.py
    python examples/train_grpo.py --quick                       # only shows that it runs
    python examples/train_grpo.py --env office                  # a tiny policy chooses calls of an office's tools
    python examples/train_grpo.py --env office --model Qwen/Qwen3-4B   # a real model learns the same tasks
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import choose_calls
import torch
from serving import HERE, served
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
    set_seed,
)
from transformers.utils import logging as progress
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from mcpenv import load
from mcpenv_client import ConnectionFailed, EnvClient, WireError
from mcpenv_client.trainers.trl import McpenvSpec

DOORS, OFFICE = HERE / "coloured_doors.py", HERE.parent / "envs" / "office_mcp"
COLOURS = ("red", "blue", "green", "gold")

# -- the tiny model, and what it imitates

MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEMPLATE = """\
{%- for tool in tools or [] %}{{ '<|im_start|>system\n' if loop.first else ', ' }}{{ tool.function.name }}\
{{ '<|im_end|>\n' if loop.last }}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>' + message.content + '</tool_response><|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""A chat template without the tools' schemas, which would be most of what a tiny model reads."""

READS, HEEDS = 0.8, 0.7
"""How often the imitated player reads the sign, and then does what the sign says."""
SKILL, LOOK_EVERY, MOST_UPDATES = 0.45, 5, 3000
"""Imitation ends when the right message has this probability after the sign was read."""
IMITATED, IMITATION_RATE = 32, 1e-3

# -- what GRPO needs

TINY = {
    "learning_rate": 5e-4,
    "beta": 0.04,
    "scale_rewards": "batch",
    "max_grad_norm": 0.1,
    "max_completion_length": 80,
    "max_tool_calling_iterations": 2,
    "per_device_train_batch_size": 64,
    "per_device_eval_batch_size": 64,
    "num_generations": 8,
    "gradient_checkpointing": False,
    "bf16": False,
    "use_cpu": True,
}
REAL = {
    "learning_rate": 1e-6,
    "max_completion_length": 512,
    "max_tool_calling_iterations": 3,
    "chat_template_kwargs": {"enable_thinking": False},  # a template without this word ignores it
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "num_generations": 8,
    "bf16": torch.cuda.is_available(),
    "use_cpu": not torch.cuda.is_available(),
}
OFFICE_SETTINGS = {
    "max_completion_length": 4096,
    "max_tool_calling_iterations": 10,
    # An episode has some 14,000 tokens: one at a time is learned from, and the eight of one task are played at once.
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 32,
    "steps_per_generation": 8,
}
STEPS, SHOWN = 80, 10
FEW = 40
"""The tasks of office of which ``--quick`` takes those of the lower levels."""
MEASURED = 32
"""The tasks that are played before and after, eight times each."""


def message_of(name: str, **arguments: str) -> dict[str, Any]:
    """Return a model's message with one call."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def game(episode: Any, row: dict[str, Any], dice: random.Random) -> list[dict[str, Any]]:
    """Play an episode as the player who is imitated, and return the conversation."""
    said = [{"role": "user", "content": episode.reset(**row)}]
    door = dice.choice(COLOURS)
    if dice.random() < READS:
        sign = episode.read_sign()
        said += [message_of("read_sign"), {"role": "tool", "content": sign}]
        if dice.random() < HEEDS:
            door = next(colour for colour in COLOURS if colour in sign)
    said += [message_of("open_door", colour=door), {"role": "tool", "content": episode.open_door(colour=door)}]
    episode.get_reward()
    return [*said, {"role": "assistant", "content": "Done."}]


def tokenizer_of(games: list[list[dict[str, Any]]], tools: list[Any]) -> Any:
    """Return a small tokenizer, made from what is said in some games."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    tokenizer.chat_template = TEMPLATE
    texts = [tokenizer.apply_chat_template(each, tools=tools, tokenize=False) for each in games]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<pad>", *MARKS], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, bpe)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = qwen3_template
    return tokenizer


def tiny_model(tokenizer: Any) -> Any:
    """Return a new model of two layers."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def taught(tokenizer: Any, tools: list[Any], messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Return the tokens of a game and their labels: -100 for what is not the model's."""
    ids: list[int] = []
    labels: list[int] = []
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            ends = [
                tokenizer.apply_chat_template(
                    messages[:end], tools=tools, add_generation_prompt=end == at, return_dict=False
                )
                for end in (at, at + 1)
            ]
            labels += [-100] * (len(ends[0]) - len(labels)) + ends[1][len(ends[0]) :]
            ids = ends[1]
    return ids, labels


def skill(model: Any, tokenizer: Any, tools: list[Any], games: list[list[dict[str, Any]]]) -> float:
    """Return the mean probability of the whole right message, once the sign was read.

    The colour alone is not enough: a model can know it before it can write a call, and then is paid for nothing.
    """
    chances = []
    for colour in COLOURS:
        read = next(each[:3] for each in games if len(each) > 4 and colour in each[2]["content"])
        ids, labels = taught(tokenizer, tools, [*read, message_of("open_door", colour=colour)])
        message = len(ids) - next(at for at, label in enumerate(reversed(labels)) if label == -100)
        with torch.no_grad():
            logs = model(input_ids=torch.tensor([ids])).logits[0, message - 1 : -1].log_softmax(-1)
        chances.append(float(logs.gather(1, torch.tensor([ids[message:]]).T).sum().exp()))
    return statistics.fmean(chances)


def imitate(
    model: Any, tokenizer: Any, tools: list[Any], games: list[list[dict[str, Any]]], dice: random.Random
) -> dict[str, Any]:
    """Teach the model the player's messages until it has the skill, and return the numbers of this start.

    Raises:
        RuntimeError: it has not the skill after many updates.
    """
    began = time.perf_counter()
    pairs = [taught(tokenizer, tools, each) for each in games]
    optimizer = torch.optim.AdamW(model.parameters(), lr=IMITATION_RATE)
    reached = 0.0
    for update in range(1, MOST_UPDATES + 1):
        batch = dice.sample(pairs, IMITATED)
        longest = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (longest - len(ids)) for ids, _ in batch])
        labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in batch])
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % LOOK_EVERY == 0:
            reached = skill(model, tokenizer, tools, games)
            if update % 100 == 0:
                print(f"imitation {update}: loss {loss.item():.3f}, the right answer {reached:.2f}", flush=True)
            if reached >= SKILL:
                seconds = round(time.perf_counter() - began, 1)
                print(f"imitation ends after {update} updates, {seconds:.0f} s: the right answer {reached:.2f}")
                return {"updates": update, "skill": reached, "loss": loss.item(), "seconds": seconds}
    raise RuntimeError(
        f"after {MOST_UPDATES} updates the right answer has {reached:.2f}, not {SKILL}; try another seed"
    )


class Curve(TrainerCallback):  # type: ignore[misc,unused-ignore]  # not typed where it is not installed
    """The rewards of each step, read from the environments."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.points: list[dict[str, Any]] = []
        self.measured: list[dict[str, float]] = []
        self.lost = 0

    def point(self) -> list[dict[str, float]]:
        """Return the rewards of the last rollouts."""
        endings = [episode.ending for episode in self.trainer.environments]
        usable = [ending for ending in endings if ending.reward is not None]
        self.lost += len(endings) - len(usable)
        return [{"reward": ending.reward, "verified": ending.parts["verified"]} for ending in usable]

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        self.measured += self.point()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return
        ended = self.point()
        means = {
            name: statistics.fmean(each[name] for each in ended) if ended else None for name in ("reward", "verified")
        }
        kept = {name: logs.get(name) for name in ("loss", "kl", "grad_norm", "completions/mean_length")}
        self.points.append({"steps": state.global_step, "episodes": len(ended), **means, **kept})
        if state.global_step % SHOWN == 0:
            last = self.points[-SHOWN:]
            print(
                f"steps to {state.global_step:3}: reward {mean(last, 'reward'):.2f}, "
                f"verified {mean(last, 'verified'):.2f}, kl {logs.get('kl', 0):.3f}, "
                f"{logs['completions/mean_length']:.0f} tokens",
                flush=True,
            )

    def measure(self) -> dict[str, float]:
        """Play the tasks of the split test, and return the mean rewards."""
        self.measured = []
        self.trainer.evaluate()
        return {name: statistics.fmean(each[name] for each in self.measured) for name in ("reward", "verified")}


def mean(points: list[dict[str, Any]], name: str) -> float:
    """Return the mean over the episodes of some steps."""
    episodes = sum(point["episodes"] for point in points)
    return float(sum(point[name] * point["episodes"] for point in points if point["episodes"]) / max(episodes, 1))


def train(url: str, seed: int, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train one model, and return its curve."""
    set_seed(seed)
    began = time.perf_counter()
    start: dict[str, Any] | None = None
    tokenizer = loaded(given.model) if given.model else None
    office = given.env == "office"
    few = FEW if office and given.quick else None
    spec = McpenvSpec(url, num_tasks=few, processing_class=tokenizer)
    measured = few if office else 8 if given.quick else MEASURED
    held_out = McpenvSpec(url, split="test", num_tasks=measured).train_dataset
    path, settings = given.model, REAL | (OFFICE_SETTINGS if office else {})
    if few:
        settings["max_completion_length"] = 64
    if tokenizer is None:
        torch.set_num_threads(1)  # a second thread makes so small a model slower
        path, settings = str(folder / "start"), TINY
        episode, dice = spec.environment_factory(), random.Random(seed)
        games = [game(episode, row, dice) for row in spec.train_dataset]
        tokenizer = tokenizer_of(games, spec.tools)
        model = tiny_model(tokenizer)
        start = imitate(model, tokenizer, spec.tools, games, dice)
        model.save_pretrained(path)
    curve = Curve()
    trainer = curve.trainer = GRPOTrainer(
        model=path,
        args=GRPOConfig(
            output_dir=str(folder),
            seed=seed,
            max_steps=given.steps,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            model_init_kwargs=None if given.model else {"dtype": "float32"},
            **settings,
        ),
        processing_class=tokenizer,
        train_dataset=of_levels(spec.train_dataset) if office else spec.train_dataset,
        eval_dataset=of_levels(held_out).select(range(8 if given.quick else 64)) if office else held_out,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
        callbacks=[curve],
    )
    trainer.remove_callback(PrinterCallback)
    before = curve.measure()
    trainer.train()
    after = curve.measure()
    if given.save:
        trainer.save_model(str(given.save / f"seed-{seed}"))
    return {
        "seed": seed,
        "model": given.model,
        "cheat": False,
        "start": start,
        "seconds": round(time.perf_counter() - began, 1),
        "lost": curve.lost,
        **{name: [before[name], after[name]] for name in ("reward", "verified")},
        "curve": curve.points,
    }


def of_levels(rows: Any) -> Any:
    """Return the rows whose tasks have the levels that are learned."""
    return rows.filter(lambda row: row["level"] in choose_calls.LEVELS)


def train_chooser(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train the policy that chooses calls, once with each seed and sampler, and yield the curves."""
    updates = 2 if given.quick else given.steps or choose_calls.UPDATES
    with EnvClient(given.url).sync() if given.url else load(OFFICE) as env:
        for seed in given.seeds:
            yield from choose_calls.train(env, seed, given.samplers, updates)


def train_models(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train a language model with each seed, and yield the curves."""
    given.steps = 2 if given.quick else given.steps or STEPS
    with ExitStack() as stack:
        target = OFFICE if given.env == "office" else DOORS
        url = given.url or stack.enter_context(served(target, "--max-sessions", "200"))
        check(url, target)
        for seed in given.seeds:
            yield train(url, seed, given, Path(stack.enter_context(tempfile.TemporaryDirectory())))


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def loaded(model: str) -> Any:
    """Return the tokenizer of a model; exit if there is none."""
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        sys.exit(f"train_grpo: --model {model} cannot be loaded: {error}")


def check(url: str, target: Path) -> None:
    """Exit if the server has not the environment."""
    wanted = {OFFICE: {"search_mails", "answer"}, DOORS: {"read_sign", "open_door"}}[target]
    try:
        tools = {tool["function"]["name"] for tool in McpenvSpec(url, num_tasks=1).tools}
    except (ConnectionFailed, WireError, ValueError) as error:
        sys.exit(f"train_grpo: {url}: {error}\nServe the environment by: mcpenv run {target}")
    if not wanted <= tools:
        sys.exit(f"train_grpo: {url} has the tools {sorted(tools)}. Serve the environment by: mcpenv run {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=("doors", "office"), default="doors", help="the environment (doors)")
    parser.add_argument("--url", help="a server of the environment; without it the program starts one")
    parser.add_argument("--model", help="a model's name or folder; without it a tiny one is made")
    parser.add_argument(
        "--samplers",
        nargs="+",
        choices=[*choose_calls.SAMPLERS],
        default=["plain"],
        help="how the tiny policy of office takes tasks; one run for each (plain)",
    )
    parser.add_argument("--seeds", type=positive, nargs="+", default=[1], metavar="SEED", help="one run for each (1)")
    parser.add_argument(
        "--steps",
        type=positive,
        help=f"steps of GRPO ({STEPS}; {choose_calls.UPDATES} of the tiny policy of office)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the curves to this file, after each run")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write each trained model to FOLDER/seed-SEED")
    parser.add_argument("--quick", action="store_true", help="2 steps, to see that it runs")
    given = parser.parse_args()
    progress.disable_progress_bar()  # of files that are loaded
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    if given.json and not given.json.parent.is_dir():
        parser.error(f"--json {given.json}: there is no folder {given.json.parent}; make it first")
    runs: list[dict[str, Any]] = []
    for run in train_chooser(given) if given.env == "office" and not given.model else train_models(given):
        runs.append(run)
        if given.json:
            given.json.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")
        (reward, rewarded), (verified, right) = run["reward"], run["verified"]
        print(
            f"seed {run['seed']}: reward {reward:.2f} to {rewarded:.2f}, verified {verified:.2f} to {right:.2f}, "
            f"{run['lost']} episodes lost, {run['seconds']:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
