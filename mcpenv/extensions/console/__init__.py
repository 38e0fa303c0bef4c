"""The console: the pages at ``/console``, their sign-in, and nothing of what they read."""

MODELS = "MCPENV_CONSOLE_MODELS"
"""The environment variable with the models that the page Play may ask, separated by blanks.

Each is ``NAME=URL``, or ``NAME=URL,VARIABLE`` with the environment variable that has the key.
"""
