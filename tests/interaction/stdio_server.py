"""Serves one of `worlds` or `border_worlds` over stdio: CLASS MODE KEYWORDS."""

import ast
import functools
import sys

import border_worlds
import worlds

from mcpenv.extensions.stdio.serving import serve_stdio
from mcpenv.server.config import ServerConfig, mode_from

if __name__ == "__main__":
    cls = getattr(worlds, sys.argv[1], None) or getattr(border_worlds, sys.argv[1])
    serve_stdio(
        functools.partial(cls, **ast.literal_eval(sys.argv[3])),
        ServerConfig(mode=mode_from(sys.argv[2])),
        log_level="warning",
    )
