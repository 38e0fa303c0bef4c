"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

INSPECT = Command(
    help="Show tools, schemas and modes.",
    run="mcpenv.extensions.inspection.inspect:inspect",
    order=2,
    takes_target=True,
)
TASKS = Command(help="Show the tasks of an environment.", order=4, takes_target=True)
LIST = Command(help="List tasks.", run="mcpenv.extensions.inspection.tasks:list_tasks", order=1, takes_target=True)
SHOW = Command(
    help="Show one task in full.", run="mcpenv.extensions.inspection.tasks:show_task", order=2, takes_target=True
)
