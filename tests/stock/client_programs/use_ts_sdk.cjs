// The TypeScript SDK, 1.x. Told and printed: see contract.py.
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");

async function main({ url, token, command, calls }) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const transport =
    url === null
      ? new StdioClientTransport({ command: command[0], args: command.slice(1), env: process.env })
      : new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
  const client = new Client({ name: "stock", version: "1" });
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
