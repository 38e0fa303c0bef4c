"""The folder or file to watch for changes of a target's code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from mcpenv.errors import TargetError
from mcpenv.targets.external import external_target
from mcpenv.targets.place import find_place, folder_with_manifest, meant_prefix, split_target
from mcpenv.targets.user_module import put_first


def watched_path(target: str) -> Path:
    """Return the folder or file to watch for changes of the target's code. No code is loaded.

    Raises:
        TargetError: the target is not found.
    """
    external = external_target(target)
    if external is not None:
        if external.path is None:
            raise TargetError(target, "its code is in another package, so that there is nothing to watch for changes")
        if not external.path.exists():
            raise TargetError(target, "names no file or folder that can be watched")
        return external.path
    described = folder_with_manifest(split_target(target)[0])
    if described is not None:
        return described  # an invalid manifest is watched too
    place = find_place(target)
    if place.file is not None:
        assert place.root is not None
        if place.format is not None:
            return place.root
        top = place.module.partition(".")[0]
        return place.root / top if "." in place.module else place.file.parent
    top = place.module.partition(".")[0]
    put_first(Path.cwd())
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        raise TargetError(target, f"module {top!r} cannot be found: {error}") from error
    if spec is None:
        raise TargetError(target, f"there is no module {top!r}{meant_prefix(target)}")
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    if spec.origin is None or not Path(spec.origin).is_file():
        raise TargetError(target, f"module {top!r} is not a file that can be watched")
    file = Path(spec.origin)
    return file.parent if file.parent == Path.cwd() else file
