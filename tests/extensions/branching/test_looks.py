"""``POST /records/{id}/world``: a look at the world of a recorded episode, which changes nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from record_worlds import Dice

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client import EnvClient, Observation


class Payer(MCPEnvironment):
    """Pays somebody outside."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    paid: ClassVar[list[int]] = []
    greeting: ClassVar[str] = "hello"

    def __init__(self) -> None:
        self.calls = 0

        @self.tool(annotations={"openWorldHint": True})
        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return f"paid {amount}"

        @self.tool(meta={"ui": "no object"})
        def count() -> int:
            """Count."""
            self.calls += 1
            return self.calls

    def reset(self) -> Observation:  # type: ignore[override]
        """Begin."""
        self.calls = 0
        return Observation(metadata={"greeting": self.greeting})


class Slow(MCPEnvironment):
    """Lingers."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    seconds: ClassVar[float] = 0.0
    waits: ClassVar[threading.Event] = threading.Event()

    def __init__(self) -> None:
        @self.tool
        async def linger() -> str:
            """Linger."""
            self.waits.set()
            await asyncio.sleep(self.seconds)
            return "done"


Look = Callable[[int], httpx.Response]


@contextmanager
def recorded(
    cls: type[MCPEnvironment], record: Path, *calls: tuple[str, dict[str, Any]], most: int = 4
) -> Iterator[Look]:
    """Serve an environment with the record of one episode. Yields a function that looks at one of its steps."""
    with serving(cls, ServerConfig(record=record), max_concurrent_envs=most) as url:
        with EnvClient(url).sync() as client:
            client.reset()
            for name, arguments in calls:
                client.call_tool(name, arguments)
            episode_id = client.trajectory().episode_id
        path = f"{url}/records/{episode_id}/world"
        yield lambda step: httpx.post(path, json={"step": step}, timeout=60)


def test_a_look_makes_no_call_to_the_outside_again(tmp_path: Path) -> None:
    Payer.paid.clear()
    with recorded(Payer, tmp_path, ("pay", {"amount": 3}), ("count", {})) as look:
        for step in (1, 2):
            world = look(step)
            assert (world.status_code, world.json()["after"]["step_count"]) == (200, step)
        assert look(3).status_code == 422
    assert Payer.paid == [3]
    assert len(list(read_episodes(tmp_path))) == 1


def test_a_look_at_a_world_whose_reset_has_changed_is_refused_and_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(Payer, tmp_path, ("count", {})) as look:
        monkeypatch.setattr(Payer, "greeting", "good evening")
        refused = look(1)
        assert refused.status_code == 422
        assert "good evening" in refused.text
    assert len(list(read_episodes(tmp_path))) == 1


def test_episodes_that_cannot_be_played_again_are_not_looked_at(tmp_path: Path) -> None:
    restarted = type("Restarted", (Payer,), {"DURABILITY": "restart"})
    with recorded(restarted, tmp_path, ("count", {})) as look:
        assert "cannot be played again" in look(1).text


def test_an_episode_with_images_is_looked_at(tmp_path: Path) -> None:
    with recorded(Dice, tmp_path, ("picture", {})) as look:
        assert look(1).status_code == 200


def test_a_look_takes_nobodys_session(tmp_path: Path) -> None:
    with recorded(Payer, tmp_path, ("count", {}), most=1) as look:
        url = str(look(0).url).partition("/records")[0]
        session = httpx.post(f"{url}/reset", json={}).headers
        assert look(0).json()["code"] == "CAPACITY_REACHED", session
        assert look(0).status_code == 503


def test_a_record_that_is_damaged_is_not_found(tmp_path: Path) -> None:
    with recorded(Payer, tmp_path, ("count", {})) as look:
        assert look(1).status_code == 200
        (segment,) = tmp_path.glob("*.jsonl*")
        segment.write_bytes(b"x" * segment.stat().st_size)
        missing = look(1)
        assert missing.status_code == 404
        assert str(tmp_path) not in missing.text


def test_a_look_ends_in_order_when_its_client_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recorded(Slow, tmp_path, ("linger", {}), most=1) as look:
        path = str(look(0).url)
        Slow.waits.clear()
        Slow.seconds = 60.0
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(path, json={"step": 1}, timeout=1.0)
        assert Slow.waits.is_set()
        while (again := look(0)).status_code == 503:  # until the session is closed
            assert again.json()["code"] == "CAPACITY_REACHED"
        assert again.status_code == 200
    assert [record.message for record in caplog.records if record.exc_info] == []
