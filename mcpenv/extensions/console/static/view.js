/** An environment's own view: an MCP App in a frame without an origin. */

import { ApiError, ask } from "./api.js";
import { el } from "./dom.js";

const VERSION = "2026-07-28";
const META = "io.modelcontextprotocol/";
const NOTICE = "ui/notifications/";
const HOST = { name: "mcpenv console", version: "1" };
/** The most pixels of height that a view can ask for. */
const MOST = 480;

/** @type {ViewReader} */
export async function readView(url, uri) {
	const _meta = { [`${META}protocolVersion`]: VERSION, [`${META}clientInfo`]: HOST, [`${META}clientCapabilities`]: {} };
	try {
		const { result } = await ask(url, { method: "POST", headers: { "MCP-Protocol-Version": VERSION, "MCP-Method": "resources/read", "MCP-Name": uri },
			body: { jsonrpc: "2.0", id: 1, method: "resources/read", params: { uri, _meta } } });
		return result?.contents?.[0]?.text ?? null;
	} catch (error) {
		if (error instanceof ApiError) return null;
		throw error;
	}
}

export class AppView {
	/** What the view is told once it is ready. @type {[string, unknown][] | null} */
	#waiting = [];

	/** @param {string} html @param {ViewCaller} onCall @param {AbortSignal} signal */
	constructor(html, onCall, signal) {
		this.element = el("iframe", { sandbox: "allow-scripts", src: new URL("frame.html", import.meta.url), title: "View of the environment" });
		addEventListener("message", async ({ source, data }) => {
			if (source !== this.element.contentWindow) return;
			const { id, method, params = {} } = data;
			if (method === `${NOTICE}sandbox-proxy-ready`) this.#send({ method: `${NOTICE}sandbox-resource-ready`, params: { html } });
			else if (method === "ui/initialize") {
				this.#send({ id, result: { protocolVersion: params.protocolVersion, hostInfo: HOST,
					hostCapabilities: { serverTools: {} }, hostContext: {} } });
			} else if (method === `${NOTICE}initialized`) {
				const waiting = this.#waiting ?? [];
				this.#waiting = null;
				for (const [name, params] of waiting) this.#tell(name, params);
			} else if (method === `${NOTICE}size-changed`) this.element.style.height = `${Math.min(MOST, Number(params.height) + 2)}px`;
			else if (method === "tools/call") {
				const result = await onCall({ name: String(params.name), arguments: params.arguments ?? {} });
				this.#send(result ? { id, result: wire(result) } : { id, error: { code: -32000, message: "The call was not made." } });
			} else if (id !== undefined && method) this.#send({ id, error: { code: -32601, message: "This host has no such method." } });
		}, { signal });
	}

	/** @type {CallTeller} */
	show(call, result) {
		this.#tell("tool-input", { arguments: call.arguments });
		this.#tell("tool-result", wire(result));
	}

	/** @type {Notifier} */
	#tell(name, params) {
		if (this.#waiting) this.#waiting.push([name, params]);
		else this.#send({ method: NOTICE + name, params });
	}

	/** @param {Plain} message */
	#send(message) {
		this.element.contentWindow?.postMessage({ jsonrpc: "2.0", ...message }, "*");
	}
}

/** @param {Result} result */
const wire = ({ content, structured_content, is_error }) => ({ content, structuredContent: structured_content, isError: is_error });
