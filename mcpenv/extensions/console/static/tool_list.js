/** The list of tools: search, groups by tag or by the beginning of names, and those used last. */

import { button, el, refill } from "./dom.js";

/** The most tools that are listed without groups. */
const FEW = 15;
const RECENT = 5;
const OTHER = "Other";

export class ToolList {
	/** The names of the tools used last, the last one first. @type {string[]} */
	recent = [];
	/** The groups that the visitor has closed. @type {Set<string>} */
	#closed = new Set();
	/** @type {Tool[]} */
	#tools = [];
	#open = "";

	/** @param {(name: string) => void} onSelect */
	constructor(onSelect) {
		this.onSelect = onSelect;
		this.search = el("input", { type: "search", aria: "Search tools", placeholder: "Search (/)",
			oninput: () => this.#draw(), onkeydown: (/** @type {KeyboardEvent} */ event) => {
				const [first] = this.list.querySelectorAll("button");
				if (event.key === "Enter") first?.click();
				else if (event.key === "ArrowDown") first?.focus();
				else return;
				event.preventDefault();
			} });
		this.list = el("div.tools", { onkeydown: (/** @type {KeyboardEvent} */ event) => {
			const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
			if (!by) return;
			event.preventDefault();
			const shown = [...this.list.querySelectorAll("button")].filter((each) => each.offsetParent);
			const at = shown.findIndex((each) => each === document.activeElement) + by;
			(at < 0 ? this.search : shown[at])?.focus();
		} });
	}

	/** @type {ToolsWriter} */
	show(tools, open) {
		this.#tools = tools;
		this.#open = open;
		this.#draw();
	}

	/** Remember that a tool was called. @param {string} name */
	used(name) {
		this.recent = [name, ...this.recent.filter((each) => each !== name)].slice(0, RECENT);
		this.#draw();
	}

	#draw() {
		const tools = this.#tools;
		const wanted = this.search.value.toLowerCase().split(/\s+/);
		const shown = tools.filter(({ name, title, description }) => {
			const text = `${name} ${title ?? ""} ${description ?? ""}`.toLowerCase();
			return wanted.every((word) => text.includes(word));
		});
		// What is in a name counts more than what is in a description.
		shown.sort((one, other) => Number(other.name.toLowerCase().includes(wanted[0] ?? "")) - Number(one.name.toLowerCase().includes(wanted[0] ?? "")));
		const grouped = tools.length > FEW && this.search.value === "";
		const recent = grouped ? this.recent.flatMap((name) => tools.find((tool) => tool.name === name) ?? []) : [];
		const groups = grouped ? groupsOf(tools) : new Map();
		refill(this.list, !shown.length && el("p.muted", tools.length ? "No tool has this text." : "No tools."),
			recent.length > 0 && this.#group("Used last", recent),
			...groups.size ? [...groups].map(([name, members]) => this.#group(name, members)) : [this.#rows(shown)]);
	}

	/** @type {ToolGroup} */
	#group(name, tools) {
		return el("details", { open: !this.#closed.has(name), ontoggle: (/** @type {Event} */ { currentTarget }) => {
			if (/** @type {HTMLDetailsElement} */ (currentTarget).open) this.#closed.delete(name);
			else this.#closed.add(name);
		} }, el("summary", name, el("span.muted", ` ${tools.length}`)), this.#rows(tools));
	}

	/** @param {Tool[]} tools */
	#rows(tools) {
		return el("ul.list", ...tools.map(({ name, own, description }) => el("li",
			button(own ? `${name} (action)` : name, () => this.onSelect(name), { "aria-pressed": String(this.#open === name), title: description }))));
	}
}

/** Return tools by their first tag or, of those without one, the first word of the name; alone ones together. @param {Tool[]} tools */
function groupsOf(tools) {
	/** @type {Map<string, Tool[]>} */
	const groups = new Map();
	for (const tool of tools) {
		const meta = tool.meta ?? {};
		const tags = (meta.fastmcp ?? meta._fastmcp)?.tags;
		const name = Array.isArray(tags) && tags.length ? String(tags[0]) : tool.name.split(/[_./:-]|(?<=[a-z])(?=[A-Z])/)[0] ?? "";
		groups.set(name, [...groups.get(name) ?? [], tool]);
	}
	const alone = [...groups].filter(([, { length }]) => length === 1);
	for (const [name] of alone) groups.delete(name);
	if (alone.length) groups.set(OTHER, [...groups.get(OTHER) ?? [], ...alone.flatMap(([, members]) => members)]);
	return groups;
}
