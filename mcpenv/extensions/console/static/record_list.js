/** The list of recorded episodes: filters that stand in the address, and rows that exist only where they are seen. */

import { ask, recordPath } from "./api.js";
import { button, el, fill, formOf, headOf, labelled, link, messageOf, refill, region } from "./dom.js";
import { countText, momentText, numberText, taskText } from "./format.js";
import { onKeys, onceAFrame } from "./frame.js";

/** Milliseconds after the last key before the list is asked for. */
const PATIENCE = 250;
/** The height of a row in pixels, as in style.css. */
const HEIGHT = 40;
/** The number of rows that are asked for at once. */
const PAGE = 100;
/** Rows beside those that are seen. */
const BESIDE = 10;
/** The columns with their classes. @type {[string, string?][]} */
const COLUMNS = [["Pick", "pick"], ["Episode"], ["Task"], ["Steps", "number wide"], ["Return", "number"], ["Status"], ["Agent", "wide"], ["Ending", "wide"],
	["Started", "wide"]];
/** The filters with their labels, and their type or choices. @type {[string, string, (string | string[])?][]} */
const FILTERS = [["text", "Text", "search"], ["task", "Task"], ["split", "Split"],
	["status", "Status", ["any", "completed", "truncated", "agent_error", "env_error", "judge_error", "transport_lost", "cancelled"]],
	["return_min", "Least return", "number"], ["tool", "Tool"], ["console", "Played in the console", ["hidden", "shown"]]];

/** The page of the list. */
export class RecordList {
	/** @type {Map<number, RecordRow[] | null>} null: asked for */
	#pages = new Map();
	#asking = new AbortController();
	#total = 0;
	/** The episodes played in the console that the list leaves out. */
	#hidden = 0;
	#current = -1;
	#known = false;

	/** @param {PageContext} context @param {AbortSignal} signal */
	constructor({ root, base, query }, signal) {
		this.base = base;
		this.signal = signal;
		this.picked = query.getAll("pick").slice(-2);
		this.fields = FILTERS.map(([name, , kind]) => filterOf(name, kind, query.get(name)));
		this.problem = el("div", { role: "alert" });
		this.count = el("p", { role: "status" });
		this.compared = el("p");
		this.missing = el("div");
		this.empty = el("p.empty");
		this.body = el("tbody");
		this.table = el("table", headOf(COLUMNS), this.body);
		this.element = region("div.window.card", "Episodes", this.table);
		this.render = onceAFrame(() => this.#render(), signal);
		this.element.addEventListener("scroll", this.render, { signal, passive: true });
		addEventListener("resize", this.render, { signal });
		const form = formOf("form.card", { role: "search", onchange: () => this.#apply(), oninput: () => this.#apply(PATIENCE) }, () => this.#apply(),
			el("div.row", ...this.fields.map((input, place) => labelled(FILTERS[place]?.[1] ?? "", input)), button("Load again", () => this.reload())));
		signal.addEventListener("abort", () => {
			clearTimeout(this.timer);
			this.#asking.abort();
		});
		onKeys({ j: () => this.#step(1), k: () => this.#step(-1) }, signal);
		fill(root, el("h1", "Records"), form, el("div.row", this.count, this.compared), this.problem, this.missing, this.element, this.empty);
		this.#showPicked();
	}

	/** Ask for everything anew. */
	reload() {
		this.#asking.abort();
		this.#asking = new AbortController();
		this.#pages.clear();
		this.#known = false;
		this.#current = -1;
		this.element.scrollTop = 0;
		fill(this.problem);
		void this.#load(0);
	}

	/** Return the filters that are set, as they stand in the address. */
	#conditions() {
		return new URLSearchParams(this.fields.map(({ name, value }) => [name, value.trim()]).filter(([, value]) => value));
	}

	/** Return the part of an address that has the filters. */
	#suffix() {
		const conditions = this.#conditions();
		return conditions.size ? `?${conditions}` : "";
	}

	/** Apply the filters. @param {number} [patience] milliseconds to wait for another change */
	#apply(patience = 0) {
		clearTimeout(this.timer);
		this.timer = setTimeout(() => {
			history.replaceState(null, "", `#/${this.base}${this.#suffix()}`);
			this.reload();
		}, patience);
	}

	#showHidden() {
		for (const field of this.fields) if (field.name === "console") field.value = "shown";
		this.#apply();
	}

