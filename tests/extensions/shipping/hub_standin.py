"""The hub of Hugging Face, as far as Spaces are made, filled and copied: what its library says over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN = "hf_" + "a" * 34
COMMIT = "c0ffee" + "0" * 34


@dataclass
class Space:
    """A Space.

    Attributes:
        private: as it was made.
        files: by path.
        secrets: by name.
        deleted: paths that were deleted.
    """

    private: bool | None
    files: dict[str, bytes] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)


@dataclass
class Hub:
    """The Spaces by name, and the requests that were refused for their token."""

    spaces: dict[str, Space] = field(default_factory=dict)
    refused: int = 0

    def app(self) -> Starlette:
        """Return the application."""
        name = "{owner}/{name}"
        return Starlette(
            routes=[
                Route("/api/repos/create", self.create, methods=["POST"]),
                Route("/api/validate-yaml", self.validate, methods=["POST"]),
                Route(f"/api/spaces/{name}", self.info),
                Route(f"/api/spaces/{name}/revision/{{revision}}", self.info),
                Route(f"/api/spaces/{name}/runtime", self.runtime),
                Route(f"/api/spaces/{name}/secrets", self.secret, methods=["POST"]),
                Route(f"/api/spaces/{name}/tree/{{revision}}", self.tree),
                Route(f"/api/spaces/{name}/preupload/{{revision}}", self.preupload, methods=["POST"]),
                Route(f"/api/spaces/{name}/commit/{{revision}}", self.commit, methods=["POST"]),
                Route(f"/spaces/{name}/resolve/{{revision}}/{{path:path}}", self.file),
            ]
        )

    async def create(self, request: Request) -> Response:
        """Make a Space, unless it exists."""
        if (refusal := self._refusal(request)) is not None:
            return refusal
        asked = await request.json()
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if name in self.spaces:
            return JSONResponse({"error": "exists", "url": _page(request, name)}, 409)
        assert (asked["type"], asked["sdk"]) == ("space", "docker")
        visibility = asked.get("visibility")
        private = asked.get("private") if visibility is None else visibility == "private"
        self.spaces[name] = Space(private)
        return JSONResponse({"url": _page(request, name), "name": name})

    async def validate(self, request: Request) -> Response:
        """Accept front matter that says the kind of Space."""
        content = (await request.json())["content"]
        errors = [] if "sdk: docker" in content else [{"message": "no sdk"}]
        return JSONResponse({"errors": errors, "warnings": []}, 400 if errors else 200)

    async def secret(self, request: Request) -> Response:
        """Set a secret."""
        if (refusal := self._refusal(request)) is not None:
            return refusal
        asked = await request.json()
        self._space(request).secrets[asked["key"]] = asked["value"]
        return JSONResponse({})

    async def info(self, request: Request) -> Response:
        """Describe a Space."""
        name = self._name(request)
        if name not in self.spaces or request.path_params.get("revision") == "gone":
            code = "RevisionNotFound" if name in self.spaces else "RepoNotFound"
            return JSONResponse({"error": code}, 404, {"X-Error-Code": code, "X-Error-Message": code})
        files = [{"rfilename": path} for path in sorted(self.spaces[name].files)]
        return JSONResponse({"id": name, "sha": COMMIT, "private": False, "siblings": files, "tags": []})

    async def runtime(self, request: Request) -> Response:
        """Say that it builds."""
        return JSONResponse({"stage": "BUILDING", "hardware": {"current": None, "requested": None}})

    async def tree(self, request: Request) -> Response:
        """List the files."""
        files = self._space(request).files
        return JSONResponse(
            [{"type": "file", "path": path, "size": len(data), "oid": _id(data)} for path, data in files.items()]
        )

    async def preupload(self, request: Request) -> Response:
        """Ask for every file in the commit, but for what the Space's .gitignore names."""
        asked = await request.json()
        files = [
            {"path": file["path"], "uploadMode": "regular", "shouldIgnore": ".gitignore" in str(asked.get("gitIgnore"))}
            for file in asked["files"]
        ]
        return JSONResponse({"files": files})

    async def commit(self, request: Request) -> Response:
        """Store the files of a commit."""
        if (refusal := self._refusal(request)) is not None:
            return refusal
        space = self._space(request)
        for line in (await request.body()).splitlines():
            entry: dict[str, Any] = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                space.files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "deletedFile":
                space.deleted.append(value["path"])
                del space.files[value["path"]]
        page = f"{_page(request, self._name(request))}/commit/{COMMIT}"
        return JSONResponse({"success": True, "commitOid": COMMIT, "commitUrl": page, "hookOutput": ""})

    async def file(self, request: Request) -> Response:
        """Give one file."""
        data = self._space(request).files[request.path_params["path"]]
        return Response(data, headers={"ETag": f'"{_id(data)}"', "X-Repo-Commit": COMMIT})

    def _refusal(self, request: Request) -> Response | None:
        if request.headers.get("Authorization") == f"Bearer {TOKEN}":
            return None
        self.refused += 1
        return JSONResponse({"error": "Invalid username or password."}, 401)

    def _name(self, request: Request) -> str:
        return f"{request.path_params['owner']}/{request.path_params['name']}"

    def _space(self, request: Request) -> Space:
        return self.spaces[self._name(request)]


def _page(request: Request, name: str) -> str:
    return f"{request.base_url}spaces/{name}"


def _id(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
