/** The list of recorded episodes: filters that stand in the address, and rows that exist only where they are seen. */

import { ask, recordPath } from "./api.js";
import { button, el, fill, labelled, link, messageOf, region } from "./dom.js";
import { countText, momentText, numberText, taskText } from "./format.js";
import { onKeys, onceAFrame } from "./frame.js";

const STATUSES = ["completed", "truncated", "agent_error", "env_error", "judge_error", "transport_lost", "cancelled"];
/** Milliseconds after the last key before the list is asked for. */
const PATIENCE = 250;
/** The height of a row in pixels, as in views.css. */
const HEIGHT = 40;
/** The number of rows that are asked for at once. */
const PAGE = 100;
/** Rows beside those that are seen. */
const BESIDE = 10;
/** The columns with their classes. @type {[string, string?][]} */
const COLUMNS = [["Pick", "pick"], ["Episode"], ["Task"], ["Steps", "number wide"], ["Return", "number"], ["Status"], ["Agent", "wide"], ["Ending", "wide"],
	["Started", "wide"]];
/** @type {Record<string, string>} */
const LABELS = { text: "Text", task: "Task", split: "Split", status: "Status", return_min: "Least return", tool: "Tool", console: "Played in the console" };

/** Show the list. @param {PageContext} context @param {AbortSignal} signal */
export function showList({ root, base, query }, signal) {
	const fields = filterFields(query);
	const problem = el("div", { role: "alert" });
	const count = el("p", { role: "status" });
	const compared = el("p", {});
	const missing = el("div");
	const empty = el("p", { class: "empty" });
	const picked = query.getAll("pick").slice(-2);
	const read = () => {
		const conditions = new URLSearchParams();
		for (const { name, value } of fields) if (value.trim() !== "") conditions.set(name, value.trim());
		return conditions;
	};
	const showPicked = () => {
		const [one, other] = picked;
		fill(compared, one !== undefined && other !== undefined
			? link(`#/${recordPath(one, base)}?${new URLSearchParams({ with: other })}`, "Compare the two picked episodes")
			: el("span", { class: "muted" }, one === undefined ? "Pick two episodes to compare them." : "Pick another episode to compare it with."));
	};
	const list = new Rows({
		base,
		query: read,
		picked: (id) => picked.includes(id),
		pick: (id, wanted) => {
			const place = picked.indexOf(id);
			if (place >= 0) picked.splice(place, 1);
			if (wanted) picked.push(id);
			if (picked.length > 2) picked.shift();
			showPicked();
			list.render();
		},
		onCount: (total, leftOut) => {
			fill(count, countText(total, "episode"));
			fill(missing, leftOut.length > 0 && el("details", { class: "card" },
				el("summary", { class: "warn" }, `${countText(leftOut.length, "part")} of the record cannot be shown`),
				el("ul", ...leftOut.map(({ where, why }) => el("li", el("code", where), ` ${why}`)))));
			compared.hidden = list.element.hidden = total === 0;
			fill(empty, total > 0 ? null : read().size ? "No episode fits these filters." : "No episode is recorded so far. One is written when it ends.");
		},
		onProblem: (error) => fill(problem, error === null ? null : el("p", { class: "error" },
			messageOf(error), " ", button("Try again", () => list.reload()))),
	}, signal);
	/** @type {ReturnType<typeof setTimeout> | undefined} */
	let timer;
	const apply = () => {
		clearTimeout(timer);
		if (signal.aborted) return;
		history.replaceState(null, "", `#/${base}${suffix(read())}`);
		list.reload();
	};
	const form = el("form", { class: "card", role: "search", onsubmit: (event) => {
		event.preventDefault();
		apply();
	}, onchange: apply, oninput: () => {
		clearTimeout(timer);
		timer = setTimeout(apply, PATIENCE);
	} }, el("div", { class: "row" }, ...fields.map((input) => labelled(LABELS[input.name] ?? "", input)), button("Load again", () => list.reload())));
	signal.addEventListener("abort", () => clearTimeout(timer));
	onKeys({ j: () => list.step(1), k: () => list.step(-1) }, signal);
	fill(root, el("h1", "Records"), form, el("div", { class: "row" }, count, compared), problem, missing, list.element, empty);
	showPicked();
	list.reload();
}

/** Return the address of a list. @param {URLSearchParams} conditions */
const suffix = (conditions) => (conditions.size ? `?${conditions}` : "");

/** Return the inputs of the filters. @param {URLSearchParams} query */
function filterFields(query) {
	const text = (/** @type {string} */ name, type = "text") =>
		el("input", { id: `filter-${name}`, name, type, autocomplete: "off", step: type === "number" ? "any" : null });
	const choice = (/** @type {string} */ name, /** @type {string} */ none, /** @type {string[]} */ choices) =>
		el("select", { id: `filter-${name}`, name }, el("option", { value: "" }, none), ...choices.map((each) => el("option", each)));
	const fields = [text("text", "search"), text("task"), text("split"), choice("status", "any", STATUSES), text("return_min", "number"), text("tool"),
		choice("console", "hidden", ["shown"])];
	for (const field of fields) field.value = query.get(field.name) ?? "";
	return fields;
}

