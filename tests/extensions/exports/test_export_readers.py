"""Exports, read back by the libraries that they are for: datasets, TRL's chat templates, Harbor's models of ATIF."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from exported import export, record, rows

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("exports_program.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(tmp_path / "record")
    return tmp_path / "record"


def read_back(what: str, path: Path) -> Any:
    """Return what the program reads from an export, in the Python of ``MCPENV_EXPORTS``."""
    python = os.environ.get("MCPENV_EXPORTS")
    assert python, "MCPENV_EXPORTS names no Python that has datasets, trl and harbor; .ci/run makes one and sets it"
    command = [python, str(PROGRAM), what, str(path)]
    env = {**os.environ, "TMPDIR": str(path.parent)}  # for the caches of datasets
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("form", ["chat-openai", "chat-anthropic"])
def test_datasets_reads_the_rows_of_a_chat_as_they_were_written(folder: Path, form: str) -> None:
    file = export(folder, form, "chats.jsonl")
    assert read_back("json", file) == rows(file)


def test_datasets_reads_arguments_as_objects_too(folder: Path) -> None:
    file = export(folder, "chat-openai", "chats.jsonl", "--arguments", "object")
    assert read_back("json", file) == rows(file)


def test_datasets_reads_the_table(folder: Path) -> None:
    chats = {row["metadata"]["id"]: row for row in rows(export(folder, "chat-openai", "chats.jsonl"))}
    table = read_back("parquet", export(folder, "parquet", "episodes.parquet"))
    assert {row["id"]: json.loads(row["messages"]) for row in table} == {
        name: chat["messages"] for name, chat in chats.items()
    }
    assert [step["tool_name"] for step in table[0]["steps"]] == ["roll", "picture", "refuse", "shout"]


@pytest.mark.parametrize("arguments", ["text", "object"])
def test_trls_chat_template_takes_the_chats_and_has_every_call_in_its_text(folder: Path, arguments: str) -> None:
    file = export(folder, "chat-openai", "chats.jsonl", "--arguments", arguments)
    for row, text in zip(rows(file), read_back("trl", file), strict=True):
        said = [json.loads(call) for call in re.findall(r"<tool_call>(.*?)</tool_call>", text)]
        calls = [call["function"] for message in row["messages"] for call in message.get("tool_calls") or ()]
        for call in calls:
            if arguments == "text":
                call["arguments"] = json.loads(call["arguments"])
        assert said == calls and len(said) >= 2
        assert all(tool["function"]["name"] in text for tool in row["tools"])
        assert all(str(message["content"]) in text for message in row["messages"])


def test_harbors_validator_and_models_take_each_atif_document(folder: Path) -> None:
    out = export(folder, "atif", "documents")
    found = read_back("atif", out)
    assert sorted(found) == ["bare.json", "model.json", "played.json"]
    for name, seen in found.items():
        assert seen["valid"], seen["errors"]
        written = json.loads((out / name).read_text())
        assert seen["document"]["steps"] == written["steps"]
        assert seen["document"]["agent"] == written["agent"]
        assert seen["document"]["schema_version"] == "ATIF-v1.8"


def test_harbors_validator_refuses_a_document_that_is_none(folder: Path) -> None:
    out = export(folder, "atif", "documents", "--id", "bare")
    document = json.loads((out / "bare.json").read_text())
    document["steps"][1]["observation"]["results"][0]["source_call_id"] = "nobody"
    (out / "bare.json").write_text(json.dumps(document))
    assert not read_back("atif", out)["bare.json"]["valid"]
