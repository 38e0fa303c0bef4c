"""The cost of reading and writing frames: JSON by the libraries of mcpenv's server beside msgpack. JSON on stdout."""

from __future__ import annotations

import json
import timeit
from typing import Any

import msgpack
import orjson
from pydantic_core import from_json

TIMES, BEST_OF = 2_000, 15


def main() -> None:
    measured = {}
    for name, asked, size in (("small", {"by": 1}, 2), ("10 kB text", {"text": "tea & milk " * 930}, 10_000)):
        step = {"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": asked}}
        measured[name] = of_frames(step, reply_of("é" + "x" * size))
    print(json.dumps(measured))


def reply_of(text: str) -> dict[str, Any]:
    """Return an observation in the form of a step's reply."""
    result = {"content": [{"type": "text", "text": text}], "structured_content": {"result": text}, "data": text}
    info = {"episode_id": "0" * 32, "return": 1.0, "reward": {"progress": 1.0}}
    observation = {"metadata": {}, "info": info, "tool_name": "add", "result": result, "error": None}
    return {"type": "observation", "data": {"observation": observation, "reward": 1.0, "done": False}}


def of_frames(step: dict[str, Any], reply: dict[str, Any]) -> dict[str, float]:
    """Return microseconds for one, and bytes."""
    as_text, as_bytes = json.dumps(step), msgpack.packb(step)
    return {
        "read, JSON µs": best(lambda: from_json(as_text)),
        "read, msgpack µs": best(lambda: msgpack.unpackb(as_bytes)),
        "write, JSON µs": best(lambda: orjson.dumps(reply)),
        "write, msgpack µs": best(lambda: msgpack.packb(reply)),
        "both, JSON bytes": len(as_text) + len(orjson.dumps(reply)),
        "both, msgpack bytes": len(as_bytes) + len(msgpack.packb(reply)),
    }


def best(work: Any) -> float:
    return min(timeit.repeat(work, number=TIMES, repeat=BEST_OF)) / TIMES * 1e6


if __name__ == "__main__":
    main()
