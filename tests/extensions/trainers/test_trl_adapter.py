"""The adapter for TRL, called as `GRPOTrainer` calls it. A real run of the trainer is in test_trl_training."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from served import served
from trainer_worlds import Clicks, Diary, Doors, Many, Screen, Shop

from mcpenv import Task
from mcpenv.server.app import create_app
from mcpenv_client import InvalidMessage, ToolNotExpressible
from mcpenv_client.rows import Rows
from mcpenv_client.trainers.trl import McpenvSpec
from mcpenv_client.trainers.trl_dataset import dataset_of
from mcpenv_client.trainers.trl_worlds import MixedSpec

DOORS = "trainer_worlds:Doors"
WHOLE = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
FLAT = (
    "{% for tool in tools %}{% for name, of in tool.function.parameters.properties.items() %}"
    "{{ name }}: {{ of.type }} {{ of.description }}{% endfor %}{% endfor %}"
)


class Tokenizer:
    """A tokenizer's chat template, rendered as transformers does."""

    def __init__(self, template: str) -> None:
        environment = jinja2.Environment()
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(template)

    def apply_chat_template(self, messages: Any, tools: Any, tokenize: bool) -> str:
        assert not tokenize
        return self._template.render(messages=messages, tools=tools)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(create_app(Doors)) as address:
        yield address.removesuffix("/mcp")


def tools_of(episode: Any) -> dict[str, Any]:
    """Return the tools that TRL finds in an environment."""
    names = [name for name, _ in inspect.getmembers(type(episode), predicate=inspect.isfunction)]
    found = [getattr(episode, name) for name in names if name not in ("reset", "get_reward") and name[0] != "_"]
    return {tool.__name__: tool for tool in found}


@pytest.mark.parametrize("place", ["here", "server", "servers"])
def test_an_episode_is_played_as_the_trainer_does(place: str, url: str) -> None:
    places: dict[str, Any] = {"here": Doors, "server": url, "servers": [url]}
    spec = McpenvSpec(places[place])
    episode = spec.environment_factory()
    rows = list(spec.train_dataset)
    assert [row["prompt"] for row in rows] == [[{"role": "user", "content": ""}]] * 3
    for _ in range(2):
        assert episode.reset(**rows[1]) == "Number 1."
        tools = tools_of(episode)
        assert json.loads(tools["look"]()) == {"colour": "green"}
        assert "Input should be" in tools["open_door"](colour="pink")
        assert tools["open_door"](colour="green") == "opened"
        assert "is over" in tools["look"]()
        assert episode.get_reward() == 1.25
        assert episode.ending.status.code.value == "completed"


def test_the_verifier_is_asked_where_the_model_only_stops() -> None:
    spec = McpenvSpec(Doors, num_tasks=1)
    episode = spec.environment_factory()
    episode.reset(**spec.train_dataset[0])
    tools_of(episode)["look"]()
    assert episode.get_reward() == 0.25
    assert "verified" in episode.ending.parts and "is over" in tools_of(episode)["look"]()


def test_a_failed_environment_is_masked() -> None:
    spec = McpenvSpec(Doors)
    episode = spec.environment_factory()
    assert episode.get_reward() is None
    episode.reset(**spec.train_dataset[0])
    tools_of(episode)["break_verifier"]()
    assert episode.get_reward() is None
    assert not episode.ending.status.usable


def test_an_episode_that_nothing_scored_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    spec = McpenvSpec(Diary)
    episode = spec.environment_factory()
    episode.reset(**spec.train_dataset[0])
    assert tools_of(episode)["write"](text="Dear diary") == "written"
    assert episode.get_reward() is None and episode.ending.status.code.value == "completed"
    assert "masked an episode: completed, nothing scored it" in caplog.text


