"""Sort parcels into bins: tasks from a file, each with an oracle, scored at the end by ``verify``."""

from __future__ import annotations

from dataclasses import dataclass

from mcpenv import Evidence, MCPEnvironment, ObjectWorld, TaskSet, ToolError

BINS = ("letters", "parcels", "fragile")


@dataclass
class Item:
    """An item on the belt. Its weight is in grams."""

    name: str
    grams: int
    fragile: bool = False


def right_bin(item: Item, heavy_from: int) -> str:
    """Return the bin in which an item belongs."""
    if item.fragile:
        return "fragile"
    return "parcels" if item.grams >= heavy_from else "letters"


class MyEnv(MCPEnvironment):
    """Sort parcels into bins by rules.

    Description:
        The agent puts every item of a belt into one of three bins. Fragile items go to ``fragile``. Of the others,
        those from a task's weight on go to ``parcels``, and lighter ones to ``letters``. The prompt names that weight.

    Tools:
        next_item(): return the item at the front of the belt.
        put(bin): put that item into a bin.
        list_bins(): return what is in each bin.

    Observation:
        Of a reset: ``metadata.prompt``, the task. Of a step: the tool's.

    Reward:
        At the end: the share of items that are in their bin, 1.0 if all are: [0.0, 1.0]. Steps are not scored.

    Start:
        The items and the weight that the task's options name. The seed has no effect.

    End:
        Ended by the orchestrator after the agent has stopped. Truncated after the task's ``max_steps``.

    Version:
        0.1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "0.1.0"
    tasks = TaskSet.from_jsonl("tasks.jsonl")

    def __init__(self) -> None:
        self.heavy_from = 500
        self.belt: list[Item] = []
        self.bins: dict[str, list[Item]] = {name: [] for name in BINS}
        # `verify` sees this at the end. Agents do not.
        self.world = ObjectWorld(lambda: {"belt": self.belt, "bins": self.bins, "heavy_from": self.heavy_from})
        for tool in (self.next_item, self.put, self.list_bins):
            self.tool(tool)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        items: list[Item] | None = None,
        heavy_from: int = 500,
    ) -> None:
        """Fill the belt.

        Args:
            items: the items in their order; one letter by default.
            heavy_from: the weight in grams from which on an item belongs into ``parcels``.
        """
        self.heavy_from = heavy_from
        self.belt = list(items or [Item("postcard", 10)])
        self.bins = {name: [] for name in BINS}

    def verify(self, evidence: Evidence) -> float:
        """Return the share of items that are in their bin."""
        after = evidence.after or {}
        placed = [(name, Item(**item)) for name, items in after["bins"].items() for item in items]
        right = sum(right_bin(item, after["heavy_from"]) == name for name, item in placed)
        return float(right / (len(placed) + len(after["belt"])))

    # -- tools

    def next_item(self) -> Item:
        """Return the item at the front of the belt. It stays there until it is put into a bin."""
        if not self.belt:
            raise ToolError("the belt is empty")
        return self.belt[0]

    def put(self, bin: str) -> str:
        """Put the item at the front of the belt into a bin.

        Args:
            bin: letters, parcels or fragile.
        """
        if bin not in self.bins:
            raise ToolError(f"there is no bin {bin!r}; there are {', '.join(BINS)}")
        item = self.next_item()
        self.bins[bin].append(self.belt.pop(0))
        return f"{item.name} is in {bin}; {len(self.belt)} left"

    def list_bins(self) -> dict[str, list[str]]:
        """Return the names of the items in each bin."""
        return {name: [item.name for item in items] for name, items in self.bins.items()}
