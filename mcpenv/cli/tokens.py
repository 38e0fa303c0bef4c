"""Tokens from options, files and environment variables. No message contains a token."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mcpenv.errors import ConfigurationError
from mcpenv.server.config import check_token
from mcpenv.targets.place import is_url
from mcpenv_client.connection.handshake import may_have_token

CONTROL_TOKEN = "MCPENV_CONTROL_TOKEN"
"""The environment variable with the control token."""

METRICS_TOKEN = "MCPENV_METRICS_TOKEN"
"""The environment variable with the token of scrapers."""

AGENT_TOKENS = "MCPENV_AGENT_TOKENS"
"""The environment variable with agents' tokens, as ``name=token,name=token``."""

AGENT_TOKEN = "MCPENV_AGENT_TOKEN"
"""The environment variable with one agent's token, for clients."""

Secret = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


def read_token(
    option: str, variable: str, given: str | None, file: Path | None, *, url: str | None = None
) -> str | None:
    """Return the token of an option, of ``OPTION-file``, or else of the environment variable; None if there is none.

    The environment variable is removed.

    Args:
        url: the server that gets the token, which must be one that may have the variable's.

    Raises:
        ConfigurationError: both options are given, the file cannot be read, or the token cannot be used.
    """
    inherited = _take(variable)
    if given is not None and file is not None:
        raise ConfigurationError(f"{option} and {option}-file: give only one of them")
    if given is not None:
        return check_token(given, option)
    if file is not None:
        return check_token(read_text(f"{option}-file", file).strip(), f"{option}-file {file}: the token")
    if inherited is None or (url is not None and not may_have_token(url)):
        return None
    return check_token(inherited.strip(), variable)


def forget(variable: str) -> None:
    """Remove the environment variable of a token that is not needed."""
    _take(variable)


def agent_tokens(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Return agents' tokens by name: from ``--agent-token`` and the file, or else from the environment variable.

    The environment variable is removed.

    Raises:
        ConfigurationError: the file cannot be read or has no token, an entry is not ``name=token``, a name is given
            twice, or a token cannot be used.
    """
    inherited = _take(AGENT_TOKENS)
    tokens: dict[str, str] = {}
    _add(tokens, given, "--agent-token")
    if file is not None:
        lines = [line.strip() for line in read_text("--agent-tokens-file", file).splitlines()]
        entries = [line for line in lines if line and not line.startswith("#")]
        if not entries:
            raise ConfigurationError(f"--agent-tokens-file {file}: the file has no token")
        _add(tokens, entries, f"--agent-tokens-file {file}")
    if inherited is not None and not given and file is None:
        _add(tokens, inherited.split(","), AGENT_TOKENS)
    return tokens


def agent_scopes(given: Sequence[str]) -> dict[str, list[str]]:
    """Return agents' scopes by name, from ``--agent-scopes``.

    Raises:
        ConfigurationError: an entry is not ``name=scope,scope``, or a name is given twice.
    """
    scopes: dict[str, list[str]] = {}
    for entry in given:
        name, _, listed = (part.strip() for part in entry.partition("="))
        allowed = [scope.strip() for scope in listed.split(",") if scope.strip()]
        if not name or not allowed or name in scopes:
            raise ConfigurationError(f"--agent-scopes {entry}: it must be name=scope,scope, once for each name")
        scopes[name] = allowed
    return scopes


def _add(tokens: dict[str, str], entries: Iterable[str], source: str) -> None:
    for number, entry in enumerate(entries, 1):
        # Messages have the entry's number, never its name: if the user forgot the name, the text is the token.
        where = f"{source}: entry {number}"
        name, equals, token = (part.strip() for part in entry.partition("="))
        if not equals or not name or not name.isprintable():
            raise ConfigurationError(f"{where} is not name=token")
        if name in tokens:
            raise ConfigurationError(f"{where} has the name of an earlier entry")
        tokens[name] = check_token(token, f"{where}: the token")


def _take(variable: str) -> str | None:
    """Remove and return an environment variable, so that processes which tools start do not inherit it."""
    return os.environ.pop(variable, None)


def read_text(option: str, file: Path) -> str:
    """Return the text of the file that an option names.

    Raises:
        ConfigurationError: it cannot be read, or is not UTF-8 text.
    """
    try:
        return file.expanduser().read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{option} {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{option} {file}: it is not UTF-8 text") from error


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AgentToken:
    """The options for the token of the agent that uses a server.

    Attributes:
        agent_token: An agent's token, without its name, for a server at a URL that requires one. On the command line,
            every user of this machine can see it (ps). Default: MCPENV_AGENT_TOKEN.
        agent_token_file: File with that token.
    """

    agent_token: Secret = None
    agent_token_file: Path | None = None

    def read(self, target: str) -> str | None:
        """Return the token for ``target``; None if there is none, or ``target`` is an environment's code.

        Raises:
            ConfigurationError: an option is given for an environment's code, or a token cannot be read or used.
        """
        if is_url(target):
            return read_token("--agent-token", AGENT_TOKEN, self.agent_token, self.agent_token_file)
        # User code, which is loaded next, must not find the token either.
        forget(AGENT_TOKEN)
        if self.agent_token is not None or self.agent_token_file is not None:
            raise ConfigurationError(
                "--agent-token and --agent-token-file are for a server at a URL; an environment's code requires none"
            )
        return None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ControlToken:
    """The options for the control token of a server.

    Attributes:
        control_token: The control token of a server. On the command line, every user of this machine can see it (ps).
            Default: MCPENV_CONTROL_TOKEN.
        control_token_file: File with that token.
    """

    control_token: Secret = None
    control_token_file: Path | None = None

    def read(self, url: str) -> str | None:
        """Return the token for a server; None if there is none.

        Raises:
            ConfigurationError: a token cannot be read or used.
        """
        return read_token("--control-token", CONTROL_TOKEN, self.control_token, self.control_token_file, url=url)
