"""Answers without token ids, tokenised by a chat template."""

from __future__ import annotations

from typing import Any

import pytest

from mcpenv_client.samples.rendered import ChatTokens

END = 9


class Letters:
    """A tokenizer with a token for each letter, and a template that ends each message with `END` and a line break."""

    eos_token_id = END

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool, **options: Any) -> list[int]:
        tokens: list[int] = []
        for message in messages:
            tokens += [7, *map(ord, message["content"]), END, 8]
        return [*tokens, 7] if add_generation_prompt else tokens


@pytest.mark.parametrize(("reason", "ids"), [("stop", [98, 99, END]), (None, [98, 99, END]), ("length", [98, 99])])
def test_an_answer_that_was_cut_has_no_end(reason: str | None, ids: list[int]) -> None:
    answer = {"choices": [{"finish_reason": reason, "message": {"role": "assistant", "content": "bc"}}]}
    made = ChatTokens(Letters())({"messages": [{"role": "user", "content": "a"}]}, answer)
    assert made == ([7, 97, END, 8, 7], ids)
