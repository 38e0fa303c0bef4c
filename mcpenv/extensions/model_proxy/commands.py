"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

JOIN = Command(help="Add the turns of models.", run="mcpenv.extensions.model_proxy.join_turns:join_command", order=6)
MODEL_PROXY = Command(
    help="Record what agents ask of a model.", run="mcpenv.extensions.model_proxy.command:model_proxy", order=7
)
