"""Models are built late, and what is derived from them at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import PydanticSchemaGenerationError, ValidationError

from mcpenv_client import Action, Observation, State
from mcpenv_client.types.models import build_models


@pytest.mark.process
def test_to_import_the_package_builds_no_model_and_a_client_builds_all() -> None:
    program = (
        "import mcpenv_client as m\n"
        "models = [m.Observation, m.CallToolObservation, m.Action, m.State, m.Task, m.Tool, m.SnapshotRef]\n"
        "print([each.__pydantic_complete__ for each in models].count(True))\n"
        "m.EnvClient('http://127.0.0.1:1')\n"
        "print([each.__pydantic_complete__ for each in models].count(False))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["0", "0"]


@pytest.mark.process
def test_a_model_is_built_when_it_is_first_used_without_a_client() -> None:
    program = (
        "import mcpenv_client as m\n"
        "print(m.CallToolAction(tool_name='echo').model_dump_json())\n"
        "print(m.Observation.model_validate_json(b'{\"reward\":1}').reward, m.State().step_count)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        '{"metadata":{},"type":"call_tool","tool_name":"echo","arguments":{}}', "1.0 0",
    ]  # fmt: skip


@pytest.mark.parametrize("base", [Action, Observation, State])
def test_a_mistake_in_a_derived_class_is_found_where_it_is_defined(base: Any) -> None:
    class Odd:
        pass

    with pytest.raises(PydanticSchemaGenerationError, match="Odd"):
        type("Own", (base,), {"__annotations__": {"odd": Odd}, "__module__": __name__, "model_config": STRICT})


STRICT = {"arbitrary_types_allowed": False}


def test_a_derived_class_may_name_what_is_defined_after_it() -> None:
    class Move(Action):
        to: Place

    class Place(State):
        x: int

    Move.model_rebuild()
    build_models()
    assert Move(to=Place(x=1)).to.x == 1
    with pytest.raises(ValidationError, match="valid integer"):
        Move.model_validate({"to": {"x": "far"}})
