"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from dataclasses import replace

from mcpenv.cli.commands import Command

TRAJECTORIES = Command(help="List, show, export, check and join recorded episodes.", order=8)
LIST = Command(help="List episodes.", run="mcpenv.extensions.records.command:list_episodes", order=1)
SHOW = Command(help="Show one episode.", run="mcpenv.extensions.records.command:show", order=2)
STATS = Command(help="Show figures of a record.", run="mcpenv.extensions.records.command:stats", order=3)
REPLAY = Command(
    help="Replay recorded calls and compare results.",
    run="mcpenv.extensions.records.replay_command:replay",
    order=9,
    takes_target=True,
)
REVIEWS = Command(
    help="Show what people said of episodes, and their agreement.",
    run="mcpenv.extensions.records.review_command:reviews",
    order=4,
)
CHECK = Command(help="Find unsound episodes.", run="mcpenv.extensions.records.check_command:check_command", order=5)
RESCORE = Command(
    help="Score recorded episodes again with another rubric.", run="mcpenv.extensions.records.rescore:rescore", order=10
)

OLD_REPLAY = replace(REPLAY, moved="trajectories replay")

OLD_RESCORE = replace(RESCORE, moved="trajectories rescore")
