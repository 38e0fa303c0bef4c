"""Step the echo environment in this process: list its tools, call them, and call an unknown one.

Run it::

    python examples/echo_mcp_demo.py
"""

import sys
from pathlib import Path

from mcpenv import CallToolAction, CallToolObservation, ListToolsAction, ListToolsObservation

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs" / "echo_mcp"))
from environment import EchoEnvironment

with EchoEnvironment() as env:
    env.reset()

    listing = env.step(ListToolsAction())
    assert isinstance(listing, ListToolsObservation)
    print("tools:", ", ".join(tool.name for tool in listing.tools))

    observation = env.step(CallToolAction(tool_name="echo_message", arguments={"message": "hello world"}))
    assert isinstance(observation, CallToolObservation) and observation.result is not None
    print("echo_message:", observation.result.data, "reward:", observation.reward)
    assert (observation.result.data, observation.reward, observation.done) == ("hello world", 0.2, False)

    observation = env.step(CallToolAction(tool_name="echo_with_length", arguments={"message": "hello"}))
    assert isinstance(observation, CallToolObservation) and observation.result is not None
    print("echo_with_length:", observation.result.data)
    assert observation.result.data == {"message": "hello", "length": 5}

    # A failed call is a step, and its error is data.
    observation = env.step(CallToolAction(tool_name="shout", arguments={"message": "hello"}))
    assert observation.error is not None
    print("shout:", observation.error.error_type.value, "-", observation.error.message)
    assert observation.error.error_type == "tool_not_found" and observation.reward is None

    observation = env.step(CallToolAction(tool_name="echo_message", arguments={"message": 5}))
    assert observation.error is not None and observation.error.error_type == "invalid_args"
    print("echo_message(5):", observation.error.message)

    observation = env.step(CallToolAction(tool_name="say_goodbye"))
    assert observation.done and env.state.step_count == 5
    print(f"say_goodbye: {observation.text} Return {observation.info['return']:.1f}")
