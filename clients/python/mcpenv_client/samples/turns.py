"""The turns of an episode's model, read from what a proxy recorded of its requests and answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mcpenv_client.types.model_turns import ModelTurn, TurnTokens, request_of
from mcpenv_client.types.records import Trajectory

from .as_chat import NotExpressed, as_chat
from .chain import samples_of
from .linking import link_calls
from .sample import LeftOut, Sample, SampledTurn

Tokenize = Callable[[dict[str, Any], dict[str, Any]], tuple[list[int], list[int]] | None]
"""Returns the tokens of a prompt and of its answer, from a request and an answer of chat completions; None if it has
none for them."""


def samples_of_recorded(
    recorded: Sequence[ModelTurn],
    trajectory: Trajectory | None = None,
    tokenize: Tokenize | None = None,
    tokenizer: str | None = None,
    **about: Any,
) -> list[Sample]:
    """Return the samples of an episode from the turns that a model proxy recorded. Their calls are joined to its steps.

    Args:
        recorded, tokenize, tokenizer: as for `turns_of`. Calls that are joined already are left as they are.
        trajectory, about: as for `samples_of`.
    """
    if trajectory is not None and not any(call.step is not None for turn in recorded for call in turn.calls):
        link_calls(recorded, trajectory)
    turns, left_out = turns_of(recorded, tokenize, tokenizer)
    return samples_of(turns, trajectory, left_out=left_out, **about)


def turns_of(
    recorded: Sequence[ModelTurn], tokenize: Tokenize | None = None, tokenizer: str | None = None
) -> tuple[list[SampledTurn], list[LeftOut]]:
    """Return the turns whose tokens are known, and those without.

    The endpoint's own tokens are used where it gave them. They are not believed if their number is not the one that the
    endpoint counted: some give the tokens of a text, and not those of calls or thoughts.

    Args:
        recorded: the turns of an episode, in the order in which they ended.
        tokenize: makes the tokens of a turn whose endpoint gave none; None leaves it out.
        tokenizer: its name, for `SampledTurn.tokenizer`.
    """
    found, left_out = [], []
    for index in range(len(recorded)):
        made = _turn_of(recorded, index, tokenize, tokenizer)
        if isinstance(made, SampledTurn):
            found.append(made)
        else:
            left_out.append(LeftOut(index, made))
    return found, left_out


def _turn_of(
    recorded: Sequence[ModelTurn], index: int, tokenize: Tokenize | None, tokenizer: str | None
) -> SampledTurn | str:
    """Return a turn, or the reason that it is left out."""
    turn = recorded[index]
    if turn.error is not None or turn.cut is not None or turn.status != 200:
        why = f"cut by the {turn.cut}" if turn.cut is not None else turn.error or f"status {turn.status}"
        return f"the endpoint gave no whole answer ({why})"
    steps = [call.step for call in turn.calls if call.step is not None]
    problem = _problem(turn)
    if problem is None:
        (tokens,) = turn.tokens
        return SampledTurn(turn.prompt_ids or [], tokens.ids or [], tokens.logprobs, steps, index, turn.policy_version)
    if tokenize is None or len(turn.tokens) > 1:
        return problem
    try:
        answer = turn.answer if isinstance(turn.answer, dict) else {}
        made = tokenize(*as_chat(turn.api, request_of(recorded, index), answer))
    except NotExpressed as error:
        return f"{problem}; the chat template cannot express {error}"
    except Exception as error:  # noqa: BLE001 - a chat template refuses conversations by errors of its own
        return f"{problem}; the chat template failed: {type(error).__name__}: {error}"
    if made is None:
        return f"{problem}; the chat template writes the prompt anew when the answer follows"
    return SampledTurn(*made, None, steps, index, turn.policy_version, tokenizer)


def _problem(turn: ModelTurn) -> str | None:
    """Return why the endpoint's own tokens of a turn cannot be used; None if they can."""
    if len(turn.tokens) > 1:
        return f"the agent asked for {len(turn.tokens)} answers at once"
    tokens = turn.tokens[0] if turn.tokens else TurnTokens()
    if not tokens.ids or turn.prompt_ids is None:
        given = (("the prompt", turn.prompt_ids is not None), ("the answer", bool(tokens.ids)))
        missing = [what for what, there in given if not there]
        return f"the endpoint gave no token ids of {' and '.join(missing)}"
    for what, ids, counted in (
        ("the answer", tokens.ids, None if turn.usage is None else turn.usage.output_tokens),
        ("the prompt", turn.prompt_ids, None if turn.usage is None else turn.usage.input_tokens),
    ):
        if counted is not None and counted != len(ids):
            return f"the endpoint gave {len(ids)} of the {counted} tokens of {what}"
    if tokens.logprobs is not None and len(tokens.logprobs) != len(tokens.ids):
        return f"the endpoint gave {len(tokens.logprobs)} log-probabilities for {len(tokens.ids)} tokens"
    return None
