"""Reads exports with the libraries that trainers and viewers use: ``exports_program.py WHAT FILE``; prints JSON.

Runs in a virtual environment of its own, without mcpenv; see `test_export_readers`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp()

CHATML = """
{%- if tools %}<|im_start|>tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}", "arguments":
{%- if call.function.arguments is string %} {{ call.function.arguments }}
{%- else %} {{ call.function.arguments | tojson }}{% endif %}}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}"""
"""A template in the manner of ChatML, which takes arguments as text or as objects."""


def dataset(kind: str, file: Path) -> Any:
    """The rows, as Hugging Face's ``datasets`` reads them."""
    from datasets import load_dataset

    return load_dataset(kind, data_files=str(file), split="train", cache_dir=tempfile.mkdtemp())


def read_json(file: Path) -> Any:
    """The rows of a JSONL file."""
    return list(dataset("json", file))


def read_parquet(file: Path) -> Any:
    """The rows of a Parquet file, times as ISO text."""
    return json.loads(json.dumps(list(dataset("parquet", file)), default=str))


def trl_text(file: Path) -> Any:
    """Return the text of each row that TRL trains on."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl.data_utils import apply_chat_template, is_conversational

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"x": 0}, unk_token="x")))
    tokenizer.chat_template = CHATML
    rows = list(dataset("json", file))
    assert all(is_conversational(row) for row in rows)
    return [apply_chat_template({"messages": row["messages"]}, tokenizer, tools=row["tools"])["text"] for row in rows]


def atif(folder: Path) -> Any:
    """Return what Harbor's own validator and models read from each document of a folder."""
    from harbor.models.trajectories import Trajectory
    from harbor.utils.trajectory_validator import TrajectoryValidator

    found = {}
    for file in sorted(folder.iterdir()):
        validator = TrajectoryValidator()
        valid = validator.validate(file)
        document = Trajectory.model_validate_json(file.read_text()) if valid else None
        again = None if document is None else document.to_json_dict()
        found[file.name] = {"valid": valid, "errors": validator.get_errors(), "document": again}
    return found


READERS = {"json": read_json, "parquet": read_parquet, "trl": trl_text, "atif": atif}

if __name__ == "__main__":
    _, what, path = sys.argv
    print(json.dumps(READERS[what](Path(path))))
