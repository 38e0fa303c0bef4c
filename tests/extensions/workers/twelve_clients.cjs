// Clients of a TypeScript SDK in one process, which share its pool of connections. Told: {package, mode, url, count}, as
// JSON in the first argument. Printed: {results, statuses}; what each client's calls returned, and how often each status
// came.
const told = JSON.parse(process.argv[2]);

function sdk() {
  if (told.package === "@modelcontextprotocol/client") return require("@modelcontextprotocol/client");
  return {
    ...require("@modelcontextprotocol/sdk/client/index.js"),
    ...require("@modelcontextprotocol/sdk/client/streamableHttp.js"),
  };
}

const { Client, StreamableHTTPClientTransport } = sdk();
const statuses = {};

async function counted(url, init) {
  const answer = await fetch(url, init);
  statuses[answer.status] = (statuses[answer.status] ?? 0) + 1;
  return answer;
}

async function one() {
  const versionNegotiation = { mode: told.mode === "legacy" ? "legacy" : { pin: told.mode } };
  const client = new Client({ name: "twelve", version: "1" }, { versionNegotiation });
  const transport = new StreamableHTTPClientTransport(new URL(told.url), { fetch: counted });
  await client.connect(transport);
  const results = [];
  for (const name of ["add", "add", "process"]) {
    results.push((await client.callTool({ name, arguments: {} })).structuredContent.result);
  }
  if (transport.sessionId) await transport.terminateSession();
  await client.close();
  return results;
}

async function main() {
  const results = [];
  for (let number = 0; number < told.count; number++) results.push(await one());
  results.push(...(await Promise.all(Array.from({ length: told.count }, one))));
  console.log(JSON.stringify({ results, statuses }));
}

main();
