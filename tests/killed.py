"""The recording server that is killed in the middle, as often as a test needs it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from mcpenv.trajectories import TornTail, read_episodes
from mcpenv_client import ConnectionFailed, EnvClient, SessionLost

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))
from serving import _first_url  # noqa: E402

STEPS = 6


def kill_in_the_middle(record: Path, *, times: int, episodes: int) -> list[TornTail]:
    """Play so many episodes, four sessions at once, on ``mcpenv run --record``; kill -9 it at any moment; look.

    Then the next server records to the same folder, as often as wanted. What was torn is given back.
    """
    chance = random.Random(times)
    acknowledged: set[str] = set()
    torn: list[TornTail] = []
    for round_number in range(times):
        acknowledged |= _play_and_kill(record, round_number, chance.randrange(1, episodes - 4), episodes)
        found: dict[str, int] = {}
        torn = []
        for each in read_episodes(record, on_torn=torn.append):
            assert each.id not in found
            found[each.id] = len(each.trajectory.steps)
        assert acknowledged <= found.keys()
        assert all(found[name] == STEPS for name in acknowledged)
        assert len(acknowledged) > round_number
    return torn


def _play_and_kill(record: Path, round_number: int, after: int, episodes: int) -> set[str]:
    """The episodes whose ends a later answer acknowledged, when the server is killed in the middle of one."""
    command = [sys.executable, "-m", "mcpenv", "run", f"{HERE / 'record_worlds.py'}:Dice", "--port", "0"]
    acknowledged: set[str] = set()
    lock = threading.Lock()
    with subprocess.Popen(
        [*command, "--record", str(record)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        url = _first_url(process)

        def session(number: int) -> None:
            before: str | None = None
            try:
                with EnvClient(url).sync() as client:
                    for count in range(number, episodes + 4, 4):
                        name = f"{round_number}-{number}-{count}"
                        client.reset(episode_id=name, seed=count, target=10**6)
                        with lock:
                            if before is not None:
                                acknowledged.add(before)
                            if len(acknowledged) >= after:
                                # At once: what an answer promised must be true when it is read.
                                process.kill()
                        for step in range(STEPS):
                            client.call_tool("say", {"text": f"{name} {step}" * 50})
                        before = name
            except (SessionLost, ConnectionFailed, OSError):
                return

        sessions = [threading.Thread(target=session, args=(number,)) for number in range(4)]
        for thread in sessions:
            thread.start()
        for thread in sessions:
            thread.join(200)
        assert process.wait(60) == -signal.SIGKILL
    return acknowledged
