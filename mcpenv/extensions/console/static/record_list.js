/** The list of recorded episodes, or of their groups. */

import { ApiError, ask, recordPath } from "./api.js";
import { button, el, fill, formOf, labelled, link, messageOf, refill, region } from "./dom.js";
import { countText, momentText, numberText, taskText } from "./format.js";
import { onKeys, onceAFrame } from "./frame.js";
import { plainText } from "./numbers.js";
import { Overview, taskPath } from "./overview.js";
import { WhereField, both, quoted } from "./where.js";

/** The height of a row in pixels, as in style.css. */
const HEIGHT = 40;
/** The number of rows that are asked for at once. */
const PAGE = 100;
/** Rows beside those that are seen. */
const BESIDE = 10;
/** The columns with the fields that they sort by, and their classes. @type {[string, string, string?][]} */
const COLUMNS = [["Pick", "", "pick"], ["Episode", "id"], ["Task", "task"], ["Steps", "steps", "number wide"], ["Return", "return", "number"], ["Status", "status"],
	["Agent", "agent", "wide"], ["Ending", "ending", "wide"], ["Started", "started", "wide"]];
/** The columns of groups. @type {[string, keyof RecordGroup, string?][]} */
const GROUPS = [["", "value"], ["Episodes", "episodes", "number"], ["Scored", "scored", "number wide"], ["Mean return", "mean", "number"], ["Least", "min", "number wide"],
	["Most", "max", "number wide"], ["Mean steps", "steps", "number"], ["Mean errors", "errors", "number wide"]];
