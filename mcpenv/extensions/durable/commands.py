"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

EPISODES = Command(help="Work with the durable episodes of a store.", order=8)
LIST = Command(
    help="List the episodes of a store.", run="mcpenv.extensions.durable.episodes_command:list_episodes", order=0
)
SHOW = Command(help="Show one of them.", run="mcpenv.extensions.durable.episodes_command:show_episode", order=1)
RESUME = Command(
    help="Let a server continue one of them.",
    run="mcpenv.extensions.durable.episodes_command:resume_episode",
    order=2,
)
DISCARD = Command(
    help="Delete episodes that nobody goes on with.",
    run="mcpenv.extensions.durable.episodes_command:discard_episodes",
    order=3,
)
