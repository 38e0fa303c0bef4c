/** The visitor's own session, which is joined again when its WebSocket is lost. */

import { ApiError, address, ask } from "./api.js";
import { notify } from "./dom.js";
import { after } from "./frame.js";
import { read, written } from "./numbers.js";

/** Milliseconds before the attempts to connect again. */
const PAUSES = [0, 500, 1000, 2000, 4000, 8000, 8000];
/** The close codes after which there may still be a session: the connection was lost, or the page itself has closed it. */
const LOST = [1000, 1001, 1005, 1006];
const NEVER = new AbortController().signal;

export class Session {
	/** What is not answered yet, by its id. @type {Map<string, Waiting>} */
	#waiting = new Map();
	#count = 0;
	/** Sets this page's requests apart from those before a reload. */
	#prefix = `console-${Math.random().toString(36).slice(2)}`;
	/** @type {WebSocket | null} */
	#socket = null;
	closed = false;

	/** @param {string} id @param {(error: ApiError) => void} onLost called once if it ends before `close` @param {string} agent the player, for the record */
	constructor(id, onLost, agent = "console") {
		this.id = id;
		this.agent = agent;
		this.onLost = onLost;
	}

	/** @type {SessionOpener} */
	static async open(onLost) {
		const full = await crowded();
		if (full) notify(`${full} Waiting for one to end.`);
		const { session_id: id } = await ask("console/api/sessions", { method: "POST", body: {} });
		if (full) notify("");
		return new Session(id, onLost);
	}

	/** @type {FrameSender} */
	ask(type, data) {
		if (this.closed) return Promise.reject(new ApiError("The session has ended.", "SESSION_LOST", 0));
		const request_id = `${this.#prefix}-${this.#count += 1}`;
		return new Promise((resolve, reject) => {
			const text = written({ type, request_id, ...(data === undefined ? {} : { data }) }) ?? "";
			this.#waiting.set(request_id, { resolve, reject, text });
			if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(text);
			else if (!this.#socket) this.#connect();
		});
	}

	/** Let go of the session: others may need its place, and otherwise the next frame joins it again. */
	rest() {
		const socket = this.#socket;
		this.#socket = null;
		socket?.close(1000);
	}

	/** Join the session again, if something waits for it. */
	wake() {
		if (!this.closed && !this.#socket && this.#waiting.size) this.#connect();
	}

	/** End the session. */
	close() {
		this.closed = true;
		this.rest();
		ask(`sessions/${this.id}`, { method: "DELETE" }).catch(() => undefined); // It ends by itself, too.
	}

	/** Join the session by a new socket, and send what has no answer yet. What has run is not run again. */
	#connect(attempt = 0) {
		const url = address("ws", { agent: this.agent, session_id: this.id });
		url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
		const socket = this.#socket = new WebSocket(url, ["mcpenv"]);
		socket.onopen = () => {
			if (attempt > 1) notify("Connected again.");
			for (const { text } of this.#waiting.values()) socket.send(text);
			attempt = 0;
		};
		socket.onmessage = (event) => this.#receive(read(event.data));
		socket.onclose = async ({ code, reason }) => {
			if (socket !== this.#socket || this.closed) return;
			const pause = PAUSES[attempt];
			if (!LOST.includes(code) || pause === undefined) {
				const moved = code === 4409 && reason.startsWith("another socket");
				return this.#lose(new ApiError(moved ? "The episode goes on in another tab."
					: `The session has ended${reason ? `: ${reason}` : ""} (close code ${code}).`, "SESSION_LOST", 0));
			}
			if (attempt > 0) notify("The connection was lost. Connecting again.");
			await after(pause, NEVER);
			if (socket === this.#socket && !this.closed) this.#connect(attempt + 1);
		};
	}

	/** @param {any} frame */
	#receive(frame) {
		const error = frame.type === "error"
			? new ApiError(String(frame.data?.message), String(frame.data?.code), 0, frame.data) : null;
		const waiting = this.#waiting.get(frame.request_id);
		this.#waiting.delete(frame.request_id);
		if (!waiting) {
			// An error without a request concerns the session, which the server closes then.
			if (error) this.#lose(error);
			return;
		}
		if (error) waiting.reject(error);
		else waiting.resolve(frame.data);
	}

	/** @param {ApiError} error */
	#lose(error) {
		for (const { reject } of this.#waiting.values()) reject(error);
		this.#waiting.clear();
		if (this.closed) return;
		this.closed = true;
		this.onLost(error);
	}
}

/** Say that no session is free; null if one is. */
async function crowded() {
	const { available_slots: free, max_sessions: most, ready, reason } = await ask("capacity");
	if (!ready) throw new ApiError(`This server takes no new sessions: ${reason}. Try again later.`, "CAPACITY_REACHED", 0);
	return free === 0 ? `All ${most} sessions of this server are taken.` : null;
}
