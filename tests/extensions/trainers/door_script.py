"""The script of a model that plays `Doors`, `Shop`, `Diary` and `Booth`: it looks, opens what it saw, and stops.

In task 2 it breaks the verifier instead. Needs nothing, so that programs in other virtual environments can import it.
"""

from __future__ import annotations

import json
import re
from typing import Any

BREAKS = "Number 2."
BOUGHT = {"to": {"name": "Main", "number": 7}, "payment": {"kind": "card", "digits": "1234"}}


def call_of(prompt: str, answers: list[str], *, speaks: bool = False) -> tuple[str, dict[str, Any]] | None:
    """Return the next call for a prompt and the answers so far; None: the model stops, or writes to its user.

    Args:
        speaks: the model speaks to its user by a tool.
    """
    if "Tickets" in prompt:
        asked, told = (("respond", {"message": text}) for text in ("How many?", "Here you are."))
        sold = ("sell", {"count": 2})
        if speaks:
            return (asked, sold, told, None)[min(len(answers), 3)]
        return sold if "Two." in prompt and not answers else None
    if "Buy." in prompt:
        return None if answers else ("buy", BOUGHT)
    if "Stick." in prompt:
        return "stick", {}
    if "Save." in prompt:
        return None if answers else ("save", {})
    if "Write." in prompt:
        return None if answers else ("write", {"text": "Dear diary"})
    if BREAKS in prompt:
        return (("break_verifier", {}), None)[min(len(answers), 1)]
    if not answers:
        return "look", {}
    seen = re.search("red|green|blue", answers[0])
    return ("open_door", {"colour": seen[0]}) if seen and len(answers) == 1 else None


def written(name: str, arguments: dict[str, Any]) -> str:
    """Return a call as Qwen's models write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