	/** @param {string} id @param {boolean} wanted */
	#pick(id, wanted) {
		this.picked = [...this.picked.filter((each) => each !== id), ...wanted ? [id] : []].slice(-2);
		this.#showPicked();
		this.render();
	}

	#showPicked() {
		const [one, other] = this.picked;
		fill(this.compared, one !== undefined && other !== undefined
			? link(`#/${recordPath(one, this.base)}?${new URLSearchParams({ with: other })}`, "Compare the two picked episodes")
			: el("span.muted", one === undefined ? "Pick two episodes to compare them." : "Pick another episode to compare it with."));
	}

	/** Go to the next or previous episode. @param {number} by */
	#step(by) {
		if (!this.#total) return;
		this.#current = Math.max(0, Math.min(this.#total - 1, this.#current + by));
		const top = this.#current * HEIGHT;
		const height = this.element.clientHeight - 2 * HEIGHT;
		if (top < this.element.scrollTop) this.element.scrollTop = top;
		else if (top > this.element.scrollTop + height) this.element.scrollTop = top - height;
		this.#render();
		const link = this.body.querySelector("[aria-current] a");
		if (link instanceof HTMLElement) link.focus({ preventScroll: true });
	}

	/** @param {number} page */
	async #load(page) {
		if (this.#pages.has(page)) return;
		this.#pages.set(page, null);
		const { signal } = this.#asking;
		const { console: shown, ...conditions } = Object.fromEntries(this.#conditions());
		const query = { ...conditions, not_agent: shown ? null : "console", offset: page * PAGE, limit: PAGE };
		try {
			/** @type {{total: number, rows: RecordRow[], left_out?: LeftOut[]}} */
			const { total, rows, left_out: leftOut = [] } = await ask(this.base, { query, signal });
			if (!this.#known) this.#hidden = shown ? 0 : (await ask(this.base, { query: { ...conditions, agent: "console", limit: 1 }, signal })).total;
			if (signal.aborted) return;
			// The newest come first: a new episode moves all others.
			if (this.#known && total !== this.#total) this.#pages.clear();
			this.#known = true;
			this.#total = total;
			this.#pages.set(page, rows);
			this.#showCount(leftOut);
			this.render();
		} catch (error) {
			if (signal.aborted) return;
			this.#asking.abort();
			fill(this.problem, el("p.error", messageOf(error), " ", button("Try again", () => this.reload())));
		}
	}

	/** @param {LeftOut[]} leftOut */
	#showCount(leftOut) {
		const none = this.#total === 0;
		fill(this.count, countText(this.#total, "episode"), this.#hidden > 0 && `. Hidden: ${numberText(this.#hidden)} played in the console. `,
			this.#hidden > 0 && button("Show them", () => this.#showHidden(), { class: "quiet" }));
		fill(this.missing, leftOut.length > 0 && el("details.card",
			el("summary.warn", `${countText(leftOut.length, "part")} of the record cannot be shown`),
			el("ul", ...leftOut.map(({ where, why }) => el("li", el("code", where), ` ${why}`)))));
		this.compared.hidden = this.element.hidden = none;
		fill(this.empty, none && (this.#suffix() ? "No episode fits these filters."
			: !this.#hidden && "No episode is recorded so far. One is written when it ends."));
	}

	#render() {
		const seen = Math.ceil(this.element.clientHeight / HEIGHT) + 2 * BESIDE;
		const from = Math.max(0, Math.min(Math.floor(this.element.scrollTop / HEIGHT) - BESIDE, this.#total - 1));
		const to = Math.min(this.#total, from + seen);
		const rows = [];
		for (let index = from; index < to; index += 1) rows.push(this.#row(index));
		this.table.setAttribute("aria-rowcount", String(this.#total + 1));
		refill(this.body, space(from), ...rows, space(this.#total - to));
		if (this.#asking.signal.aborted || !this.#known) return;
		for (let page = Math.floor(from / PAGE); page * PAGE < to; page += 1) void this.#load(page);
	}

	/** @param {number} index */
	#row(index) {
		const row = this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE];
		const properties = { "aria-rowindex": index + 2, "aria-current": index === this.#current ? "true" : null };
		if (!row) {
			return el("tr", properties, el("td.pick"), el("td.muted", "Loading"), ...COLUMNS.slice(2).map(([, style]) => el("td", { class: style })));
		}
		const { id, place } = row;
		const pick = el("input", { id: `pick-${index}`, type: "checkbox", "aria-label": `Pick episode ${id}`,
			onchange: () => this.#pick(place, pick.checked) });
		pick.checked = this.picked.includes(place);
		const task = taskText(row.task_id === null ? null : { id: row.task_id, split: row.split ?? "" });
		const cells = [task, row.n_steps, numberText(row.return), row.status ?? "running", row.agent ?? "", row.ending, momentText(row.started_at)];
		return el("tr", properties, el("td.pick", pick),
			el("th", { scope: "row" }, el("a", { id: `episode-${index}`, href: `#/${recordPath(place, this.base)}${this.#suffix()}`, title: id }, id)),
			...cells.map((cell, column) => el("td", { class: COLUMNS[column + 2]?.[1], title: cell }, cell)));
	}
}

/** Return the input of a filter. @type {FilterMaker} */
function filterOf(name, kind = "text", value) {
	const properties = { id: `filter-${name}`, name };
	const input = typeof kind === "string"
		? el("input", { ...properties, type: kind, autocomplete: "off", step: kind === "number" ? "any" : null })
		: el("select", properties, ...kind.map((each, place) => el("option", { value: place ? each : "" }, each)));
	input.value = value ?? "";
	return input;
}

/** Return a row as high as those that do not exist. @param {number} rows */
function space(rows) {
	const row = el("tr", { "aria-hidden": "true" }, el("td"));
	row.style.height = `${Math.max(0, rows) * HEIGHT}px`;
	return row;
}
