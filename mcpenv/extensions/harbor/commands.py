"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

EXPORT = Command(
    help="Write tasks as task directories of Harbor.",
    run="mcpenv.extensions.harbor.export_tasks:export_tasks",
    order=3,
    takes_target=True,
)
SERVE = Command(
    help="Serve one episode of a task.", run="mcpenv.extensions.harbor.served_episode:serve", order=4, takes_target=True
)
SCORE = Command(
    help="End a served episode, and print its score.",
    run="mcpenv.extensions.harbor.served_episode:score",
    order=5,
    takes_target=True,
)
