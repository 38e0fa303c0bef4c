"""Tokens, from where an operator keeps them: an option, a file, or the environment. No message ever has one in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..credentials import check_token
from ..errors import ConfigurationError
from ..targets import is_url

CONTROL_TOKEN = "MCPENV_CONTROL_TOKEN"
"""The environment variable that has the control token."""

AGENT_TOKENS = "MCPENV_AGENT_TOKENS"
"""The environment variable that has agents' tokens, as ``name=token,name=token``."""

AGENT_TOKEN = "MCPENV_AGENT_TOKEN"
"""The environment variable that has one agent's token, for clients."""

Secret = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


def control_token(given: str | None, file: Path | None) -> str | None:
    """The control token: of ``--control-token``, or the file's, or else the environment's; None if there is none.

    Raises:
        ConfigurationError: both options, a file that cannot be read, or a token that cannot be used.
    """
    return _one("--control-token", CONTROL_TOKEN, given, file)


def agent_token(given: str | None, file: Path | None) -> str | None:
    """An agent's token, by which it uses a server: of ``--agent-token``, or the file's, or else the environment's.

    Raises:
        ConfigurationError: as `control_token`.
    """
    return _one("--agent-token", AGENT_TOKEN, given, file)


def forget(variable: str) -> None:
    """Take a token that is not needed out of the environment."""
    _take(variable)


def agent_tokens(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Agents' tokens by name: of ``--agent-token`` and the file, or else the environment's.

    Raises:
        ConfigurationError: a file that cannot be read or has none, an entry that is not ``name=token``, a name given
            twice, or a token that cannot be used.
    """
    inherited = _take(AGENT_TOKENS)
    tokens: dict[str, str] = {}
    _add(tokens, given, "--agent-token")
    if file is not None:
        lines = [line.strip() for line in _read("--agent-tokens-file", file).splitlines()]
        entries = [line for line in lines if line and not line.startswith("#")]
        if not entries:
            raise ConfigurationError(f"--agent-tokens-file {file}: there is no token in it")
        _add(tokens, entries, f"--agent-tokens-file {file}")
    if inherited is not None and not given and file is None:
        _add(tokens, inherited.split(","), AGENT_TOKENS)
    return tokens


def _one(option: str, variable: str, given: str | None, file: Path | None) -> str | None:
    inherited = _take(variable)
    if given is not None and file is not None:
        raise ConfigurationError(f"{option} and {option}-file: give one of them")
    if given is not None:
        return check_token(given, option)
    if file is not None:
        return check_token(_read(f"{option}-file", file).strip(), f"{option}-file {file}: the token")
    return None if inherited is None else check_token(inherited.strip(), variable)


def agent_scopes(given: Sequence[str]) -> dict[str, list[str]]:
    """Agents' scopes by name, of ``--agent-scopes``.

    Raises:
        ConfigurationError: an entry that is not ``name=scope,scope``, or a name given twice.
    """
    scopes: dict[str, list[str]] = {}
    for entry in given:
        name, _, listed = (part.strip() for part in entry.partition("="))
        allowed = [scope.strip() for scope in listed.split(",") if scope.strip()]
        if not name or not allowed or name in scopes:
            raise ConfigurationError(f"--agent-scopes {entry}: it is name=scope,scope, once for a name")
        scopes[name] = allowed
    return scopes


def _add(tokens: dict[str, str], entries: Iterable[str], source: str) -> None:
    for number, entry in enumerate(entries, 1):
        # Messages have the number and never the name: what stands there may be a token whose name was forgotten.
        where = f"{source}: entry {number}"
        name, equals, token = (part.strip() for part in entry.partition("="))
        if not equals or not name or not name.isprintable():
            raise ConfigurationError(f"{where} is not name=token")
        if name in tokens:
            raise ConfigurationError(f"{where} has the name of another one")
        tokens[name] = check_token(token, f"{where}: the token")


def _take(variable: str) -> str | None:
    """An environment variable, which programs that an environment's tools start do not get."""
    return os.environ.pop(variable, None)


def _read(option: str, file: Path) -> str:
    try:
        return file.expanduser().read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{option} {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{option} {file}: it is no text") from error


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AgentToken:
    """As which agent a server is used.

    Attributes:
        agent_token: An agent's token, without its name, for a server at a URL that wants one; on the command line
            everybody on this machine can see it (ps). Default: MCPENV_AGENT_TOKEN.
        agent_token_file: File with that token.
    """

    agent_token: Secret = None
    agent_token_file: Path | None = None

    def read(self, target: str) -> str | None:
        """The token for ``target``; None if there is none, or it is an environment's code.

        Raises:
            ConfigurationError: an option for an environment's code, or a token that cannot be read or used.
        """
        if is_url(target):
            return agent_token(self.agent_token, self.agent_token_file)
        # The author's code, which is loaded next, shall not find it either.
        forget(AGENT_TOKEN)
        if self.agent_token is not None or self.agent_token_file is not None:
            raise ConfigurationError(
                "--agent-token and --agent-token-file are for a server at a URL; an environment's code asks for none"
            )
        return None


__all__ = [
    "AGENT_TOKEN",
    "AGENT_TOKENS",
    "CONTROL_TOKEN",
    "AgentToken",
    "agent_scopes",
    "agent_token",
    "agent_tokens",
    "control_token",
    "forget",
]
