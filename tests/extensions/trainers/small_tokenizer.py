"""The small tokenizer with Qwen's marks and chat template, made on the spot."""

from __future__ import annotations

import threading
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

MARKS = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class OneAtATime(PreTrainedTokenizerFast):
    """A tokenizer for several threads: the one of transformers refuses some concurrent calls ("Already borrowed")."""

    mutex = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.mutex:
            return super().__call__(*args, **kwargs)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Return the tokens of a text."""
        with self.mutex:
            return super().encode(*args, **kwargs)

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        """Return the text of tokens."""
        with self.mutex:
            return super().decode(*args, **kwargs)


def tokenizer_of() -> Any:
    """Return a tokenizer of bytes and marks."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        ["tool call"],
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<pad>", *MARKS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    tokenizer = OneAtATime(tokenizer_object=made, pad_token="<pad>", eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer
