"""Test the one name of an episode's folder, in messages to and from servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpenv.extensions.mcp_proxy.paths import SEEN, PathNames

REAL = Path("/tmp/mcpenv-workspace-abc/files")


def sent(text: str, *, isolated: bool = False, real: Path = REAL) -> str:
    message = json.dumps({"params": {"arguments": {"a": [text], "n": 1}}}).encode()
    found: str = json.loads(PathNames(real, isolated=isolated).to_server(message))["params"]["arguments"]["a"][0]
    return found


@pytest.mark.parametrize(
    ("said", "real"),
    [
        (SEEN, f"{REAL}"),
        (f"{SEEN}/a.txt", f"{REAL}/a.txt"),
        (f"file://{SEEN}/a", f"file://{REAL}/a"),
        (f"cd x\n{SEEN}/run --to={SEEN}", f"cd x\n{REAL}/run --to={REAL}"),
        (f"{SEEN}s and {SEEN}.bak and /home{SEEN} and ..{SEEN}",) * 2,
        ("nothing of it",) * 2,
        (f"{REAL}/a",) * 2,
    ],
)
def test_the_name_becomes_the_real_path_on_its_way_to_a_server(said: str, real: str) -> None:
    assert sent(said) == real


def test_the_real_path_becomes_the_name_on_its_way_from_a_server() -> None:
    names = PathNames(REAL, isolated=False)
    assert names.from_server(f'"{REAL}/a"'.encode()) == f'"{SEEN}/a"'.encode()


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_a_real_path_is_found_however_json_spells_it(ensure_ascii: bool) -> None:
    real = Path('/tmp/ü "x"/files')
    line = json.dumps([f"{real}/a"], ensure_ascii=ensure_ascii).encode()
    assert json.loads(PathNames(real, isolated=False).from_server(line)) == [f"{SEEN}/a"]
    assert sent(f"{SEEN}/a", real=real) == f"{real}/a"


def test_an_isolated_server_has_the_name_itself() -> None:
    assert sent(f"{SEEN}/a", isolated=True) == f"{SEEN}/a"
    assert sent(f"{REAL}/a", isolated=True) == f"{SEEN}/a"
    assert PathNames(REAL, isolated=True).from_server(b'"/episode"') == b'"/episode"'
