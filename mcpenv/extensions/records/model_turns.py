"""Turns of models on the page of an episode."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mcpenv.cli.output import Page, number_of, printable
from mcpenv.extensions.model_proxy.apis import READERS
from mcpenv_client.types.model_turns import ModelTurn, TurnCall

_LINES = 12
_SHOWN_ARGUMENTS = 100


def show_turn(page: Page, number: int, turn: ModelTurn) -> None:
    """Print one turn.

    Args:
        number: its index among the turns of the episode.
    """
    answered = "no answer" if turn.status is None else f"{turn.status}"
    told = [answered, *_counted(turn), f"{turn.duration_s * 1000:.1f} ms"]
    page.line(
        (f"turn {number}  ", "dim"), (printable(turn.model or "a model"), "bold magenta"),
        (f"  {turn.api.replace('_', ' ')}, {', '.join(told)}", "dim"),
    )  # fmt: skip
    if turn.error is not None:
        page.line((printable(turn.error), "red"), indent=3)
    if turn.cut is not None:
        page.line((f"cut by the {turn.cut}", "red"), indent=3)
    text = READERS[turn.api].text(turn.answer) if isinstance(turn.answer, dict) else turn.answer or ""
    lines = text.strip().splitlines()
    for line in lines[:_LINES]:
        page.line(printable(line.replace("\t", "    ")), indent=3)
    if len(lines) > _LINES:
        page.line((f"and {number_of(len(lines) - _LINES, 'line')} more; --json has all of them", "dim"), indent=3)
    for call in turn.calls:
        step = ("made no step", "dim") if call.step is None else (f"step {call.step}", "")
        page.line(("calls ", "dim"), printable(call.name), printable(f"({_arguments(call)})  "), step, indent=3)


def _counted(turn: ModelTurn) -> Iterator[str]:
    if turn.usage is not None:
        cached = f" ({turn.usage.cached_tokens:,} cached)" if turn.usage.cached_tokens else ""
        yield f"{turn.usage.input_tokens or 0:,} tokens{cached} in, {turn.usage.output_tokens or 0:,} out"
    for tokens in turn.tokens:
        kept = [name for name, values in (("ids", tokens.ids), ("log-probabilities", tokens.logprobs)) if values]
        yield f"{len(tokens):,} kept with {' and '.join(kept)}"


def _arguments(call: TurnCall) -> str:
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return text if len(text) <= _SHOWN_ARGUMENTS else text[:_SHOWN_ARGUMENTS] + "..."
