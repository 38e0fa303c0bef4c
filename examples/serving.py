"""Start ``mcpenv run`` on a free port for an example without a server, and stop it afterwards."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

HERE = Path(__file__).resolve().parent
GUESS_NUMBER = HERE / "write_an_environment.py"
ECHO_MCP = HERE.parent / "envs" / "echo_mcp"


@contextmanager
def served(target: Path, *options: str) -> Iterator[str]:
    """Yield the base URL of ``mcpenv run TARGET``, and stop the server at the end of the block.

    Raises:
        RuntimeError: if the server ended before it printed a URL; the text is its output.
    """
    command = [sys.executable, "-m", "mcpenv", "run", str(target), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            url = _first_url(process)
            # Read the output, because a server blocks when the pipe is full.
            Thread(target=process.stdout.read, daemon=True).start()  # type: ignore[union-attr]
            yield url
        finally:
            process.terminate()


def _first_url(process: subprocess.Popen[str]) -> str:
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        found = re.search(r"https?://[^\s/]+:\d+", line)
        if found:
            return found.group()
    raise RuntimeError("mcpenv run ended:\n" + "".join(said))
