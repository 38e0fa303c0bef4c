"""Snapshots in process: what is held, what is refused, and what becomes of the episode."""

from __future__ import annotations

import asyncio
import functools
import pickle
import random
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastmcp import FastMCP
from snapshot_worlds import Hiding, Ledger, Locked, Part, Picky, Plain, WithoutLock

from mcpenv import (
    EpisodeDone,
    ExecutionError,
    FunctionRubric,
    MCPEnvironment,
    Misuse,
    Observation,
    Rubric,
    Task,
    TaskLimits,
    ToolCall,
    ToolOutcome,
    Trajectory,
    WeightedSum,
)
from mcpenv.execution.sink import SpilledSteps
from mcpenv.execution.snapshots import Snapshot
from mcpenv.rewards.verifiers import Evidence
from mcpenv.tools.registry import ToolRegistry
from mcpenv.worlds import FilesWorld, SQLiteWorld
from mcpenv_client import InvalidMessage, NotSupported, SessionLost, StepRecord
from mcpenv_client.types.tools import Mode


def call(env: MCPEnvironment, name: str, **arguments: Any) -> Any:
    """Return the result of a tool."""
    observation: Any = env.call_tool(name, arguments)
    assert observation.error is None, observation.error
    return observation.result.data


def begun(env: Any, **options: Any) -> Any:
    env.reset(**options)
    return env


# -- what is held


def test_a_restored_episode_draws_the_same_numbers_as_the_one_before() -> None:
    env = begun(Plain(), seed=7)
    call(env, "draw")
    held = env.snapshot()
    ahead = [call(env, "draw") for _ in range(3)]
    env.restore(held)
    assert [call(env, "draw") for _ in range(3)] == ahead
    with env.fork(held) as branch:
        assert [call(branch, "draw") for _ in range(3)] == ahead


def test_what_tools_kept_by_context_is_held() -> None:
    env = begun(Plain())
    call(env, "keep", value=1)
    held = env.snapshot()
    call(env, "keep", value=2)
    env.restore(held)
    assert call(env, "keep", value=3) == [1, 3]
    assert call(env.fork(held), "keep", value=4) == [1, 4]


def test_an_attribute_that_came_later_is_gone_and_a_tool_that_was_removed_is_back() -> None:
    env = begun(Plain())
    held = env.snapshot()
    call(env, "learn")
    later = env.snapshot()
    env.restore(held)
    assert not hasattr(env, "late") and call(env, "learn") == "learnt"
    with env.fork(later) as branch:
        assert branch.late == "late" and "learn" not in {tool.name for tool in branch.list_tools()}


def test_what_happens_later_does_not_reach_a_snapshot() -> None:
    env = begun(Plain())
    call(env, "draw")
    held = env.snapshot()
    env.numbers.append(99)
    assert env.fork(held).numbers == [env.numbers[0]]
    assert env.fork(held).numbers is not env.fork(held).numbers


def test_attributes_that_share_an_object_share_it_again() -> None:
    class Shared(MCPEnvironment):
        def __init__(self) -> None:
            self.items: list[int] = []
            self.view = {"items": self.items, "owner": self}

    env = begun(Shared())
    branch = env.fork()
    assert branch.view["items"] is branch.items is not env.items
    assert branch.view["owner"] is branch


def test_what_all_sessions_share_is_not_copied() -> None:
    class Sharing(MCPEnvironment):
        @classmethod
        @asynccontextmanager
        async def lifespan(cls) -> AsyncIterator[dict[str, Any]]:
            yield {"lock": threading.Lock(), "words": ["a"]}

        def __init__(self) -> None:
            self.lock, self.words, self.whole = self.shared["lock"], self.shared["words"], self.shared

    env = begun(Sharing())
    branch = env.fork()
    assert branch.whole is env.whole and branch.words is env.words and branch.lock is env.lock


def test_attributes_in_slots_are_held_too() -> None:
    class Slotted(MCPEnvironment):
        __slots__ = ("__hidden", "count")

        def __init__(self) -> None:
            self.count, self.__hidden = 0, [0]

            @self.tool
            def add() -> list[int]:
                """Add."""
                self.count += 1
                self.__hidden.append(self.count)
                return self.__hidden

    env = begun(Slotted())
    call(env, "add")
    held = env.snapshot()
    call(env, "add")
    assert call(env.fork(held), "add") == [0, 1, 2]
    env.restore(held)
    assert call(env, "add") == [0, 1, 2]


