/** How a person takes the episode of an agent over in Live, calls its tools, and hands it back. */

import { ApiError, ask } from "./api.js";
import { actionOf } from "./calls.js";
import { alertOf, button, el, fill, messageOf, notify, region, tell } from "./dom.js";
import { raterName } from "./review.js";
import { showRunning } from "./running.js";
import { toolCard } from "./tool.js";
import { ToolList } from "./tool_list.js";

/** A text that only this tab knows. A page that is loaded anew still has what it took over. */
const HOLDER = sessionStorage["mcpenv holder"] ??= Math.random().toString(36).slice(2);

export class TakeOver {
	/** @type {Tool[]} */
	#tools = [];
	#mine = false;

	/** @param {string} path @param {AbortSignal} signal */
	constructor(path, signal) {
		this.path = path;
		this.signal = signal;
		this.problem = alertOf();
		this.holder = el("p.warn", { role: "status" });
		this.button = button("Take over", () => this.#ask(this.#mine ? "DELETE" : "POST"));
		this.cancel = button("Cancel the call", () => this.#cancel());
		this.list = new ToolList((name) => this.#select(name));
		this.form = el("div.pane", { role: "region", "aria-label": "Form of the tool" });
		this.running = el("section.card", { "aria-label": "Running", hidden: true });
		this.board = el("div.columns", { hidden: true }, region("div.pane.card.prose", "Tools", this.list.search, this.list.list), this.form, this.running);
	}

	/** Show who has the session, and renew it if this page has. @returns {Promise<Holding>} */
	async look() {
		const told = await ask(`${this.path}/holder`, { method: "PUT", body: { holder: HOLDER }, signal: this.signal });
		this.#show(told);
		if (this.#mine && !this.#tools.length) await this.#ask("POST");
		return told;
	}

	/** @param {"POST" | "DELETE"} method */
	async #ask(method) {
		await this.#try(async () => {
			const told = await ask(`${this.path}/holder`, { method, body: { holder: HOLDER, by: `person ${raterName()}`.trim() } });
			this.#tools = told.tools ?? [];
			this.#show(told);
			this.#select("");
		});
	}

	async #cancel() {
		await this.#try(async () => {
			if (!(await this.#cancelled())) notify("No call runs.");
		});
	}

	#cancelled = async () => (await ask(`${this.path}/cancel`, { method: "POST", body: {} })).cancelled;

	/** @param {Holding} told */
	#show({ held, busy }) {
		this.#mine = held?.mine ?? false;
		this.board.hidden = !this.#mine;
		this.cancel.disabled = !busy;
		tell(this.button, this.#mine ? "Hand back" : "Take over");
		tell(this.holder, !held ? "" : !held.mine ? `Taken over by ${held.by}.`
			: held.begun ? "You have this episode. The calls of its agent wait." : "A call of the agent still runs. The episode is yours when it is over, or cancelled.");
	}

	/** @param {string} name */
	#select(name) {
		const tool = this.#tools.find((each) => each.name === name) ?? this.#tools[0];
		this.list.show(this.#tools, tool?.name ?? "");
		fill(this.form, tool && toolCard(tool, (values) => this.#call({ name: tool.name, arguments: values })).element);
	}

	/** @param {Call} call */
	async #call(call) {
		const running = new AbortController();
		void showRunning(this.running, call.name, { id: this.path.slice(9), cancel: this.#cancelled }, running.signal);
		await this.#try(() => ask(`${this.path}/calls`, { method: "POST", body: { holder: HOLDER, action: actionOf(call) } }));
		running.abort();
	}

	/** @param {() => Promise<void>} work */
	async #try(work) {
		fill(this.problem);
		try {
			await work();
		} catch (error) {
			if (!(error instanceof ApiError)) throw error;
			fill(this.problem, messageOf(error));
		}
	}
}
