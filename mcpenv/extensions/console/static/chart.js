/** Charts of one episode, as SVG, each with a table: the return, the parts of the reward, the time. */

import { add, el, fill, foldedLater, muted, tableOf } from "./dom.js";
import { countText, durationText, listText, momentText, numberText } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;
/** The most columns; a longer episode has several steps in one. */
const COLUMNS = 300;
/** The most parts that are drawn; the table has all. */
const COLOURS = 6;
/** The most rows of a table. */
const ROWS = 1000;

export class Charts {
	/** @type {[Step[], Frame, ModelTurn[]] | null} */
	#shown = null;

	/** @param {boolean} open @param {(index: number) => void} [onStep] shows a step, by its place in the list */
	constructor(open, onStep) {
		this.onStep = onStep;
		this.body = el("div.charts");
		this.element = el("details.card", { open, ontoggle: () => this.#draw() }, el("summary", "Charts"), this.body);
	}

	/** Call it once a frame. @type {ChartsWriter} */
	draw(steps, frame, turns) {
		this.#shown = [steps, frame, turns ?? []];
		this.#draw();
	}

	#draw() {
		if (!this.element.open || !this.#shown) return;
		const opened = [...this.body.querySelectorAll("details")].map((each) => each.open);
		const sliders = [...this.body.querySelectorAll("input")];
		const focused = sliders.findIndex((each) => each === document.activeElement);
		const [steps, frame] = this.#shown;
		const points = pointsOf(steps, frame);
		fill(this.body, ...points.length ? [returnChart(points, this.onStep), partsChart(points, this.onStep)] : [muted("No reward so far.")],
			timeChart(...this.#shown, this.onStep));
		this.body.querySelectorAll("details").forEach((each, index) => {
			if (opened[index]) each.open = true;
		});
		const slider = this.body.querySelectorAll("input")[focused];
		if (!slider) return;
		slider.value = sliders[focused]?.value ?? "";
		slider.dispatchEvent(new Event("input"));
		slider.focus({ preventScroll: true });
	}
}

/** @type {PointsReader} */
function pointsOf(steps, frame) {
	/** @type {Point[]} */
	const points = [];
	let sum = 0;
	const give = (/** @type {string} */ label, /** @type {Reward | null} */ reward, step = -1) => {
		if (!reward) return;
		sum += reward.value;
		const parts = Object.entries(reward.components);
		if (!parts.length) parts.push(["reward", reward.value]);
		const leaves = parts.filter(([name]) => !parts.some(([other]) => other.startsWith(`${name}/`)));
		points.push({ label, step, value: reward.value, sum, parts: new Map(parts), leaves: new Map(leaves) });
	};
	const first = frame.observation?.reward;
	give("reset", typeof first === "number" ? { value: first, components: {} } : null);
	steps.forEach((step, index) => give(nameOf(step, index, frame), step.reward, index));
	give("end", frame.end_reward);
	// A part that is the reward itself, beside others that sum to it, does not stand on those.
	const near = (/** @type {number} */ one, /** @type {number} */ other) => Math.abs(one - other) <= 1e-9 * Math.max(1, Math.abs(one));
	for (const name of new Set(points.flatMap(({ leaves }) => (leaves.size > 2 ? [...leaves.keys()] : [])))) {
		const those = points.filter(({ leaves }) => leaves.has(name));
		if (those.every(({ leaves, value }) => near(leaves.get(name) ?? 0, value) && near([...leaves.values()].reduce((one, other) => one + other), 2 * value))
			&& those.some(({ value }) => value)) for (const { leaves } of those) leaves.delete(name);
	}
	return points;
}

/** @type {StepNamer} */
const nameOf = ({ position, call }, index, { dropped }) => `${position ?? dropped + index + 1}. ${call.name}`;

/** @type {RewardChart} */
function returnChart(points, onStep) {
	const columns = columnsOf(points);
	const sums = columns.map((column) => column.at(-1)?.sum ?? 0);
	const { y, range } = scale(sums);
	const x = (/** @type {number} */ index) => ((index + 0.5) / sums.length * WIDTH).toFixed(1);
	const d = sums.map((value, index) => `${index ? "L" : "M"}${x(index)} ${y(value)}`).join("");
	return figure("Return so far", `${numberText(sums.at(-1))} after ${countText(points.length, "reward")}.`, range,
		[zero(y), shape("path", sums.length > 1 ? { d, class: "curve" } : { d: `${d}h0`, class: "curve dot" })],
	cursorOf(columns, (column) => `return ${numberText(column.at(-1)?.sum)}`, onStep));
}

/** @type {RewardChart} */
function partsChart(points, onStep) {
	/** @type {Map<string, number>} */
	const sizes = new Map();
	for (const { leaves } of points) for (const [name, value] of leaves) sizes.set(name, (sizes.get(name) ?? 0) + Math.abs(value));
	const drawn = [...sizes].sort((one, other) => other[1] - one[1]).map(([name]) => name);
	const names = drawn.slice(0, COLOURS);
	const all = [...new Set(points.flatMap(({ parts }) => [...parts.keys()]))];
	const columns = columnsOf(points);
	const values = columns.map((column) => column.reduce((sum, { value }) => sum + value, 0));
	// Where the parts of a column begin and end: those above zero stand on each other, those below it hang.
	const stacks = columns.map((column) => {
		let [up, down] = [0, 0];
		return names.map((name) => {
			const value = column.reduce((sum, { leaves }) => sum + (leaves.get(name) ?? 0), 0);
			return value > 0 ? [up, up += value] : [down, down += value];
		});
	});
	const { y, range } = scale([...values, ...stacks.flat(2)]);
	const width = WIDTH / columns.length;
	const bar = (/** @type {number} */ index) => `M${(index * width).toFixed(2)} `;
	const across = `h${(width > 4 ? width - 1 : width).toFixed(2)}`;
	// One path a part: thousands of elements would be slow to redraw.
	const paths = names.map(() => "");
	stacks.forEach((stack, index) => stack.forEach(([from = 0, to = 0], part) => {
		if (from !== to) paths[part] += `${bar(index)}${y(from)}V${y(to)}${across}V${y(from)}z`;
	}));
	const ticks = values.map((value, index) => `${bar(index)}${y(value)}${across}`).join("");
	const words = drawn.length > names.length ? `The ${COLOURS} largest of ${drawn.length} parts; the table has all.` : `Parts: ${names.join(", ")}.`;
	return figure("Reward per step, by its parts", words, range, [zero(y), ...paths.map((d, index) => shape("path", { d, class: `part-${index}` })),
		shape("path", { d: ticks, class: "tick" })], cursorOf(columns, (column) => column.map(({ value, parts }) =>
		listText(`reward ${numberText(value)}`, ...[...parts].map(([name, each]) => `${name} ${numberText(each)}`))).join("; "), onStep),
	HEIGHT, [...names.map((name, index) => [`part-${index}`, name]), ["tick", "reward of the step"]], () => [points.length > ROWS && muted(`The first ${ROWS} of ${points.length} rows.`),
		tableOf("Values", ["Step", "Reward", "Return", ...all], points.slice(0, ROWS).map((point) =>
			[point.label, ...[point.value, point.sum, ...all.map((name) => point.parts.get(name) ?? 0)].map((value) => numberText(value))]), "number")]);
}

/** @type {CursorMaker} */
function cursorOf(columns, valueOf, onStep) {
	return { count: columns.length, text: (index) => `${[...new Set([columns[index]?.[0]?.label, columns[index]?.at(-1)?.label])].join(" to ")}: ${valueOf(columns[index] ?? [])}`,
		tick: (index) => /^\d+|\w+/.exec(columns[index]?.[0]?.label ?? "")?.[0] ?? "",
		choose: onStep && ((index) => onStep(columns[index]?.find(({ step }) => step >= 0)?.step ?? -1)) };
}

/** @type {AxisMaker} */
function pointed(svg, { count, text, tick, choose }, name) {
	const said = el("p.muted.values", `Point at the chart${choose ? "; a click leads to the step" : ""}.`);
	const line = el("div.cursor", { hidden: true });
	const axis = el("input", { type: "range", min: 0, max: count - 1, value: 0, aria: name });
	axis.addEventListener("input", () => show(Number(axis.value)));
	axis.addEventListener("keydown", ({ key }) => key === "Enter" && choose?.(Number(axis.value)));
	const show = (/** @type {number} */ at) => {
		axis.value = String(at);
		axis.setAttribute("aria-valuetext", text(at));
		line.hidden = false;
		line.style.left = `${(at + 0.5) / count * 100}%`;
		fill(said, text(at));
	};
	const plot = el("div.plot", svg, line);
	plot.addEventListener("pointermove", ({ offsetX }) => show(Math.max(0, Math.min(count - 1, Math.floor(offsetX / plot.clientWidth * count)))));
	plot.addEventListener("click", () => choose?.(Number(axis.value)));
	return [plot, el("div.axis", tick(0), axis, tick(count - 1)), said];
}

/** @type {TimeChart} */
function timeChart(steps, frame, turns, onStep) {
	const start = frame.started_at || steps[0]?.started_at;
	if (!start || !steps.length) return null;
	const tools = spansOf(steps.map((step) => [step.started_at - start, step.outcome.duration_s]));
	const model = spansOf(turns.map((turn) => [turn.started_at - start, turn.duration_s]));
	const ended = (frame.ended_at ?? 0) - start;
	/** @type {Spans} */
	const scored = steps.filter((step) => step.scoring_s > 0).map((step) => [step.started_at - start + step.outcome.duration_s, step.scoring_s]);
	if (frame.end_scoring_s > 0) scored.push([ended - frame.end_scoring_s, frame.end_scoring_s]);
	const scoring = spansOf(scored);
	const span = Math.max(ended, tools.over, scoring.over, model.over, 1e-6);
	const moment = span / COLUMNS;
	const rest = durationText(Math.max(0, span - tools.busy - scoring.busy - model.busy));
	const [asked, timed] = [turns.length > 0, scoring.busy > 0];
	const words = `${listText(`Tools ${durationText(tools.busy)}`, timed && `scoring ${durationText(scoring.busy)}`,
		asked && `the model ${durationText(model.busy)}`, `else ${rest}`)}: ${listText(asked ? "the agent" : "the model", !timed && "scoring")} and the connection.`
		+ (asked ? "" : " The model has times of its own if mcpenv's proxy records it.");
	return figure("Time", words, `0 to ${durationText(span)}`, [shape("rect", { x: 0, y: 6, width: WIDTH, height: 28, class: "between" }),
		shape("path", { d: tools.path(span), class: "part-0" }), shape("path", { d: model.path(span), class: "part-1" }),
		shape("path", { d: scoring.path(span), class: "part-2" })], {
		count: COLUMNS,
		text: (index) => {
			const [step = -1, asks = -1, scores = -1] = [tools, model, scoring].map(({ within }) => within(index * moment, moment));
			const call = steps[step];
			return `${durationText(index * moment)}: ${listText(call && nameOf(call, step, frame), asks >= 0 && "the model", scores >= 0 && "scoring") || "between them"}`;
		},
		tick: (index) => durationText(index && span),
		choose: onStep && ((index) => onStep(tools.within(index * moment, moment))),
	}, 40, [["part-0", "in tools"], ...asked ? [["part-1", "in the model"]] : [], ...timed ? [["part-2", "in scoring"]] : [], ["between", "between them"]]);
}

/** @type {SpanReader} */
function spansOf(spans) {
	let [busy, over] = [0, 0];
	for (const [at, long] of spans) {
		busy += Math.max(0, at + long - Math.max(over, at));
		over = Math.max(over, at + long);
	}
	const path = (/** @type {number} */ whole) => spans.map(([at, long]) => {
		const wide = Math.max(0.3, long / whole * WIDTH).toFixed(2);
		return `M${(Math.max(0, at) / whole * WIDTH).toFixed(2)} 6h${wide}v28h-${wide}z`;
	}).join("");
	return { busy, over, path, within: (from, wide) => spans.findIndex(([at, long]) => at < from + wide && at + long >= from) };
}

/** @type {FigureMaker} */
function figure(title, description, range, shapes, cursor, height = HEIGHT, legend = [], table) {
	const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img",
		"aria-label": `${title}. ${description}`, class: height === HEIGHT ? "chart" : "chart low" });
	add(svg, ...shapes);
	return el("figure", el("figcaption", el("strong", title), el("span.muted", ` ${range}`)), ...pointed(svg, cursor, `Steps of: ${title}`),
		legend.length > 0 && el("ul.legend", ...legend.map(([style, text]) => el("li", el("span", { class: `swatch ${style}` }), text))),
		muted(description), table && foldedLater("details", el("summary", "As a table"), table));
}

/** @type {ShapeMaker} */
export function shape(tag, attributes) {
	const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
	return element;
}

/** Return a chart that the server drew. @type {DrawingMaker} */
export const drawingOf = ([, , svg, [, , caption]]) => el("figure.drawing", drawn(svg), el("figcaption.muted", String(caption)));

/** Return what the server drew; its moments in the reader's time zone. @type {Drawer} */
export function drawn([tag, attributes, ...children], within = tag === "svg") {
	const element = within ? shape(tag, attributes) : el(/** @type {Tag} */ (tag), attributes);
	element.append(...children.map((child) => (typeof child === "string" ? child : drawn(child, within || child[0] === "svg"))));
	if (tag === "time") element.textContent = momentText(Date.parse(attributes.datetime ?? "") / 1000);
	return element;
}

/** @param {(value: number) => string} y */
const zero = (y) => shape("line", { x1: 0, x2: WIDTH, y1: y(0), y2: y(0), class: "zero" });

/** @param {Point[]} points at least one */
function columnsOf(points) {
	const size = Math.ceil(points.length / COLUMNS);
	return Array.from({ length: Math.ceil(points.length / size) }, (_, index) => points.slice(index * size, (index + 1) * size));
}

/** Return the range of values with zero, and the place of one from the top. @param {number[]} values */
function scale(values) {
	const low = Math.min(0, ...values);
	const high = Math.max(0, ...values);
	return {
		range: `${numberText(low)} to ${numberText(high)}`,
		y: (/** @type {number} */ value) => (HEIGHT - 6 - (value - low) / (high - low || 1) * (HEIGHT - 12)).toFixed(1),
	};
}