def test_a_fork_is_made_with_the_same_arguments() -> None:
    class Small(Plain):
        def __init__(self, target: int, *, bonus: threading.Lock) -> None:
            super().__init__(target)
            self.save = bonus.locked()

    assert begun(Small(5, bonus=threading.Lock())).fork().target == 5


def test_a_fork_is_reset_with_the_seed_and_options_of_its_episode_and_a_restore_here_is_not() -> None:
    resets: list[tuple[int | None, int]] = []

    class Counted(Plain):
        def reset(self, seed: int | None = None, episode_id: str | None = None, start: int = 0) -> Observation:
            resets.append((seed, start))
            return super().reset(seed=seed, start=start)

    env = begun(Counted(), seed=1, start=2)
    first = env.snapshot()
    env.restore(first)
    assert resets == [(1, 2)]
    env.fork(first)
    assert resets == [(1, 2), (1, 2)]
    env.reset(seed=3)
    env.restore(first)  # another reset is behind the instance by now
    assert resets == [(1, 2), (1, 2), (3, 0), (1, 2)]
    assert env.count == 2


def test_a_rubric_goes_on_from_what_it_remembered() -> None:
    env = begun(Plain())
    call(env, "add")
    held = env.snapshot()
    call(env, "look")
    assert env.call_tool("add").reward == 0.0
    env.restore(held)
    assert env.call_tool("add").reward == 1.0
    end = env.call_tool("add", {"by": 1000})
    assert end.reward == 1.0 + 10.0 + 3 * 0.5  # of the steps before the snapshot too
    assert end.info["return"] == 13.5


def test_a_rubric_shares_what_it_was_given_and_no_judge_stands_in_the_way() -> None:
    lock = threading.Lock()

    class Guarded(Rubric):
        def __init__(self, lock: Any) -> None:
            self.lock, self.count = lock, 0

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            assert self.lock is lock
            self.count += 1
            return float(self.count)

    class Judged(Plain):
        def __init__(self) -> None:
            super().__init__()
            one = FunctionRubric(lambda call, outcome: 1.0, name="one")
            self.rubric = WeightedSum({"guarded": Guarded(lock), "one": one})

    env = begun(Judged())
    assert env.call_tool("look").reward == 2.25
    branch = env.fork()
    assert env.call_tool("look").reward == branch.call_tool("look").reward == 3.25


def test_a_limit_of_steps_counts_those_before_the_snapshot() -> None:
    env = begun(Plain())
    env.max_steps = 3
    call(env, "look")
    branch = env.fork()
    assert not branch.call_tool("look").done
    assert branch.call_tool("look").truncated
    assert not env.call_tool("look").done


# -- worlds


