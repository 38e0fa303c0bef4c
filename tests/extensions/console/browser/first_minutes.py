"""Capture a newcomer's first ten minutes: ``python tests/extensions/console/browser/first_minutes.py FOLDER``.

It makes a virtual environment, installs this clone into it, and types the commands of the tutorials into a terminal.
Meanwhile it changes the code, and plays it in Chromium. FOLDER gets ``terminal.txt``, which is what the terminal
showed, and the pictures of the page. With ``--base IMAGE`` the container image is built, too.

Needs Debian's chromium and chromium-driver, and the packages selenium, pexpect and pyte.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pexpect
import pyte
from visitor import Visitor, visiting

ROOT = Path(__file__).resolve().parents[4]
COLUMNS, LINES = 100, 5000
PROMPT = "$ "
TOOL = '''\
        @self.tool
        def double() -> int:
            """Double the counter, and return it."""
            if self.count * 2 > self.target:
                raise ToolError(f"{self.count} doubled is beyond the target; add instead")
            self.count *= 2
            return self.count

'''
LOOK = "        @self.tool\n        def look()"
AGENT = """\
import asyncio

from mcp import Client


async def main() -> None:
    async with Client("http://127.0.0.1:8000/mcp") as agent:
        print([tool.name for tool in (await agent.list_tools()).tools])
        for name, arguments in (("add", {"by": 3}), ("double", {}), ("add", {"by": 9})):
            result = await agent.call_tool(name, arguments)
            print(name, arguments, "error" if result.is_error else "ok", result.content[0].text)


asyncio.run(main())
"""
ROLLOUT = """\
from mcpenv_client import EnvClient

with EnvClient("http://127.0.0.1:8000").sync() as env:
    for seed in range(3):
        target = int(env.reset(seed=seed).observation.metadata["prompt"].strip(".").split()[-1])
        while True:
            count = env.state().count
            double = 3 < count <= target / 2
            step = env.call_tool("double") if double else env.call_tool("add", {"by": min(5, target - count)})
            if step.done:
                break
        print("seed", seed, "target", target, "steps", env.state().step_count, "return", round(step.info["return"], 2))
"""


class Terminal:
    """A shell on a terminal, and what it has shown."""

    def __init__(self, folder: Path, path: str) -> None:
        settings = Path(tempfile.gettempdir()) / "plain-inputrc"
        settings.write_text("set enable-bracketed-paste off\n")  # its marks would stand before the prompt
        environment = {"PATH": path, "HOME": str(folder), "PS1": PROMPT, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        environment["INPUTRC"] = str(settings)
        kept = {name: value for name, value in os.environ.items() if name.startswith(("CONTAINERS_", "PIP_"))}
        self._shell = pexpect.spawn(
            "/bin/bash",
            ["--norc", "--noprofile"],
            cwd=str(folder),
            env=environment | kept,
            encoding="utf-8",
            dimensions=(50, COLUMNS),
            timeout=240,
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
        )
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.Stream(self._screen)
        self._shell.logfile_read = self
        self._wait(PROMPT)

    def write(self, text: str) -> None:
        """Take what the shell has sent."""
        self._stream.feed(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def run(self, command: str, *answers: tuple[str, str]) -> None:
        """Type a command, and answers after the questions that end so; return when it is over."""
        self.begin(command)
        for question, answer in answers:
            self._wait(question)
            self._shell.sendline(answer)
        self._wait("\n" + PROMPT)

    def begin(self, command: str) -> None:
        """Type a command."""
        began = time.monotonic()
        self._shell.sendline(command)
        print(f"{command} (typed at {began:.0f} s)", flush=True)

    def wait_for(self, text: str) -> None:
        """Wait until the shell shows a text."""
        self._wait(text)

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for the end of the command."""
        self._shell.sendintr()
        self._wait(PROMPT)

    def shown(self) -> str:
        """Return the lines so far."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip() + "\n"

    def _wait(self, text: str) -> None:
        self._shell.expect_exact(text)


def capture(folder: Path, base: str | None, build_options: list[str]) -> None:
    """Do everything, and write the files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        first = Terminal(home, os.environ["PATH"])
        first.run("python3 -m venv venv")
        first.run(f"venv/bin/pip install -q {ROOT}/clients/python {ROOT}")
        path = f"{home}/venv/bin:{os.environ['PATH']}"
        terminal, second = Terminal(home, path), None
        began = time.monotonic()
        terminal.run("mcpenv init counter", ("[minimal]: ", ""), ("[as the template]: ", "Count to a target."))
        terminal.run("cd counter")
        terminal.run('pip install -q -e ".[test]"')
        terminal.run("python -m pytest -q")
        terminal.begin("mcpenv dev .")
        terminal.wait_for("Ctrl-C stops the server.")
        print(f"served after {time.monotonic() - began:.0f} s", flush=True)
        with visiting() as visitor:
            _change(home / "counter" / "counter" / "environment.py", visitor, terminal, folder)
        second = Terminal(home / "counter", path)
        (home / "counter" / "agent.py").write_text(AGENT)
        (home / "counter" / "rollout.py").write_text(ROLLOUT)
        second.run("python agent.py")
        second.run("python rollout.py")
        second.run("mcpenv connect claude-code http://127.0.0.1:8000/mcp")
        terminal.interrupt()
        (home / "counter" / "agent.py").unlink()
        (home / "counter" / "rollout.py").unlink()
        second.run("mcpenv validate .")
        second.run("mcpenv build . --check")
        if base is not None:
            options = "".join(f" --build-option={option}" for option in build_options)
            second.run(f"mcpenv build . --base {base}{options} 2>build.log")
        print(f"all after {time.monotonic() - began:.0f} s", flush=True)
        text = terminal.shown() + "\n-- a second terminal\n\n" + second.shown()
        (folder / "terminal.txt").write_text(text.replace(place, "~"))


def _change(code: Path, visitor: Visitor, terminal: Terminal, folder: Path) -> None:
    """Play, break the code, mend it with a tool more, and play the calls again."""
    url = "http://127.0.0.1:8000"
    visitor.width(1280)
    visitor.play(url)
    for number, by in enumerate((3, 5), 1):
        visitor.type("by", str(by))
        visitor.call()
        visitor.see(f"{number}. add")
    _keep(visitor, folder / "first-play.png")
    whole = code.read_text()
    code.write_text(whole.replace(LOOK, TOOL.replace("self.count *= 2", "self.count *=") + LOOK))
    visitor.see("SyntaxError", "//section[@aria-label='Fault of the code']")
    _keep(visitor, folder / "first-fault.png")
    terminal.wait_for("The code before this change goes on serving.")
    code.write_text(whole.replace(LOOK, TOOL + LOOK))
    terminal.wait_for("reloaded in")
    visitor.read("The code was reloaded")
    visitor.press("Play 2 calls again")
    visitor.see("2. add")
    visitor.press("double")
    _keep(visitor, folder / "first-reloaded.png")


def _keep(visitor: Visitor, file: Path) -> None:
    visitor.browser.execute_script("scrollTo(0, 0)")
    assert visitor.browser.save_screenshot(str(file))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", help="the image to build on")
    parser.add_argument("--build-option", action="append", default=[], help="passed to mcpenv build; may be repeated")
    given = parser.parse_args(sys.argv[1:])
    capture(given.folder, given.base, given.build_option)