const GROUPED_BY = ["nothing", "task", "split", "level", "family", "agent", "model", "status", "policy_version"];
const OLDER = ["text", "task", "split", "status", "tool", "agent", "return_min"];

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
		/** @type {Record<string, string>} */
		this.older = Object.fromEntries([...query].filter(([name]) => OLDER.includes(name)));
		this.where = new WhereField(base, query.get("where") ?? "", () => this.#apply());
		this.sort = query.get("sort") ?? "";
		this.group = el("select", { id: "group", onchange: () => this.#apply({ sort: "" }) }, ...GROUPED_BY.map((name, at) => el("option", { value: at ? name : "" }, name)));
		this.group.value = query.get("group") ?? "";
		this.shown = el("input", { id: "console", type: "checkbox", onchange: () => this.#apply() });
		this.shown.checked = query.get("console") === "shown";
		this.overview = new Overview(base, this.shown, (where) => this.#apply({ where }));
		this.problem = el("div", { role: "alert" });
		this.count = el("p", { role: "status" });
		this.compared = el("p");
		this.missing = el("div");
		this.empty = el("p.empty");
		this.body = el("tbody");
		this.head = el("thead");
		this.table = el("table", this.head, this.body);
		this.groups = el("div");
		this.element = region("div.window.card", "Episodes", this.table);
		this.render = onceAFrame(() => this.#render(), signal);
		this.element.addEventListener("scroll", this.render, { signal, passive: true });
		addEventListener("resize", this.render, { signal });
		const form = formOf("form.card", { role: "search" }, () => this.#apply(), this.where.element, el("div.row", labelled("Group by", this.group),
			el("label.check", this.shown, " Show those played in the console"), el("button.primary", "Search"), button("Load again", () => this.reload())));
		signal.addEventListener("abort", () => this.#asking.abort());
		onKeys({ j: () => this.#step(1), k: () => this.#step(-1) }, signal);
		fill(root, el("h1", "Records"), form, this.overview.element, el("div.row", this.count, this.compared), this.problem, this.missing, this.element, this.groups, this.empty);
		this.#showPicked();
	}

	reload() {
		this.#asking.abort();
		this.#asking = new AbortController();
		this.#pages.clear();
		this.#known = false;
		this.#current = -1;
		this.element.scrollTop = 0;
		fill(this.problem);
		this.where.refuse("");
		this.overview.wait();
		refill(this.head, this.#headOf(COLUMNS));
		fill(this.count, "Searching…");
		void this.#load(0);
	}

	/** Return the part of an address that has what is asked for. */
	#suffix() {
		const found = { where: this.where.input.value.trim(), sort: this.sort, group: this.group.value, console: this.shown.checked && "shown" };
		const set = Object.entries(found).flatMap(([name, value]) => (value ? [[name, value]] : []));
		return set.length ? `?${new URLSearchParams(set)}` : "";
	}

	/** @type {Applier} */
	#apply({ where = this.where.input.value, sort = this.sort } = {}) {
		this.where.input.value = where;
		this.sort = sort;
		const before = location.hash;
		history.replaceState(null, "", `#/${this.base}${this.#suffix()}`);
		if (location.hash !== before || this.#asking.signal.aborted) this.reload();
	}

	/** @type {HeadMaker} */
	#headOf(columns) {
		return el("tr", { "aria-rowindex": 1 }, ...columns.map(([text, field, style]) => {
			const down = this.sort === `-${field}`;
			const sorted = field && (down || this.sort === field);
			const next = down ? "" : sorted ? `-${field}` : field;
			return el("th", { scope: "col", class: style, "aria-sort": sorted ? (down ? "descending" : "ascending") : null },
				field ? button(`${text || `By ${this.group.value.replace("_", " ")}`}${sorted ? (down ? " ↓" : " ↑") : ""}`, () => this.#apply({ sort: next }), { class: "quiet sort" }) : text);
		}));
	}

	/** @type {GroupsWriter} */
	#showGroups({ count, groups }) {
		const by = this.group.value;
		const rows = groups.map((group) => {
			const { value, split } = group;
			const text = by === "task" && value !== null ? taskText({ id: plainText(value), split: split ?? "" }) : (value === null ? "none" : plainText(value));
			const path = by === "task" && value !== null ? taskPath(this.base, text, this.shown.checked, this.where.input.value)
				: `${this.base}?${new URLSearchParams({ where: both(this.where.input.value, `${by} = ${quoted(value)}`), ...this.shown.checked && { console: "shown" } })}`;
			return el("tr", el("th", { scope: "row" }, link(`#/${path}`, text)),
				...GROUPS.slice(1).map(([, key, style]) => el("td", { class: style }, numberText(/** @type {number | null} */ (group[key])))));
		});
		refill(this.groups, region("div.scroll.card", "Groups", el("table", el("thead", this.#headOf(GROUPS)), el("tbody", ...rows)),
			count > groups.length && el("p.muted", `The first ${groups.length} of ${countText(count, "group")}.`)));
	}

	/** @type {Picker} */
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
		const conditions = { where: this.where.input.value, ...this.older };
		const shown = this.shown.checked;
		const wanted = { ...conditions, not_agent: shown ? null : "console" };
		const group = this.group.value;
		const query = { ...wanted, sort: group ? "" : this.sort, offset: page * PAGE, limit: PAGE };
		try {
			/** @type {{total: number, rows: RecordRow[], left_out?: LeftOut[]}} */
			const { total, rows, left_out: leftOut = [] } = await ask(this.base, { query, signal });
			if (!this.#known) {
				this.#hidden = shown ? 0 : (await ask(this.base, { query: { ...conditions, agent: "console", limit: 1 }, signal })).total;
				/** @type {OverviewAnswer} */
				const overview = await ask(`${this.base}/overview`, { query: { ...wanted, group, sort: group && this.sort }, signal });
				if (signal.aborted) return;
				if (Object.keys(this.older).length) {
					this.older = {};
					this.where.input.value = overview.where;
					history.replaceState(null, "", `#/${this.base}${this.#suffix()}`);
				}
				this.overview.draw(overview);
				if (signal.aborted) return; // A brush has waited for it.
				if (overview.groups) this.#showGroups(overview.groups);
				else fill(this.groups);
			}
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
			fill(this.count);
			if (!this.#known) {
				this.#total = 0;
				fill(this.groups);
				fill(this.empty);
				this.#render();
			}
			if (error instanceof ApiError && error.status === 422) return this.where.refuse(messageOf(error));
			fill(this.problem, el("p.error", messageOf(error), " ", button("Try again", () => this.reload())));
		}
	}

	/** @param {LeftOut[]} leftOut */
	#showCount(leftOut) {
		const none = this.#total === 0;
		fill(this.count, countText(this.#total, "episode"), this.#hidden > 0 && `. Hidden: ${numberText(this.#hidden)} played in the console. `,
			this.#hidden > 0 && button("Show them", () => {
				this.shown.checked = true;
				this.#apply();
			}, { class: "quiet" }));
		fill(this.missing, leftOut.length > 0 && el("details.card",
			el("summary.warn", `${countText(leftOut.length, "part")} of the record cannot be shown`),
			el("ul", ...leftOut.map(({ where, why }) => el("li", el("code", where), ` ${why}`)))));
		this.compared.hidden = this.element.hidden = none || this.group.value !== "";
		fill(this.empty, none && (this.where.input.value ? "No episode fits these filters."
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
			return el("tr", properties, el("td.pick"), el("td.muted", "Loading"), ...COLUMNS.slice(2).map(([, , style]) => el("td", { class: style })));
		}
		const { id, place } = row;
		const pick = el("input", { id: `pick-${index}`, type: "checkbox", aria: `Pick episode ${id}`,
			onchange: () => this.#pick(place, pick.checked) });
		pick.checked = this.picked.includes(place);
		const task = taskText(row.task_id === null ? null : { id: row.task_id, split: row.split ?? "" });
		const cells = [task, row.n_steps, numberText(row.return), row.status ?? "running", row.agent ?? "", row.ending, momentText(row.started_at)];
		return el("tr", properties, el("td.pick", pick),
			el("th", { scope: "row" }, el("a", { id: `episode-${index}`, href: `#/${recordPath(place, this.base)}${this.#suffix()}`, title: id }, id)),
			...cells.map((cell, column) => el("td", { class: COLUMNS[column + 2]?.[2], title: cell }, cell)));
	}
}

/** Return a row as high as those that do not exist. @param {number} rows */
function space(rows) {
	const row = el("tr", { "aria-hidden": "true" }, el("td"));
	row.style.height = `${Math.max(0, rows) * HEIGHT}px`;
	return row;
}
