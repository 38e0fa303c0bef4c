"""openreward in one process: what its server does with a call, without the server. Its tools are async."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import structlog
import uvloop
from openreward.environments.session import call_session_tool
from openreward_tools import Tools
from rounds import play


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    env: Any = Tools(task_spec={"target": 1})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        called = runner.run(call_session_tool(env, None, "add", {"by": 1}))
        assert called.root.output.reward == 1.0
        loop = runner.get_loop()
        play(
            {
                "async": lambda: loop.run_until_complete(call_session_tool(env, None, "add", {"by": 1})),
                "instance": lambda: Tools(task_spec={"target": 1}),
            }
        )


if __name__ == "__main__":
    main()