class Workspace(MCPEnvironment):
    """Files in a folder of its own, and their paths in every form that authors use."""

    def __init__(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.name = self.temporary.name
        self.notes = self.folder / "notes"
        self.files = {"log": self.folder / "log.txt"}
        self.db = sqlite3.connect(self.folder / "data.db")
        self.world = {"files": FilesWorld(self.notes), "data": SQLiteWorld(self.db)}
        self.base = str(self.notes / "a.txt")
        self.notes.mkdir()

        @self.tool
        def write(text: str) -> list[str]:
            """Add a line to a file, and a row to a table."""
            with open(self.base, "a", encoding="utf-8") as file:
                file.write(text)
            self.db.execute("CREATE TABLE IF NOT EXISTS lines (line TEXT)")
            self.db.execute("INSERT INTO lines VALUES (?)", (text,))
            self.db.commit()
            rows = [row for (row,) in self.db.execute("SELECT line FROM lines")]
            return [(self.notes / "a.txt").read_text(encoding="utf-8"), *rows]

    def close(self) -> None:
        self.db.close()
        self.temporary.cleanup()


def test_a_fork_works_in_its_own_folder_and_its_own_file() -> None:
    with begun(Workspace()) as env:
        call(env, "write", text="a")
        held = env.snapshot()
        with env.fork(held) as branch:
            assert call(branch, "write", text="b") == ["ab", "a", "b"]
            assert branch.notes != env.notes and branch.base == str(branch.notes / "a.txt")
            assert call(env, "write", text="c") == ["ac", "a", "c"]
            env.restore(held)
            assert call(env, "write", text="d") == ["ad", "a", "d"]
        assert Path(env.base).exists()  # the fork took its own folder away, and no other


def test_a_temporary_folder_that_no_world_holds_is_refused() -> None:
    class Loose(MCPEnvironment):
        def __init__(self) -> None:
            self.temporary = tempfile.TemporaryDirectory()

        def close(self) -> None:
            self.temporary.cleanup()

    with begun(Loose()) as env, pytest.raises(NotSupported, match=r"self\.temporary .* FilesWorld"):
        env.snapshot()


# -- what is refused


def test_an_attribute_that_does_not_pickle_is_named_and_what_to_do() -> None:
    env = begun(Locked())
    with pytest.raises(NotSupported, match=r"self\.inner\['lock'\] cannot be pickled.*save_state.*load_state"):
        env.snapshot()
    assert call(env, "add") == 1  # nothing has changed
    assert call(begun(WithoutLock()).fork(), "add") == 1


def test_a_connection_that_no_world_names_is_refused_and_what_to_do() -> None:
    class Unsaid(Ledger):
        def __init__(self) -> None:
            super().__init__()
            del self.world

    with begun(Unsaid()) as env, pytest.raises(NotSupported, match=r"self\.db .* self\.world = SQLiteWorld"):
        env.snapshot()


@pytest.mark.parametrize(("how", "name"), [("list", "items"), ("nonlocal", "total")])
def test_a_tool_that_remembers_in_a_variable_is_named(how: str, name: str) -> None:
    env = begun(Hiding(how))
    with pytest.raises(NotSupported, match=f"its tool 'add' keeps state in the variable '{name}'"):
        env.snapshot()


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, by: int) -> int:
        """Add."""
        self.count += by
        return self.count


@dataclass(frozen=True)
class Settings:
    """Does not change."""

    step: int = 2


def test_a_tool_that_belongs_to_an_object_is_named_and_one_that_only_reads_settings_is_fine() -> None:
    class Foreign(MCPEnvironment):
        def __init__(self, how: str) -> None:
            self.counter, settings = Counter(), Settings()
            if how == "method":
                self.tool(self.counter.add)
            elif how == "partial":
                self.tool(functools.partial(_add_to, self.counter), name="add")
            else:

                @self.tool
                def add(by: int) -> int:
                    """Add."""
                    return self.counter.add(by * settings.step)

    with pytest.raises(NotSupported, match="the Counter whose method it is"):
        begun(Foreign("method")).snapshot()
    with pytest.raises(NotSupported, match=r"the Counter that it is given by functools\.partial"):
        begun(Foreign("partial")).snapshot()
    env = begun(Foreign("closure"))
    call(env, "add", by=1)
    assert call(env.fork(), "add", by=1) == 4


def _add_to(counter: Counter, by: int) -> int:
    """Add."""
    return counter.add(by)


def test_a_handed_in_server_is_refused_unless_the_class_says_how() -> None:
    class Handed(MCPEnvironment):
        def __init__(self) -> None:
            server = FastMCP("handed in")
            self.count = 0

            @server.tool
            def add() -> int:
                """Add."""
                self.count += 1
                return self.count

            super().__init__(server)

    class Says(Handed):
        def save_state(self) -> Any:
            return self.count

        def load_state(self, state: Any) -> None:
            self.count = state

    with pytest.raises(NotSupported, match="cannot be saved: the state of its mounted FastMCP server is unknown"):
        begun(Handed()).snapshot()
    env = begun(Says())
    call(env, "add")
    branch = env.fork()
    assert (call(branch, "add"), call(branch, "add"), call(env, "add")) == (2, 3, 2)


def test_a_snapshot_needs_an_episode_and_an_open_environment() -> None:
    env = Plain()
    with pytest.raises(InvalidMessage, match="reset first"):
        env.snapshot()
    env.reset()
    held = env.snapshot()
    env.close()
    with pytest.raises(SessionLost):
        env.snapshot()
    with pytest.raises(SessionLost):
        env.restore(held)


