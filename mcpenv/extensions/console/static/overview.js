/** The charts above the records, whose brushes set the condition. */

import { recordPath } from "./api.js";
import { shape } from "./chart.js";
import { el, fill, labelled, link, muted } from "./dom.js";
import { both, quoted } from "./where.js";

/** As in style.css. */
const ROW = 24;

/** @type {TaskPath} */
export function taskPath(base, name, shown, where = "") {
	const query = new URLSearchParams({ ...where && { where }, ...shown && { console: "shown" } });
	return `${base === "records" ? "" : `${base}/`}task/${encodeURIComponent(name)}${query.size ? `?${query}` : ""}`;
}

export class Overview {
	/** Those of the condition that is shown; null while another one is asked for. @type {Parts | null} */
	#parts = null;
	/** What is set meanwhile. @type {Parts} */
	#later = {};

	/** `onBrush` gets the new condition. @param {string} base @param {HTMLInputElement} shown @param {(where: string) => void} onBrush */
	constructor(base, shown, onBrush) {
		this.base = base;
		this.shown = shown;
		this.onBrush = onBrush;
		this.body = el("div.charts");
		this.bounds = ["return_from", "return_below", "steps_from", "steps_below"].map((id) => {
			const input = el("input", { id, type: "number", step: "any", onchange: () => this.#set({ [id]: input.value }) });
			return input;
		});
		this.element = el("details.card", { open: innerWidth > 640 }, el("summary", "Overview"), this.body,
			el("div.row", ...this.bounds.map((input) => labelled(input.id.replace("_", " "), input))),
			muted("Drag over a chart, or write bounds."));
	}

	/** Let what is set wait for the condition that is asked for. */
	wait() {
		this.#parts = null;
		this.#later = {};
	}

	/** Give the condition with other parts. @param {Parts} parts */
	#set(parts) {
		Object.assign(this.#later, parts);
		if (!this.#parts) return;
		const now = { ...this.#parts, ...this.#later };
		this.#later = {};
		const texts = ["return", "steps"].flatMap((field) => [[">=", "from"], ["<", "below"]].flatMap(([sign, side]) =>
			(now[`${field}_${side}`] === "" ? [] : [`${field} ${sign} ${now[`${field}_${side}`]}`])));
		this.onBrush([...texts, ...now.tasks ? [String(now.tasks)] : []].reduce(both, String(now.rest)));
	}

	/** @param {OverviewAnswer} answer */
	draw({ charts, heat, total, parts }) {
		this.#parts = parts;
		for (const input of this.bounds) if (input !== document.activeElement) input.value = parts[input.id] ?? "";
		this.element.hidden = total === 0 && !this.bounds.some(({ value }) => value);
		fill(this.body, ...charts.map((chart) => this.#chart(chart, ({ left, right, top, bottom }) =>
			({ ...within(chart.x, left, right), ...chart.y && within(chart.y, 1 - bottom, 1 - top) }))),
		charts.length === 0 && muted("No episode has a return."), heat.names.length > 0 && this.#heat(heat));
		if (Object.keys(this.#later).length) this.#set({});
	}

	/** @param {OverviewAnswer["heat"]} heat */
	#heat({ names, ...shown }) {
		const chart = this.#chart({ title: "Tasks by attempt", ends: [], ...shown }, ({ top, bottom }) =>
			({ tasks: `task in (${names.slice(Math.floor(top * names.length), Math.ceil(bottom * names.length)).map(quoted).join(", ")})` }));
		const plot = /** @type {HTMLElement} */ (chart.children[1]);
		plot.style.height = `${names.length * ROW}px`;
		const rows = el("div.heat");
		plot.replaceWith(rows);
		rows.append(el("ol.plain", ...names.map((name) => el("li", link(`#/${taskPath(this.base, name, this.shown.checked)}`, name)))), plot);
		return chart;
	}

	/** @type {BrushedChart} */
	#chart({ title, range, cells, ends: [from, to], about }, onBrush) {
		const svg = shape("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", role: "img", "aria-label": `${title}, ${range}.`, class: "chart" });
		svg.append(...cells.map((cell) => cellOf(cell, this.base)));
		const box = el("div.brush", { hidden: true });
		const plot = el("div.plot", svg, box);
		brushed(plot, box, (area) => this.#set(onBrush(area)));
		return el("figure", el("figcaption", el("strong", title), el("span.muted", ` ${range}`)), plot,
			el("p.bar.values.muted", from !== undefined && el("span", from), about && el("span", about), to !== undefined && el("span.end", to)));
	}
}

/** @type {Brusher} */
function brushed(plot, box, onBrush) {
	/** @type {{x: number, y: number} | null} */
	let begun = null;
	const at = (/** @type {PointerEvent} */ { clientX, clientY }) => {
		const { left, top, width, height } = plot.getBoundingClientRect();
		const inside = (/** @type {number} */ value) => Math.max(0, Math.min(1, value));
		return { x: inside((clientX - left) / width), y: inside((clientY - top) / height) };
	};
	const area = (/** @type {PointerEvent} */ event) => {
		const { x, y } = at(event);
		const from = begun ?? { x, y };
		return { left: Math.min(from.x, x), right: Math.max(from.x, x), top: Math.min(from.y, y), bottom: Math.max(from.y, y) };
	};
	plot.addEventListener("pointerdown", (event) => {
		if (event.button === 0) begun = at(event);
	});
	plot.addEventListener("pointermove", (event) => {
		if (!event.buttons) return end(event); // It was released elsewhere.
		const { left, right, top, bottom } = area(event);
		if (!begun || (right - left) * plot.clientWidth + (bottom - top) * plot.clientHeight < 6) return;
		plot.setPointerCapture(event.pointerId);
		box.hidden = false;
		box.style.inset = `${[top, 1 - right, 1 - bottom, left].map((part) => `${part * 100}%`).join(" ")}`;
	});
	const end = (/** @type {PointerEvent} */ event) => {
		const done = event.type === "pointerup" && !box.hidden && area(event);
		begun = null;
		box.hidden = true;
		if (done) onBrush(done);
	};
	plot.addEventListener("pointerup", end);
	plot.addEventListener("pointercancel", end);
}

/** @type {BoundsReader} */
const within = ([field, { start, width, count }], from, to) => {
	const edge = (/** @type {number} */ at) => Number((start + width * at).toPrecision(12));
	return { [`${field}_from`]: edge(Math.floor(from * count)), [`${field}_below`]: edge(Math.ceil(to * count)) };
};

/** @type {CellMaker} */
function cellOf([x, y, width, height, strength, text, place], base) {
	const element = shape("rect", { x, y, width, height, class: strength === null ? "part-none" : "part-0", "fill-opacity": 0.15 + 0.85 * (strength ?? 0) });
	const title = shape("title", {});
	title.textContent = text;
	element.append(title);
	if (place) element.addEventListener("click", () => {
		location.hash = `#/${recordPath(place, base)}`;
	});
	return element;
}
