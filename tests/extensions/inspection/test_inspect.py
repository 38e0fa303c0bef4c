"""``mcpenv inspect``, of an environment's code and of a server."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Cli, write


def test_inspect_shows_both_modes(cli: Cli, world: str) -> None:
    done = cli("inspect", world)
    assert (done.status, done.err) == (0, "")
    for line in (
        "World 1.2.3\n  A small world.\n\n  For tests.\n",
        "  add(by: integer = 1) -> integer  [both modes]\n      Add to the counter.\n      by: how much\n",
        '  say(text: string, times: integer | null = null, level: "low" | "high" = "low") -> string  [both modes]\n',
        "  live() -> string  [production]\n",
        "  finish() -> string  [simulation]\n",
        "  both() -> string  [simulation]\n      The simulated one.\n",
        "  both() -> string  [production]\n      The live one.\n",
        "\nResources\n  world://map\n      The map.\n",
        "\nResource templates\n  world://cell/{number}\n",
        "\nPrompts\n  ask(question)\n      Ask.\n",
        "\nReset options\n  seed: integer | null = null\n  episode_id: string | null = null\n",
        "\nState\n  episode_id: string | null = null\n  step_count: integer = 0\n"
        "  done: boolean | null = null\n  cell: integer = 0\n",
        '\nObservation of a reset\n  cell: string = "here"\n',
        '\nActions of its own\n  move(direction: "left" | "right", steps: integer = 1)\n',
    ):
        assert line in done.out


def test_inspect_of_one_mode(cli: Cli, world: str) -> None:
    out = cli("inspect", world, "--mode", "production").out
    assert "live() -> string  [production]" in out
    assert "finish" not in out


def test_inspect_as_json_has_whole_schemas(cli: Cli, world: str) -> None:
    done = cli("inspect", world, "--json")
    document = json.loads(done.out)
    assert done.err == ""
    assert (document["name"], document["version"], document["modes"]) == (
        "World",
        "1.2.3",
        ["simulation", "production"],
    )
    modes = [(tool["name"], tool["modes"]) for tool in document["tools"]]
    assert ("add", ["simulation", "production"]) in modes
    assert [entry for entry in modes if entry[0] == "both"] == [("both", ["simulation"]), ("both", ["production"])]
    assert document["tools"][0]["input_schema"]["properties"]["by"]["description"] == "how much"
    assert document["reset"]["properties"]["seed"]
    assert [resource["uri"] for resource in document["resources"]] == ["world://map"]
    assert document["state"]["properties"]["cell"]


def test_inspect_of_a_server_is_over_mcp(cli: Cli, world_url: str) -> None:
    for url in (world_url, f"{world_url}/", f"{world_url}/mcp"):
        document = json.loads(cli("inspect", url, "--json").out)
        assert (document["name"], document["version"], document["modes"]) == ("World", "1.2.3", ["production"])
        tools = {tool["name"]: tool for tool in document["tools"]}
        assert "finish" not in tools
        assert tools["live"]["modes"] == ["production"]
        assert [prompt["name"] for prompt in document["prompts"]] == ["ask"]
        assert document["reset"]["properties"]["seed"]
    here = json.loads(cli("inspect", "world", "--json", "--mode", "production").out)
    assert document == here


def test_tools_that_depend_on_the_instance_are_listed_after_a_reset(cli: Cli, tmp_path: Path) -> None:
    write(
        tmp_path,
        "dynamic",
        """
        from mcpenv import MCPEnvironment

        class Dynamic(MCPEnvironment):
            DYNAMIC_TOOLS = True

            def reset(self, seed=None, episode_id=None):
                self.tool(lambda: "made", name="late")
        """,
    )
    assert "late()" in cli("inspect", "dynamic").out


def test_the_document_stands_alone_on_stdout(cli: Cli, tmp_path: Path) -> None:
    write(
        tmp_path,
        "noisy",
        """
        import os
        from mcpenv import MCPEnvironment

        print("while loading")
        os.system("echo by a child")

        class Noisy(MCPEnvironment):
            def __init__(self) -> None:
                print("while made")
        """,
    )
    assert json.loads(cli("inspect", "noisy", "--json").out)["name"] == "Noisy"
