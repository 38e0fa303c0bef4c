"""A world with a view of its own, which calls a tool and tries to break out of its frame."""

from __future__ import annotations

from fastmcp.resources import Resource
from fastmcp.server.providers import LocalProvider

from mcpenv import MCPEnvironment

URI = "ui://counter"
PAGE = """<!doctype html>
<title>Counter</title>
<button>Add two</button> <output id="count"></output> <output id="answer"></output> <output id="break-out"></output>
<script>
const say = (id, text) => { document.getElementById(id).textContent = text; };
const send = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
addEventListener("message", ({ data }) => {
  if (data.id === 1) send({ method: "ui/notifications/initialized", params: {} });
  if (data.id === 2) say("answer", `answer ${data.result.structuredContent.result}`);
  if (data.method === "ui/notifications/tool-result") say("count", `count ${data.params.structuredContent.result}`);
});
document.querySelector("button").onclick = () =>
  send({ id: 2, method: "tools/call", params: { name: "add", arguments: { by: 2 } } });
const attempts = {
  parent: () => parent.document.title,
  storage: () => localStorage.length,
  cookie: () => document.cookie,
};
const refused = Object.keys(attempts).filter((name) => {
  try {
    attempts[name]();
    return false;
  } catch {
    return true;
  }
});
fetch("/sessions").then(() => "fetched", () => "no network").then((network) =>
  say("break-out", `refused: ${refused.join(", ")}; ${network}`));
send({ id: 1, method: "ui/initialize", params: { protocolVersion: "2026-01-26", appCapabilities: {} } });
</script>
"""


class ViewWorld(MCPEnvironment):
    """Count."""

    # On the class: a provider of the instance could not be saved in a snapshot, and nothing be undone.
    mcp_provider = LocalProvider()
    mcp_provider.add_resource(
        Resource.from_function(lambda: PAGE, uri=URI, name="counter", mime_type="text/html;profile=mcp-app")
    )

    def __init__(self) -> None:
        self.count = 0

        @self.tool(meta={"ui": {"resourceUri": URI}})
        def add(by: int) -> int:
            """Add."""
            self.count += by
            return self.count
