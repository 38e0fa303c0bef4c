/** One call in the words of others: Python, curl, the oracle of a task, the configuration of an MCP client. */

import { written } from "./numbers.js";

const TOKEN = "MCPENV_CONTROL_TOKEN";

/** @type {ProgramWriter} */
export function asPython(base, reset, calls, guarded) {
	const lines = calls.map((call) => `    step = env.${call.own ? `step(${python(actionOf(call))})` : `call_tool(${python(call.name)}, ${python(call.arguments)})`}`);
	return [
		...guarded ? ["import os", ""] : [], "from mcpenv_client import EnvClient", "",
		`with EnvClient(${python(base)}${guarded ? `, headers={"Authorization": f"Bearer {os.environ['${TOKEN}']}"}` : ""}).sync() as env:`,
		`    env.reset(**${python(reset)})`, ...lines, "    print(step.text, step.reward, step.done)",
	].join("\n");
}

/** Write commands for a POSIX shell with jq. @type {ProgramWriter} */
export function asCurl(base, reset, calls, guarded) {
	const header = `-H 'Content-Type: application/json'${guarded ? ` -H "Authorization: Bearer $${TOKEN}"` : ""}`;
	const steps = calls.map((call) => {
		const action = actionOf(call);
		return `jq -n --arg session_id "$id" --argjson action ${quoted(json(action))} '{$session_id, $action}' |\n`
			+ `  curl -s ${header} --data @- ${quoted(`${base}/step`)}`;
	});
	return [`id=$(curl -s ${header} --data ${quoted(json(reset))} ${quoted(`${base}/reset`)} | jq -r .session_id)`, ...steps].join("\n");
}

/** Return the action of a call, as it is sent. @param {Call} call */
export const actionOf = (call) => (call.own ? { ...call.arguments, type: call.name }
	: { type: "call_tool", tool_name: call.name, arguments: call.arguments });

/** Return the entry of a task's `oracle`. @param {Call} call */
export const asOracle = (call) => json({ tool_name: call.name, arguments: call.arguments });

/** @type {Config} */
export const mcpConfig = (name, url) => ({ mcpServers: { [name]: { type: "http", url } } });

/** @type {Writer} */
function python(value) {
	if (value === null || value === undefined) return "None";
	if (typeof value === "boolean") return value ? "True" : "False";
	if (typeof value === "string") return pythonText(value);
	if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
	if (typeof value !== "object") return JSON.stringify(value);
	return `{${Object.entries(value).map(([name, each]) => `${pythonText(name)}: ${python(each)}`).join(", ")}}`;
}

/** JSON's escapes are Python's, but for pairs of surrogates, which only stand as they are or not at all. @param {string} text */
const pythonText = (text) => json(text).replace(/\u007f/g, "\\u007f");

/** @param {unknown} value */
const json = (value) => written(value) ?? "";

/** @param {string} text */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