def test_a_server_that_is_gone_masks_its_episodes_and_no_others() -> None:
    with served(create_app(Doors)) as address:
        spec = McpenvSpec(address.removesuffix("/mcp"), retries=1)
        episode, row = spec.environment_factory(), spec.train_dataset[0]
        episode.reset(**row)
    assert "is over" in tools_of(episode)["look"]()
    assert episode.get_reward() is None and not episode.ending.status.usable
    assert episode.reset(**row) == ""
    assert "is over" in tools_of(episode)["look"]() and episode.get_reward() is None


def test_where_one_of_many_servers_is_gone_the_next_episodes_are_on_the_others(url: str) -> None:
    with served(create_app(Doors)) as address:
        spec = McpenvSpec([url, address.removesuffix("/mcp")])
        row = spec.train_dataset[0]
        episodes = [spec.environment_factory() for _ in range(4)]
        assert {episode.reset(**row) for episode in episodes} == {"Number 0."}
    masked = [episode for episode in episodes if "is over" in tools_of(episode)["look"]()]
    assert len(masked) == 2 and all(episode.get_reward() is None for episode in masked)
    assert {episode.reset(**row) for episode in episodes} == {"Number 0."}
    for episode in episodes:
        tools_of(episode)["open_door"](colour="red")
        assert episode.get_reward() == 1.0


def test_a_row_of_another_environment_is_refused() -> None:
    episode = McpenvSpec(Doors).environment_factory()
    with pytest.raises(InvalidMessage):
        episode.reset(split="train", index=99)


def test_all_environments_have_one_class_because_the_trainer_asks_that_one_for_rewards() -> None:
    make = McpenvSpec(Doors).environment_factory
    assert type(make()) is type(make())


@pytest.mark.parametrize("target", [DOORS, Doors])
def test_the_factory_can_be_pickled_for_the_async_trainer(target: Any) -> None:
    spec = McpenvSpec(target)
    spec.environment_factory()
    episode = pickle.loads(pickle.dumps(spec.environment_factory))()
    assert episode.reset(split="train", index=2) == "Number 2."
    assert set(tools_of(episode)) == {"look", "open_door", "break_verifier"}


def test_a_schema_arrives_whole() -> None:
    spec = McpenvSpec(Shop, processing_class=Tokenizer(WHOLE))
    with Shop() as shop:
        (tool,) = shop.list_tools()
    (method,) = tools_of(spec.environment_factory()).values()
    assert isinstance(method, dict) and method == tool.to_openai()
    shown = Tokenizer(WHOLE).apply_chat_template([], tools=[method], tokenize=False)
    assert json.loads(shown)["function"]["parameters"] == tool.input_schema


def test_a_template_that_leaves_parts_out_is_refused_at_the_start() -> None:
    with pytest.raises(ToolNotExpressible, match=r"tool 'buy': the prompt lacks buy\.\S+") as caught:
        McpenvSpec(Shop, processing_class=Tokenizer(FLAT))
    assert set(caught.value.problems) == {"buy"}


def test_references_are_replaced_for_a_template_that_leaves_definitions_out() -> None:
    assert "$ref" not in json.dumps(McpenvSpec(Shop, inline=True).tools)


def test_nested_arguments_and_one_called_self_reach_the_tool() -> None:
    spec = McpenvSpec(Shop)
    episode = spec.environment_factory()
    episode.reset(**spec.train_dataset[0])
    buy = tools_of(episode)["buy"]
    assert "self" in buy(self=1)
    buy(to={"name": "Main", "number": 7}, payment={"kind": "card", "digits": "1234"})
    assert episode.get_reward() == 1.0


def test_a_tool_whose_name_the_trainer_hides_is_refused_at_the_start() -> None:
    with pytest.raises(ToolNotExpressible, match="does not take this name"):
        McpenvSpec(Clicks, split=None, num_tasks=1)


def test_without_a_split_rows_are_seeds() -> None:
    spec = McpenvSpec(Doors, split=None, num_tasks=4)
    assert [row["seed"] for row in spec.train_dataset] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="num_tasks says how many seeds"):
        McpenvSpec(Doors, split=None)