def test_another_class_and_another_version_are_refused() -> None:
    class Newer(Plain):
        VERSION = "2"

    held = begun(Plain()).snapshot()
    with pytest.raises(Misuse, match="snapshot_worlds:Plain cannot be restored in snapshot_worlds:Ledger"):
        Ledger().restore(held)
    newer = begun(Newer()).snapshot()
    Newer.VERSION = "3"
    for nothing in (None, {"episode_id": "x"}):
        with pytest.raises(Misuse, match=f"restore needs a Snapshot, .* got a {type(nothing).__name__}"):
            Plain().restore(nothing)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match=r"version 2 of .* cannot be restored in version 3"):
        Newer().restore(newer)


def test_a_tool_cannot_hold_the_environment_in_which_it_runs() -> None:
    class Inside(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            def hold() -> str:
                """Try."""
                with pytest.raises(Misuse):
                    self.snapshot()
                return "refused"

    assert call(begun(Inside()), "hold") == "refused"


# -- the episode


def test_a_restored_episode_is_a_new_one_with_the_same_steps() -> None:
    env = begun(Plain(), seed=2)
    call(env, "add")
    held, before = env.snapshot(), env.trajectory
    call(env, "add")
    last = env.restore(held)
    assert before.reason == "restored" and len(before.steps) == 2
    after = env.trajectory
    assert after.episode_id == env.episode_id == last.info["episode_id"] != before.episode_id
    assert (after.forked_from.episode_id, after.forked_from.step) == (before.episode_id, 1)
    assert after.steps == before.steps[:1] and after.seed == 2
    assert (env.step_count, env.state.step_count) == (1, 1)
    assert last.text == "1" and last.info["return"] == after.total_reward


def test_restored_before_its_first_step_it_answers_what_the_reset_did() -> None:
    env = Plain()
    first = env.reset(start=3)
    held = env.snapshot()
    call(env, "add")
    again = env.restore(held)
    assert again.metadata == first.metadata == {"start": 3}
    assert again.info["episode_id"] == env.episode_id != first.info["episode_id"]


def test_an_episode_that_is_over_is_over_again() -> None:
    env = begun(Plain(5))
    end = env.call_tool("add", {"by": 5})
    held = env.snapshot()
    env.reset()
    again = env.restore(held)
    assert (again.done, again.reward, again.info["return"]) == (True, end.reward, end.info["return"])
    with pytest.raises(EpisodeDone):
        env.call_tool("add")
    assert env.trajectory.terminated
    assert not env.reset().done


def test_a_snapshot_of_a_fork_names_the_fork() -> None:
    env = begun(Plain())
    branch = env.fork()
    call(branch, "add")
    twig = branch.fork()
    assert (twig.trajectory.forked_from.episode_id, twig.trajectory.forked_from.step) == (branch.episode_id, 1)


def test_a_snapshot_from_a_file_goes_on_in_another_instance(tmp_path: Path) -> None:
    env = begun(Plain(), seed=4)
    call(env, "draw")
    (tmp_path / "held").write_bytes(pickle.dumps(env.snapshot()))
    loaded: Snapshot = pickle.loads((tmp_path / "held").read_bytes())
    other = Plain()
    assert other.restore(loaded).text == env.trajectory.steps[-1].outcome.result.text
    assert call(other, "draw") == call(env, "draw")
    assert (loaded.step, loaded.episode_id) == (1, env.episode_id)


def test_a_snapshot_says_how_large_it_is() -> None:
    env = begun(Plain())
    small = env.snapshot()
    env.numbers = [random.randrange(10**9) for _ in range(10_000)]
    call(env, "add")
    large = env.snapshot()
    assert small.bytes < 10_000 < 30_000 < large.bytes
    assert large.bytes <= len(pickle.dumps(large))


# -- hooks, and failing on the way


class Hooked(Plain):
    """Both hooks, async; they fail on demand."""

    failing = ""

    async def save_state(self) -> Any:
        await asyncio.sleep(0)
        if self.failing == "save":
            raise RuntimeError("no")
        return {"count": self.count}

    async def load_state(self, state: Any) -> None:
        await asyncio.sleep(0)
        if self.failing == "load":
            raise RuntimeError("no")
        self.count = state["count"]


def test_async_hooks_say_what_is_held() -> None:
    env = begun(Hooked())
    call(env, "add")
    held = env.snapshot()
    call(env, "add")
    env.restore(held)
    assert env.count == 1
    assert asyncio.run(_forked(env, held)) == 1


async def _forked(env: Hooked, held: Snapshot) -> int:
    branch = await env.fork_async(held)
    await branch.restore_async(await branch.snapshot_async())
    await branch.close_async()
    return branch.count


def test_a_snapshot_that_fails_changes_nothing() -> None:
    env = begun(Hooked())
    episode_id, env.failing = env.episode_id, "save"
    with pytest.raises(ExecutionError) as failed:
        env.snapshot()
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert call(env, "add") == 1 and env.episode_id == episode_id


def test_a_restore_that_fails_on_its_way_leaves_an_environment_to_be_reset() -> None:
    resets: list[int] = []

    class Failing(Hooked):
        """Fails where an attribute of the instance, which came after the snapshot, would be gone."""

        def reset(self, seed: int | None = None, episode_id: str | None = None, start: int = 0) -> Observation:
            resets.append(start)
            return super().reset(seed=seed, start=start)

    env = begun(Failing())
    call(env, "add")
    held = env.snapshot()
    Failing.failing = "load"
    with pytest.raises(ExecutionError):
        env.restore(held)
    with pytest.raises(InvalidMessage):
        env.snapshot()
    Failing.failing = ""
    env.restore(held)
    assert env.count == 1 and env.step_count == 1
    assert resets == [0, 0]  # nobody knows what became of the instance: its reset has run again
    assert env.reset().done is False and env.step_count == 0


def test_a_restore_that_is_refused_before_it_begins_changes_nothing() -> None:
    env = begun(Picky())
    held = env.snapshot()
    call(env, "add")
    episode_id, Part.fits = env.episode_id, False
    try:
        with pytest.raises(NotSupported, match="does not fit this instance"):
            env.restore(held)
    finally:
        Part.fits = True
    assert env.episode_id == episode_id
    assert call(env, "add") == 2


def test_a_fork_that_fails_is_closed() -> None:
    closed: list[str] = []

    class Closing(Hooked):
        def close(self) -> None:
            closed.append("closed")

    env = begun(Closing())
    held = env.snapshot()
    Closing.failing = "load"
    with pytest.raises(ExecutionError):
        env.fork(held)
    assert closed == ["closed"]
    assert call(env, "add") == 1


def test_a_tool_of_the_course_of_the_episode_has_to_be_registered_again_for_a_fork() -> None:
    class Growing(MCPEnvironment):
        def __init__(self) -> None:
            self.grown = False
            self.tool(self.grow)

        def grow(self) -> str:
            """Have one more tool."""
            self.grown = True
            self.tool(self.bloom)
            return "grown"

        def bloom(self) -> str:
            """Bloom."""
            return "bloomed"

    class Knows(Growing):
        def load_state(self, state: Any) -> None:
            super().load_state(state)
            if self.grown:
                self.tool(self.bloom)

    env = begun(Growing())
    call(env, "grow")
    held = env.snapshot()
    env.remove_tool("bloom")
    env.restore(held)
    assert call(env, "bloom") == "bloomed"
    with pytest.raises(NotSupported, match="'bloom' was registered during the episode"):
        env.fork(held)
    knowing = begun(Knows())
    call(knowing, "grow")
    assert call(knowing.fork(), "bloom") == "bloomed"


def test_a_tool_that_was_replaced_is_the_one_before_again() -> None:
    class Replacing(MCPEnvironment):
        def __init__(self) -> None:
            self.tool(self.first, name="act_on")
            self.tool(self.replace)

        def first(self) -> str:
            """Act."""
            return "first"

        def second(self) -> str:
            """Act."""
            return "second"

        def replace(self) -> str:
            """Have another tool under the same name."""
            self.remove_tool("act_on")
            self.tool(self.second, name="act_on")
            return "replaced"

    env = begun(Replacing())
    held = env.snapshot()
    call(env, "replace")
    later = env.snapshot()
    env.restore(held)
    assert call(env, "act_on") == "first"
    env.restore(later)
    assert call(env, "act_on") == "second"


# -- tasks, verifiers, records


class Verified(Ledger):
    """Is worth 1 if the account lost what the task says, as against what it had after the reset."""

    def verify(self, evidence: Evidence) -> float:
        assert evidence.task is not None and evidence.before is not None and evidence.after is not None
        before, after = (tree["accounts"]["0"]["cents"] for tree in (evidence.before, evidence.after))
        return float(before - after == evidence.task.metadata["lose"])


def test_a_fork_is_verified_against_the_world_as_the_first_reset_left_it() -> None:
    env = begun(Verified(), task=Task(id="t", metadata={"lose": 30}, options={"accounts": 3}))
    call(env, "transfer", source=0, target=1, cents=20)
    held = env.snapshot()
    with env.fork(held) as branch:
        assert branch.task == env.task and branch.task.id == "t"
        call(branch, "transfer", source=0, target=1, cents=10)
        assert branch.end().info["return"] == pytest.approx(1.3)
        assert branch.trajectory.verified.value == 1.0
    assert env.end().info["return"] == pytest.approx(0.2)
    again = env.restore(held)
    assert not again.done and env.trajectory.verified is None
    call(env, "transfer", source=0, target=2, cents=10)
    assert env.end().reward == 1.0
    env.close()


def test_an_episode_that_the_orchestrator_ended_answers_the_same_end_again() -> None:
    env = begun(Plain(), seed=1)
    call(env, "add")
    end = env.end(truncated=True, reason="turns")
    held = env.snapshot()
    env.reset()
    again = env.restore(held)
    assert (again.reward, again.truncated, again.info["reason"]) == (end.reward, True, "turns")
    assert again.info["episode_id"] == env.episode_id != end.info["episode_id"]
    assert env.end().info == again.info


def test_the_limits_of_a_task_go_on() -> None:
    env = begun(Plain(), task=Task(id="t", limits=TaskLimits(max_steps=3, timeout_s=3600)))
    call(env, "look")
    branch = env.fork()
    call(branch, "look")
    assert branch.call_tool("look").info["reason"] == "max_steps"
    assert branch._execution.episode.elapsed_s >= env.snapshot().episode.elapsed_s - 1


class Kept:
    """A sink that keeps what it is given."""

    agent: str | None = None

    def __init__(self) -> None:
        self.over: list[Trajectory] = []

    def spilled(self, trajectory: Trajectory) -> SpilledSteps | None:
        return None

    def resume(self, trajectory: Trajectory, spilled: SpilledSteps) -> None:
        raise AssertionError

    def spill(self, trajectory: Trajectory, steps: Sequence[StepRecord]) -> None:
        raise AssertionError("no episode here is so long")

    def episode_over(self, trajectory: Trajectory, outputs: Any = ()) -> None:
        self.over.append(trajectory)

    def played_by(self, episode_id: str | None, agent: str) -> None:
        return

    def said(self, episode_id: str | None, turns: Any) -> None:
        return

    def another(self, tools: ToolRegistry, mode: Mode) -> Kept:
        return self

    async def written(self, episode_id: str) -> bool:
        return True


def test_each_branch_is_recorded_once_with_all_its_steps() -> None:
    env = Plain()
    kept = env._execution.sink = Kept()
    first = env.reset().info["episode_id"]
    call(env, "add")
    held = env.snapshot()
    call(env, "look")
    branch = env.fork(held)
    call(branch, "draw")
    second = env.restore(held).info["episode_id"]
    third = branch.episode_id
    branch.close()
    env.end()
    env.close()
    told = {each.episode_id: ([step.call.name for step in each.steps], each.reason) for each in kept.over}
    assert told == {
        first: (["add", "look"], "restored"),
        third: (["add", "draw"], "closed"),
        second: (["add"], None),
    }
    assert len(kept.over) == 3 and len({each.seed for each in kept.over}) == 1
    # What was recorded of a branch can be played from its beginning.
    (branch_record,) = (each for each in kept.over if each.episode_id == third)
    again = begun(Plain(), seed=branch_record.seed)
    for step in branch_record.steps:
        played = again.call_tool(step.call.name, step.call.arguments)
        assert step.outcome.result is not None and played.text == step.outcome.result.text
