"""The remedies of ``mcpenv validate`` for users of a configuration, who can change the file and not the servers."""


def _of_tool(settings: str) -> str:
    """Return the place of settings of a tool."""
    return f'by "tools": {{"NAME": {{{settings}}}}} in the settings of its server'


_HIDE = _of_tool('"hidden": true')
_RENAME = _of_tool('"name": "..."')
_HINT = _of_tool('"annotations": {"readOnlyHint": false}')
_DESCRIBE = _of_tool('"description": "..."')
_NOT_REPEATED = (
    'Name the place of the server\'s state by its key "state", so that a reset covers it. If the server depends on '
    "time, chance or a network, use --live"
)
_OF_CRASH = "Read the server's own output by --debug, and report it to the server's author"

REMEDIES = {
    "constructor": "Correct the configuration",
    "reset": "Read the server's own output by --debug; start_timeout_s in its settings gives it more time to start",
    "names": f"Rename them {_RENAME}",
    "schemas": f"Report it to the server's author, or hide the tool {_HIDE}",
    "descriptions": f"Describe them {_DESCRIBE}: it is all that an agent knows of a tool",
    "parameters": f"Say what to pass in the tool's description, {_DESCRIBE}",
    "listing": f"Hide tools that agents do not need {_HIDE}",
    "calls": "Call tools that need particular arguments in the oracle of a task (--tasks FILE). A server that fails "
    "says why in its own output, which --debug shows",
    "bad_calls": "The server answers such calls as if they were right. Report it to the server's author",
    "determinism": _NOT_REPEATED,
    "isolation": _NOT_REPEATED,
    "episodes": _OF_CRASH,
    "crashes": _OF_CRASH,
    "close": "Write {workspace} where the server takes a folder, so that its files end with the episode",
    "reach": 'Write {workspace} where the server takes a folder, and "isolation": "bubblewrap" in its settings, so '
    f"that it sees the episode's files alone. Without a sandbox, hide the tool {_HIDE}",
    "annotations": f"Correct the hint {_HINT}",
    "scoring tools": f"Hide it {_HIDE}, if it shows how an episode is scored",
    "hidden names": "Report it to the server's author",
}