def test_images_reach_a_model_that_takes_them_as_parts_and_others_as_text() -> None:
    for images in (True, False):
        spec = McpenvSpec(Screen, images=images)
        episode = spec.environment_factory()
        assert episode.reset(**spec.train_dataset[0]) == "See."
        answer = tools_of(episode)["screenshot"]()
        if not images:
            assert answer == "[image]"
            continue
        (shown,) = [part["image"] for part in answer if part["type"] == "image"]
        assert shown.size == (1, 1)
        assert {part["type"] for part in answer} == {"text", "image"}


def test_the_lines_of_the_page_are_at_most_ten_and_name_what_the_adapter_has() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "train.md").read_text(encoding="utf-8")
    spec, beside = re.findall(r"^```py\n(from trl import.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert all(len(list(filter(None, lines.splitlines()))) <= 10 for lines in (spec, beside))
    assert all(hasattr(McpenvSpec, name) for name in re.findall(r"=spec\.(\w+)", spec))


def test_a_row_of_the_dataset_is_read_when_it_is_taken_and_columns_of_ones_own_are_kept() -> None:
    dataset = McpenvSpec(Many).train_dataset
    assert len(dataset) == 1_000_000 and len(Many.made) < 50
    Many.made.clear()
    assert [row["task_id"] for row in dataset.__getitems__([7, 7, 999_999])] == ["train-7", "train-7", "train-999999"]
    assert Many.made == [7, 999_999]
    few = dataset.select(range(10)).map(lambda row: {"double": 2 * row["level"]})
    assert [(row["index"], row["double"]) for row in few.filter(lambda row: row["level"] == 3)] == [(2, 6), (7, 6)]
    assert pickle.loads(pickle.dumps(dataset.select([5])))[0]["task_id"] == "train-5"


ASKED: list[tuple[int, int]] = []
"""What `read_levels` was asked for."""


def read_levels(start: int, stop: int) -> list[Task]:
    """Return tasks of two levels, in turn."""
    ASKED.append((start, stop))
    return [Task(id=f"t{index}", prompt="Go.", level=1 + index % 2) for index in range(start, stop)]


def test_neighbours_are_read_together() -> None:
    dataset = dataset_of(Rows(range(1_000_000), read_levels, "train")).select([*range(250), 999_999])
    ASKED.clear()
    assert len(dataset.filter(lambda row: row["level"] == 2)) == 126
    assert ASKED == [(0, 100), (100, 200), (200, 250), (999_999, 1_000_000)]


def test_rows_of_several_worlds_are_in_one_dataset_and_played_in_their_own(url: str) -> None:
    mixed = MixedSpec({"doors": url, "shop": Shop, "seeds": McpenvSpec(Doors, split=None, num_tasks=2)}, num_tasks=2)
    rows = list(mixed.train_dataset)
    assert [row["world"] for row in rows] == ["doors", "doors", "shop", "seeds", "seeds"]
    assert all(row["environment"] == row["world"] for row in rows)
    assert [(row["level"], row["tags"]) for row in rows[:2]] == [(1, ["door"]), (2, ["door"])]
    assert list(mixed.train_dataset.select([4, 1, 2])) == [rows[4], rows[1], rows[2]]
    factories = mixed.environment_factory
    episodes = {name: factory() for name, factory in factories.items()}
    assert {name: type(episode).__name__ for name, episode in episodes.items()} == {name: name for name in factories}
    assert set(tools_of(episodes["shop"])) == {"buy"}
    # As the trainer does, which keeps the column `environment` for itself.
    told = [episodes[row.pop("environment")].reset(**row) for row in rows]
    assert told == ["Number 0.", "Number 1.", "Buy.", "", ""]
    assert tools_of(episodes["doors"])["open_door"](colour="green") == "opened"
    assert [episodes[name].get_reward() for name in ("doors", "shop")] == [1.0, 0.0]
    with pytest.raises(ValueError, match="at least one world"):
        MixedSpec({})
