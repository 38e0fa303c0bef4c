/** Requests to the server: errors with their codes, sign-in, event streams. */

import { read, written } from "./numbers.js";

/** The server's base address, which ends in a slash: the folder that `console/` is in. */
export const BASE = new URL("../", new URL(".", import.meta.url));

/** The refusal of a request. `status` is 0 if no server answered. */
export class ApiError extends Error {
	/** @param {string} message @param {string} code @param {number} status @param {any} [body] */
	constructor(message, code, status, body = {}) {
		super(message);
		this.name = "ApiError";
		this.code = code;
		this.status = status;
		this.body = body;
	}

	/** True if the same request would be refused again. */
	get final() {
		return this.status >= 400 && this.status < 500 && this.status !== 429;
	}
}

/** @type {AddressReader} */
export function address(path, query = {}) {
	const url = new URL(path.replace(/^\/+/, ""), BASE);
	for (const [name, value] of Object.entries(query)) {
		if (value != null && value !== "") url.searchParams.set(name, String(value));
	}
	return url;
}

/** @type {Asker} */
export async function ask(path, options = {}) {
	const response = await send(path, options, "application/json");
	try {
		return read(await response.text());
	} catch {
		throw new ApiError(`${path}: the answer is not JSON. Is this address behind another server?`, "INVALID_JSON", response.status);
	}
}

/** @type {RecordPath} */
export const recordPath = (id, base = "records") => `${base}/${encodeURIComponent(id)}`;

/** @type {RecordReader} */
export const recorded = (path, signal) => ask(path, { signal });

/** @type {StreamReader} */
export async function stream(path, onEvent, { signal, lastEventId }) {
	const headers = lastEventId ? { "Last-Event-ID": lastEventId } : undefined;
	const response = await send(path, { signal, headers }, "text/event-stream");
	if (!response.headers.get("Content-Type")?.startsWith("text/event-stream") || !response.body) {
		throw new ApiError(`${path}: the server has no such stream`, "NOT_FOUND", 404);
	}
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	for (;;) {
		const { value, done } = await reader.read().catch((error) => unanswered(error, signal));
		if (done) return;
		rest += value;
		const blocks = rest.split(/\r?\n\r?\n/);
		rest = blocks.pop() ?? "";
		for (const block of blocks) {
			const event = parseEvent(block);
			if (event) onEvent(event);
		}
	}
}

/** @type {EventReader} */
function parseEvent(block) {
	let id = "";
	let event = "message";
	/** @type {string[]} */
	const data = [];
	for (const line of block.split(/\r?\n/)) {
		const [, field, value = ""] = /^([^:]+):? ?(.*)$/.exec(line) ?? [];
		if (field === "id") id = value;
		else if (field === "event") event = value;
		else if (field === "data") data.push(value);
	}
	return data.length ? { id, event, data: read(data.join("\n")) } : null;
}

/** @type {Sender} */
async function send(path, { method = "GET", query, body, signal, headers }, accept) {
	/** @type {Response} */
	let response;
	try {
		response = await fetch(address(path, query), {
			method,
			signal,
			keepalive: method === "PUT", // A review is sent when its page is left.
			headers: { Accept: accept, ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
			body: body === undefined ? undefined : written(body),
		});
	} catch (error) {
		return unanswered(error, signal);
	}
	if (response.ok) return response;
	throw await refusal(path, response);
}

/** @type {Unanswered} */
function unanswered(error, signal) {
	throw signal?.aborted ? error : new ApiError("The server does not answer. Is it running?", "CONNECTION_FAILED", 0);
}

/** @type {RefusalReader} */
async function refusal(path, response) {
	const text = await response.text();
	/** @type {Plain} */
	let body = {};
	try {
		const parsed = JSON.parse(text);
		if (parsed && typeof parsed === "object") body = parsed;
	} catch {
		body = { message: text.slice(0, 500) };
	}
	const message = String(body.message ?? body.detail ?? "") || `${path}: status ${response.status}`;
	const error = new ApiError(message, String(body.code ?? ""), response.status, body);
	if (response.status === 401 && !/^(console\/api|http)/.test(path)) dispatchEvent(new Event("signed-out"));
	return error;
}
