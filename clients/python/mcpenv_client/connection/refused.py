"""The reason that a server of mcpenv gives in the body of an HTTP refusal, which mcp's errors do not contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpenv_client.types.values import decode

if TYPE_CHECKING:
    import httpx2

MAX_BYTES = 256 * 1024
"""Maximum size of a body that is read for its reason."""


async def stated_reason(response: httpx2.Response) -> str | None:
    """Return the status and the ``message`` of a refusal; None for other responses, or if the body is not mcpenv's.

    The body is read only if it is JSON of a known size. The response remains readable for its receiver.
    """
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    size = response.headers.get("content-length", "")
    if response.status_code < 400 or kind != "application/json" or not size.isdecimal() or int(size) > MAX_BYTES:
        return None
    try:
        data = decode(await response.aread())
    except ValueError:
        return None
    if not isinstance(data, dict) or not all(isinstance(data.get(field), str) for field in ("code", "message")):
        return None
    return f"HTTP {response.status_code}: {data['message']}"
