/** The visitor's own session: one WebSocket, whose end ends the session too. */

import { ApiError, address, ask } from "./api.js";
import { notify } from "./dom.js";
import { read, written } from "./numbers.js";

export class Session {
	/** @type {Map<string, {resolve: (data: any) => void, reject: (error: Error) => void}>} */
	#waiting = new Map();
	#count = 0;

	/** @param {WebSocket} socket an open one @param {(error: ApiError) => void} onLost called once if it ends before `close` */
	constructor(socket, onLost) {
		this.socket = socket;
		this.closed = false;
		this.onLost = onLost;
		socket.addEventListener("message", (event) => this.#receive(read(event.data)));
		socket.addEventListener("close", (event) => this.#lose(new ApiError(
			`The session has ended${event.reason ? `: ${event.reason}` : ""} (close code ${event.code}).`, "SESSION_LOST", 0)));
	}

	/**
	 * Open a session.
	 * @param {(error: ApiError) => void} onLost
	 * @throws {ApiError} if the server does not answer or refuses
	 */
	static async open(onLost) {
		const full = await crowded(); // A refused WebSocket tells a page no reason.
		const url = address("ws", { agent: "console" });
		url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
		const socket = new WebSocket(url, ["mcpenv"]);
		if (full) {
			notify(`${full} Waiting for one to end.`);
			// The server opens the socket at once, and answers when it has a session.
			for (const name of ["message", "close"]) socket.addEventListener(name, () => notify(""), { once: true });
		}
		const opened = await new Promise((resolve) => {
			socket.onopen = () => resolve(true);
			socket.onclose = () => resolve(false);
		});
		if (!opened) {
			const why = await crowded();
			throw new ApiError(why ? `${why} Start again when one has ended.` : "The server opened no session. Its log may say why.",
				"CONNECTION_FAILED", 0);
		}
		return new Session(socket, onLost);
	}

	/**
	 * Send a frame and return the `data` of its answer.
	 * @template {string} T
	 * @param {T} type
	 * @param {unknown} [data]
	 * @returns {Promise<AnswerTo<T>>}
	 * @throws {ApiError} if the server refuses the frame or the session ends first
	 */
	ask(type, data) {
		if (this.closed) return Promise.reject(new ApiError("The session has ended.", "SESSION_LOST", 0));
		const request_id = `console-${this.#count += 1}`;
		return new Promise((resolve, reject) => {
			this.#waiting.set(request_id, { resolve, reject });
			this.socket.send(written({ type, request_id, ...(data === undefined ? {} : { data }) }) ?? "");
		});
	}

	/** End the session. */
	close() {
		this.closed = true;
		this.socket.close(1000);
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

/**
 * Say that no session is free; null if one is.
 * @throws {ApiError} if the server accepts no new sessions
 */
async function crowded() {
	const { available_slots: free, max_sessions: most, ready, reason } = await ask("capacity");
	if (!ready) throw new ApiError(`This server takes no new sessions: ${reason}. Try again later.`, "CAPACITY_REACHED", 0);
	return free === 0 ? `All ${most} sessions of this server are taken.` : null;
}
