"""Keep the bins of all sessions in one dict of the module, and empty them in each reset."""

from __future__ import annotations

from mcpenv import Evidence, MCPEnvironment, TaskSet, ToolError


def _task(name: str, *belt: str) -> dict[str, object]:
    calls = [{"tool_name": "put", "arguments": {"bin": "letters"}} for _ in belt]
    return {
        "id": name,
        "prompt": "Put every item into the bin where it belongs.",
        "options": {"belt": list(belt)},
        "oracle": calls,
    }


class Broken(MCPEnvironment):
    """Keep the bins of all sessions in one dict of the module, and empty them in each reset.

    Tools:
        As listed.

    Reward:
        1 if no item was put into a wrong bin and the belt is empty.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    tasks = TaskSet(
        [_task("three-letters", "bill", "contract", "card"), _task("four-letters", "lease", "note", "bill", "will")]
    )

    def __init__(self) -> None:
        self.belt: list[str] = []
        self.right = True
        self.bins = SHARED

        @self.tool
        def put(bin: str) -> str:
            """Put the first item of the belt into a bin."""
            if bin not in self.bins or not self.belt:
                raise ToolError(f"there is no bin {bin!r}, or the belt is empty")
            self.right = self.right and bin == "letters"
            self.bins[bin].append(self.belt.pop(0))
            return f"{len(self.belt)} left"

        @self.tool
        def list_bins() -> dict[str, list[str]]:
            """Return the items in each bin."""
            return {name: list(items) for name, items in self.bins.items()}

    def reset(self, seed: int | None = None, episode_id: str | None = None, belt: list[str] | None = None) -> None:
        self.right = True
        self.belt = list(belt or ["postcard"])
        for items in self.bins.values():
            items.clear()

    def verify(self, evidence: Evidence) -> bool:
        return self.right and not self.belt


SHARED: dict[str, list[str]] = {"letters": [], "parcels": []}
