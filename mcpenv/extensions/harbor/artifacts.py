"""Carry artifacts from the box of an agent to that of a separate verifier.

An artifact is whatever the agent has left at a path. Its archive is made in the agent's box, by programs that the agent
may have changed, and unpacked in the verifier's. `harmless` therefore keeps folders, files, and links that stay within
the artifact, and nothing else can reach the verifier's own files.
"""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from .box import FILE_TIMEOUT_S, Box, BoxFailed
from .config import Artifact

MAX_ARTIFACT = 64 * 1024 * 1024
"""Maximum bytes of an artifact, as an archive."""

_MAX_MEMBERS = 100_000
_MAX_LINKS = 40
_ROOT = "0"

Link = tuple[str, ...]


async def collected(box: Box, artifact: Artifact) -> tuple[bytes | None, str | None]:
    """Return the archive of an artifact; None if there is none. A folder's begins with the member ``.``.

    The second value is a sentence about what is left out, or None.

    Raises:
        BoxFailed: the box has ended.
    """
    path = _absolute(artifact.source)
    options = shlex.join([f"--exclude={pattern}" for pattern in artifact.exclude])
    name, parent = (shlex.quote(part) for part in (path.name or ".", str(path.parent)))
    whole = shlex.quote(str(path))
    script = (
        f"if [ -d {whole} ]; then tar -cf - {options} -C {whole} .; "
        f"elif [ -e {whole} ]; then tar -cf - -C {parent} -- {name}; fi | head -c {MAX_ARTIFACT + 1}"
    )
    done = await box.run(script, timeout_s=FILE_TIMEOUT_S, user=_ROOT, max_output=MAX_ARTIFACT + 2)
    if len(done.stdout) > MAX_ARTIFACT:
        return None, f"the artifact {path} is longer than {MAX_ARTIFACT} bytes and is not carried over"
    if done.timed_out:
        return None, f"the artifact {path} is not carried over: packing it took more than {FILE_TIMEOUT_S:g} s"
    if not done.stdout:
        return None, None
    try:
        packed, refused = harmless(done.stdout)
    except (tarfile.TarError, EOFError, ValueError) as error:
        return None, f"the artifact {path} is not carried over: {error}"
    return (
        packed,
        f"{len(refused)} parts of the artifact {path} are left out, {refused[0]!r} for one" if refused else None,
    )


async def put(box: Box, path: str, packed: bytes) -> None:
    """Put an archive of `collected` at the path of its artifact. A folder that is there is replaced.

    Raises:
        BoxFailed: it cannot be unpacked.
    """
    whole = _absolute(path)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        first = archive.next()
    if first is not None and first.name == ".":
        begin, target = f"rm -rf -- {shlex.quote(str(whole))}/* {shlex.quote(str(whole))}/.[!.]*; ", whole
    else:
        begin, target = f"rm -rf -- {shlex.quote(str(whole))}; ", whole.parent
    await unpack(box, target, packed, begin=begin)


async def put_folder(box: Box, path: PurePosixPath, folder: Path) -> None:
    """Put the contents of a folder of this machine into a folder of a box.

    Raises:
        BoxFailed: it cannot be unpacked.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".", filter=_as_root)
    await unpack(box, path, packed.getvalue())


async def unpack(box: Box, folder: PurePosixPath, packed: bytes, *, begin: str = "") -> None:
    """Unpack an archive in a folder of a box, which is made if it is missing.

    Raises:
        BoxFailed: it failed.
    """
    target = shlex.quote(str(folder))
    script = f"{begin}mkdir -p -- {target} && tar -xf - -C {target}"
    done = await box.run(script, timeout_s=FILE_TIMEOUT_S, stdin=packed, user=_ROOT)
    if done.exit_code:
        raise BoxFailed(f"files cannot be put into {folder}: {done.reason}")


def harmless(packed: bytes) -> tuple[bytes, list[str]]:
    """Return an archive with its folders, its files, and its links to them, and the names of what is left out.

    Raises:
        TarError, EOFError, ValueError: it cannot be read.
    """
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        members: dict[Link, tarfile.TarInfo] = {}
        for member in archive:
            members[_parts(member.name)] = member  # the last one of a name, as tar unpacks them
            if len(members) > _MAX_MEMBERS:
                raise ValueError(f"it has more than {_MAX_MEMBERS} files")
        links = {parts: member.linkname for parts, member in members.items() if member.issym()}
        made, refused = io.BytesIO(), list[str]()
        with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as result:
            for parts, member in sorted(members.items()):
                if not _stays(parts, member, members, links):
                    refused.append(member.name)
                    continue
                kept = tarfile.TarInfo("/".join(parts) or ".")
                kept.type, kept.size, kept.mtime = member.type, member.size, int(member.mtime)
                kept.mode, kept.linkname = member.mode & 0o777, member.linkname
                if member.islnk():
                    kept.linkname = "/".join(_parts(member.linkname))
                result.addfile(kept, archive.extractfile(member) if member.isreg() else None)
    return made.getvalue(), refused


def _stays(
    parts: Link, member: tarfile.TarInfo, members: Mapping[Link, tarfile.TarInfo], links: Mapping[Link, str]
) -> bool:
    """Return True if a member of an archive leads to nothing outside of it."""
    above = (parts[:number] for number in range(1, len(parts)))
    if ".." in parts or any(part in members and not members[part].isdir() for part in above):
        return False
    if member.issym():
        return _resolves_inside(parts, links)
    if member.islnk():
        target = _parts(member.linkname)
        return target < parts and target in members and members[target].isreg() and ".." not in target
    return member.isreg() or member.isdir()


def _resolves_inside(parts: Link, links: Mapping[Link, str]) -> bool:
    """Return True if a link leads to a path within the archive, also through other links."""
    here, waiting, followed = list(parts[:-1]), [parts[-1]], 0
    while waiting:
        word = waiting.pop()
        if word in ("", "."):
            continue
        if word == "..":
            if not here:
                return False
            here.pop()
            continue
        here.append(word)
        target = links.get(tuple(here))
        if target is None:
            continue
        followed += 1
        if followed > _MAX_LINKS or target.startswith("/"):
            return False
        here.pop()
        waiting += reversed(target.split("/"))
    return True


def _parts(name: str) -> Link:
    return tuple(part for part in name.split("/") if part not in ("", "."))


def _absolute(path: str) -> PurePosixPath:
    """Return the path of an artifact; a relative one is relative to the root, as engines copy it."""
    return PurePosixPath("/", path)


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
