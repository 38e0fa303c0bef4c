"""The token of an agent, for the commands that go to a server at a URL as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..errors import ConfigurationError
from ..targets import is_url
from .tokens import AGENT_TOKEN, agent_token, forget

Secret = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


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


__all__ = ["AgentToken"]