class Rows {
	/** @type {Map<number, RecordRow[] | null>} null: asked for */
	#pages = new Map();
	#asking = new AbortController();
	#total = 0;
	#current = -1;
	#known = false;

	/** @param {RowsOwner} owner @param {AbortSignal} signal */
	constructor(owner, signal) {
		this.owner = owner;
		this.body = el("tbody", {});
		this.table = el("table", el("thead", el("tr", { "aria-rowindex": 1 },
			...COLUMNS.map(([head, style]) => el("th", { scope: "col", class: style }, head)))), this.body);
		this.element = region("Episodes", "window card", this.table);
		this.render = onceAFrame(() => this.#render(), signal);
		this.element.addEventListener("scroll", this.render, { signal, passive: true });
		addEventListener("resize", this.render, { signal });
		signal.addEventListener("abort", () => this.#asking.abort());
	}

	/** Ask for everything anew. */
	reload() {
		this.#asking.abort();
		this.#asking = new AbortController();
		this.#pages.clear();
		this.#known = false;
		this.#current = -1;
		this.element.scrollTop = 0;
		this.owner.onProblem(null);
		void this.#load(0);
	}

	/** Go to the next or previous episode. @param {number} by */
	step(by) {
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
		const query = this.owner.query();
		const conditions = Object.fromEntries(query);
		if (!query.has("console")) conditions.not_agent = "console";
		delete conditions.console;
		try {
			const { total, rows, left_out: leftOut } = await ask(this.owner.base, { query: { ...conditions, offset: page * PAGE, limit: PAGE }, signal });
			if (signal.aborted) return;
			// The newest come first: a new episode moves all others.
			if (this.#known && total !== this.#total) this.#pages.clear();
			this.#known = true;
			this.#total = total;
			this.#pages.set(page, rows);
			this.owner.onCount(total, leftOut ?? []);
			this.render();
		} catch (error) {
			if (signal.aborted) return;
			this.#asking.abort();
			this.owner.onProblem(error);
		}
	}

	#render() {
		const seen = Math.ceil(this.element.clientHeight / HEIGHT) + 2 * BESIDE;
		const from = Math.max(0, Math.min(Math.floor(this.element.scrollTop / HEIGHT) - BESIDE, this.#total - 1));
		const to = Math.min(this.#total, from + seen);
		const focused = document.activeElement?.id ?? "";
		const rows = [];
		for (let index = from; index < to; index += 1) rows.push(this.#row(index));
		this.table.setAttribute("aria-rowcount", String(this.#total + 1));
		fill(this.body, space(from), ...rows, space(this.#total - to));
		// The rows are new elements: the keyboard stays where it was.
		if (focused.startsWith("episode-") || focused.startsWith("pick-")) document.getElementById(focused)?.focus({ preventScroll: true });
		if (this.#asking.signal.aborted || !this.#known) return;
		for (let page = Math.floor(from / PAGE); page * PAGE < to; page += 1) void this.#load(page);
	}

	/** @param {number} index */
	#row(index) {
		const row = this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE];
		const current = index === this.#current ? "true" : null;
		if (!row) {
			return el("tr", { "aria-rowindex": index + 2, "aria-current": current }, el("td", { class: "pick" }),
				el("td", { class: "muted" }, "Loading"), ...COLUMNS.slice(2).map(([, style]) => el("td", { class: style })));
		}
		const pick = el("input", { id: `pick-${index}`, type: "checkbox", "aria-label": `Pick episode ${row.id}` });
		pick.addEventListener("change", () => this.owner.pick(row.place, pick.checked));
		pick.checked = this.owner.picked(row.place);
		const back = this.owner.query();
		const task = taskText(row.task_id === null ? null : { id: row.task_id, split: row.split ?? "" });
		const cells = [String(row.n_steps), numberText(row.return), row.status ?? "running", row.agent ?? "", row.ending, momentText(row.started_at)];
		return el("tr", { "aria-rowindex": index + 2, "aria-current": current },
			el("td", { class: "pick" }, pick),
			el("th", { scope: "row" }, el("a", { id: `episode-${index}`, href: `#/${recordPath(row.place, this.owner.base)}${suffix(back)}`, title: row.id }, row.id)),
			el("td", { title: task }, task),
			...cells.map((cell, place) => el("td", { class: COLUMNS[place + 3]?.[1], title: cell }, cell)));
	}
}

/** Return a row as high as those that do not exist. @param {number} rows */
function space(rows) {
	const row = el("tr", { "aria-hidden": "true" }, el("td"));
	row.style.height = `${Math.max(0, rows) * HEIGHT}px`;
	return row;
}
