// The TypeScript SDK, 2.x, whose client is a package of its own. Told and printed: see contract.py.
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

async function main({ url, token, command, mode, calls }) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const transport =
    url === null
      ? new StdioClientTransport({ command: command[0], args: command.slice(1), env: process.env })
      : new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
  const versionNegotiation = { mode: mode === "legacy" || mode === "auto" ? mode : { pin: mode } };
  const client = new Client({ name: "stock", version: "1" }, { versionNegotiation });
  await client.connect(transport);
  const tools = (await client.listTools()).tools.map((tool) => tool.name).sort();
  const results = [];
  for (const [name, args] of calls) {
    const result = await client.callTool({ name, arguments: args });
    results.push({ text: result.content.map((block) => block.text).join(""), failed: Boolean(result.isError) });
  }
  await client.close();
  console.log(JSON.stringify({ tools, results }));
}

main(JSON.parse(process.argv[2]));
