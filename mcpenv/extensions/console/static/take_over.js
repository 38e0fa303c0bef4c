/** How a person takes the episode of an agent over in Live, calls its tools, and hands it back. */

import { ask } from "./api.js";
import { callBy, cancelCall } from "./calls.js";
import { button, el, fill, notify, region, tell } from "./dom.js";
import { raterName } from "./review.js";
import { showRunning } from "./running.js";
import { toolCard } from "./tool.js";
import { ToolList } from "./tool_list.js";

/** A text that only this tab knows. A page that is loaded anew still has what it took over. */
let holder = Math.random().toString(36).slice(2);
try {
	holder = sessionStorage["mcpenv holder"] ??= holder;
} catch {
	// The browser keeps nothing for this page.
}

export class TakeOver {
	/** @type {Tool[]} */
	#tools = [];
	#mine = false;

	/** @param {string} id @param {Orderer} order */
	constructor(id, order) {
		this.id = id;
		this.order = order;
		this.holder = el("p.warn", { role: "status" });
		this.button = button("Take over", () => this.#ask(this.#mine ? "DELETE" : "POST"));
		this.cancel = button("Cancel the call", () => order(async () => {
			if (!await cancelCall(id)) notify("No call runs.");
		}));
		this.list = new ToolList((name) => this.#select(name));
		this.form = el("div.pane");
		this.running = el("section.card", { aria: "Running", hidden: true });
		this.board = el("div.columns", { hidden: true }, region("div.pane.card.prose", "Tools", this.list.search, this.list.list), this.form, this.running);
	}

	/** Show who has the session, and renew it if this page has. */
	async look() {
		const told = await this.#told("PUT");
		if (this.#mine && !this.#tools.length) await this.#ask("POST");
		return told;
	}

	/** @param {string} method @returns {Promise<Holding>} */
	async #told(method) {
		/** @type {Holding} */
		const told = await ask(`sessions/${this.id}/holder`, { method, body: { holder, by: `person ${raterName()}`.trim() } });
		const { held, tools, busy } = told;
		if (tools) this.#tools = tools;
		this.#mine = held?.mine ?? false;
		this.board.hidden = !this.#mine;
		this.cancel.disabled = !busy;
		tell(this.button, this.#mine ? "Hand back" : "Take over");
		tell(this.holder, !held ? "" : !held.mine ? `Taken over by ${held.by}.`
			: held.begun ? "You have this episode. The calls of its agent wait." : "A call of the agent still runs. The episode is yours when it is over, or cancelled.");
		return told;
	}

	/** @param {string} method */
	#ask = (method) => this.order(async () => {
		await this.#told(method);
		this.#select("");
	});

	/** @param {string} name */
	#select(name) {
		const tool = this.#tools.find((each) => each.name === name) ?? this.#tools[0];
		this.list.show(this.#tools, tool?.name ?? "");
		fill(this.form, tool && toolCard(tool, (values) => this.#call({ name: tool.name, arguments: values })).element);
	}

	/** @param {Call} call */
	async #call(call) {
		const running = new AbortController();
		void showRunning(this.running, call.name, this.id, running.signal);
		await this.order(() => callBy(this.id, call, holder));
		running.abort();
	}
}
