"""Serve OpenEnv's environments unchanged. Each runs in a process of the Python that has OpenEnv installed.

    target       resolve what the command line names, and the Python that has OpenEnv
    process      manage the process from this side
    child        the program of the process, which imports OpenEnv and nothing of mcpenv
    own_actions  the tool act, for actions that are no tools
    adapter      the environment class that represents an OpenEnv environment, and its Task API

Decision: docs/decisions/005-openenv-in-a-process-of-its-own.md.
"""

MANIFEST = "openenv.yaml"
"""The file that makes a folder an OpenEnv environment."""
