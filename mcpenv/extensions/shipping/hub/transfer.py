"""Upload and download Spaces of Hugging Face. Imported on use: needs the extra ``hub``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, RepositoryNotFoundError

from mcpenv.errors import ConfigurationError

from .space import SpaceName

KIND = "space"
_CACHE = ".cache"
"""The folder that a download leaves in its destination."""

_FAILURES = (HfHubHTTPError, LocalTokenNotFoundError, httpx.HTTPError)


@dataclass(frozen=True)
class Uploaded:
    """An uploaded Space.

    Attributes:
        url: its page.
        commit: the new commit.
    """

    url: str
    commit: str


def upload(space: SpaceName, folder: Path, secrets: Mapping[str, str], *, private: bool) -> Uploaded:
    """Create a Space, set its secrets, and replace its files by the files of a folder.

    Args:
        space: the Space. An existing Space keeps its visibility.
        folder: its files.
        secrets: its secrets, by name.
        private: True to make a Space that only its owner sees.

    Raises:
        ConfigurationError: the hub refused, or does not answer.
    """
    api = HfApi()
    try:
        made = api.create_repo(space.repository, repo_type=KIND, space_sdk="docker", private=private, exist_ok=True)
        for name, value in secrets.items():
            api.add_space_secret(space.repository, name, value)
        done = api.upload_folder(
            repo_id=space.repository,
            repo_type=KIND,
            folder_path=folder,
            delete_patterns=["*"],
            commit_message="Upload by mcpenv",
        )
    except _FAILURES as error:
        raise ConfigurationError(f"the hub refused {space.repository}: {_text(error)}") from error
    return Uploaded(str(made), done.oid)


def download(space: SpaceName, folder: Path | None = None) -> tuple[Path, str]:
    """Return the folder with the files of a Space, and their commit.

    Args:
        space: the Space.
        folder: the folder to make; None for the cache of the hub's library.

    Raises:
        ConfigurationError: there is no such Space or revision, or the hub does not answer.
    """
    api = HfApi()
    try:
        commit = api.space_info(space.repository, revision=space.revision).sha
        path = Path(api.snapshot_download(space.repository, repo_type=KIND, revision=commit, local_dir=folder))
    except RepositoryNotFoundError as error:
        raise ConfigurationError(
            f"there is no Space {space.repository}, or it is private; check the name, or set HF_TOKEN"
        ) from error
    except _FAILURES as error:
        raise ConfigurationError(f"the hub refused {space.repository}: {_text(error)}") from error
    if folder is not None:
        shutil.rmtree(folder / _CACHE / "huggingface", ignore_errors=True)
        if (folder / _CACHE).is_dir() and not any((folder / _CACHE).iterdir()):
            (folder / _CACHE).rmdir()
    return path, str(commit)


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
