"""Episodes by the client of openreward, in a Python that has it: URL NAME TOKEN CALLS.

Plays one episode for each list of calls in CALLS, and the terminal tool if none of them ended it. Prints what came.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openreward import AsyncOpenReward
from openreward.api.errors import ToolCallError, ToolFailed


async def play(environment: Any, task: Any, calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Play one episode."""
    async with environment.session(task=task) as session:
        prompt = [block.text for block in await session.get_prompt()]
        messages = await session.get_messages(format="openai")
        tools = await session.list_tools()
        outputs: list[Any] = []
        try:
            finished = False
            for name, arguments in calls:
                try:
                    output = await session.call_tool(name, arguments)
                except ToolCallError as error:
                    outputs.append({"refused": error.reason})
                    continue
                texts = [block.text for block in output.blocks]
                outputs.append({"texts": texts, "reward": output.reward, "metadata": output.metadata})
                finished = output.finished
            if not finished and await session.is_assistant_message_final():
                output = await session.call_terminal_tool("Done.")
                finished = output.finished
                outputs.append({"reward": output.reward, "metadata": output.metadata})
        except ToolFailed as error:
            outputs.append({"failed": str(error)})
        return {
            "prompt": prompt,
            "messages": messages,
            "outputs": outputs,
            "finished": finished,
            "tools": [{"name": tool.name, "schema": tool.input_schema} for tool in tools],
        }


async def main(url: str, name: str, token: str, plays: list[Any]) -> None:
    """Play all episodes at once, on the tasks of the first split in order."""
    found = {}
    for variant in (None, name):
        client = AsyncOpenReward(api_key=token)
        environment = client.environments.get(name, variant=variant, base_url=url)
        split = (await environment.list_splits())[0]
        size = await environment.num_tasks(split)
        tasks = await environment.list_tasks(split)
        first = await environment.get_task(split, 0)
        assert first.task_spec == tasks[0].task_spec and len(await environment.get_task_range(split, 0, 1)) == 1
        found[str(variant)] = await asyncio.gather(
            *(play(environment, tasks[at % size], calls) for at, calls in enumerate(plays))
        )
        await client.environments.aclose()
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])))
