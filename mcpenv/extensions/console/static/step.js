/** One step of an episode, and the list of all. */

import { changes } from "./changes.js";
import { contentOf, jsonOf, textOf } from "./content.js";
import { add, button, el, fill, folded, link, muted, tableOf } from "./dom.js";
import { countText, durationText, endText, listText, momentText, numberText, partsText } from "./format.js";
import { read, written } from "./numbers.js";
import { LazyRows } from "./rows.js";
import { messageOf } from "./transcript.js";

/** The most characters of arguments in the heading of a step. */
const SHORT = 100;

/** @param {Status} status */
export function statusText(status) {
	return listText(status.code, status.limit && `(${status.limit})`, status.stage && `stage ${status.stage}`,
		status.retryable && "a retry may help");
}

/** @type {StepHeadMaker} */
export function stepHead(step, number) {
	const given = written(step.call.arguments) ?? "";
	const { status } = step;
	return el("div.row.step-head",
		el("strong", `${number}. ${step.call.name}`),
		given !== "{}" && el("code.muted", given.length > SHORT ? `${given.slice(0, SHORT)}…` : given),
		step.call.plane === "control" && step.call.principal && el("span.chip", step.call.principal),
		step.reward && el(step.reward.value < 0 ? "span.error" : "span.good", `reward ${numberText(step.reward.value)}`),
		status && status.code !== "completed" && el("span.warn", statusText(status)),
		(step.terminated || step.truncated) && el(step.truncated ? "span.warn" : "span", endText(step, ""), step.reason && `: ${step.reason}`),
		el("span.muted.end", durationText(step.outcome.duration_s), step.started_at > 0 && ` at ${momentText(step.started_at).slice(-8)}`));
}

/** @type {StepWriter} */
export function addStepBody(root, step, blobs, earlier) {
	const { result, error } = step.outcome;
	const value = valueOf(step);
	const { plane, principal } = step.call;
	const parts = step.reward && partsText(step.reward.components);
	add(root, (written(step.call.arguments) ?? "").length > SHORT && jsonOf(step.call.arguments),
		...error ? [el("p.error", `${error.error_type}: `), textOf(error.message)] : [],
		step.fault && el("p.error", `The environment failed: ${step.fault}`),
		result?.is_error && el("p.error", "The tool marked its result as an error."),
		...result?.content.map((block) => contentOf(block, blobs)) ?? [],
		result && !result.content.length && muted("No content."),
		result && structuredOf(result),
		step.observation != null && el("details", { open: !result }, el("summary", "Observation"), jsonOf(step.observation)),
		earlier && value !== undefined && changesOf(earlier, value),
		parts && el("p", `Parts of the reward: ${parts}`),
		step.logs.length > 0 && folded(`Log (${step.logs.length})`, el("ul", ...step.logs.map(({ level, message, progress, total }) =>
			el("li", `${level}: ${message ?? ""} `, progress !== null && `${progress} of ${total ?? "unknown"}`)))),
		plane !== "control" && muted(`Called on the ${plane} plane${principal ? ` by ${principal}` : ""}.`));
}

/** Return the structured content of a result; null if its text says the same. @param {Result} result */
function structuredOf({ content, structured_content: value }) {
	if (!value) return null;
	const only = Object.keys(value).length === 1 ? value.result : undefined;
	const said = content.length === 1 ? content[0]?.text : undefined;
	if (said !== undefined && (said === only || same(said, value) || same(said, only))) return null;
	return folded("Structured content", jsonOf(value));
}

/** @type {SameTest} */
function same(text, value) {
	try {
		return value !== undefined && changes(read(text), value).length === 0;
	} catch {
		return false; // The text is no JSON.
	}
}

/** @type {ChangesMaker} */
export function changesOf(earlier, value) {
	const found = changes(earlier.value, value);
	const since = earlier.number ? `step ${earlier.number}` : "the reset";
	if (!found.length) return muted(`Unchanged since ${since}.`);
	return el("details", { open: true }, el("summary", `Changed since ${since}: ${found.length}`), changeTable(found));
}

/** @type {ChangeTable} */
export function changeTable(found, names = ["Before", "After"]) {
	return tableOf("Changes", ["Path", ...names], found.map((each) => [each.path || "(all)",
		...[each.before, each.after].map((side) => written(side) ?? "not there")]));
}

/** Return the first difference for which the server refuses to continue a record; null if that is not why. @type {RefusalMaker} */
export function refusalOf({ body }) {
	const { loc: [, , path] = [], recorded, replayed } = body.errors?.[0] ?? {};
	return path ? changeTable([{ path, before: recorded, after: replayed }], ["Recorded", "Now"]) : null;
}

/** Return what a step says about the world. @param {Step} step */
const valueOf = (step) => step.observation ?? step.outcome.result?.structured_content ?? undefined;

/** @type {BranchLinker} */
export const branchLink = (id, number) => el("p", link(`#/play?record=${encodeURIComponent(id)}&steps=${number}`, "Branch here"));

/** The steps of an episode as a list. A record has no states: a step is compared with the last one that asked the same. */
export class StepList {
	/** @type {Step[]} */
	steps = [];
	selected = -1;
	/** The steps before the first of the list. */
	dropped = 0;
	#links = el("ol");
	/** What each step is compared with. @type {(Earlier | undefined)[]} */
	#earlier = [];
	/** The last answer to each call. @type {Map<string, Earlier>} */
	#last = new Map();

	/** `blobs` is the path of the record's. @param {string} blobs @param {AbortSignal} signal @param {StepListOptions} [options] */
	constructor(blobs, signal, { onSelect, beside, before, turns } = {}) {
		this.onSelect = onSelect;
		this.beside = beside;
		this.before = before;
		this.blobs = blobs;
		this.rows = new LazyRows(
			(index) => el("li.card.step", { tabindex: "-1", "data-step": this.number(index),
				"aria-current": index === this.selected ? "step" : null }, stepHead(/** @type {Step} */ (this.steps[index]), this.number(index))),
			(row, index) => {
				const said = before?.get(this.number(index)) ?? [];
				row.prepend(...said.map((message) => messageOf(message, turns)));
				this.draw(row, index);
			}, signal);
		this.reset = el("div");
		/** The links to all steps, with their rewards. */
		this.outline = el("div.outline", { role: "navigation", aria: "Outline" }, this.#links);
		this.element = el("div", this.reset, this.rows.element);
	}

	/** @type {Beginner} */
	begin({ observation, dropped, task }) {
		this.steps = [];
		this.selected = -1;
		this.dropped = dropped;
		this.#earlier = [];
		this.#last = new Map(observation ? [["observation", { number: 0, value: observation }]] : []);
		this.rows.clear();
		fill(this.#links);
		const prompt = !this.before && (observation?.metadata?.prompt ?? task?.prompt);
		fill(this.reset, prompt && messageOf({ role: "task", parts: [{ type: "text", text: prompt }] }), dropped > 0 && muted(`The first ${countText(dropped, "step")} of the episode were not kept.`),
			observation && el("details.card", el("summary", "Reset"), jsonOf(observation)), this.beside?.(0));
	}

	/** @param {Step[]} steps */
	append(steps) {
		for (const step of steps) {
			const key = step.observation != null ? "observation" : `${step.call.name} ${written(step.call.arguments)}`;
			const value = valueOf(step);
			const index = this.steps.push(step) - 1;
			add(this.#links, el("li", button(`${this.number(index)}. ${step.call.name}`, () => this.select(index), { class: "quiet" }),
				step.outcome.error && el("span.error", " failed"),
				step.reward && step.reward.value !== 0 && el(step.reward.value < 0 ? "span.error" : "span.good", ` ${numberText(step.reward.value)}`)));
			if (value === undefined) continue;
			this.#earlier[index] = this.#last.get(key);
			this.#last.set(key, { number: this.number(index), value });
		}
		this.rows.grow(this.steps.length);
	}

	/** Return the number of a step in its episode. @param {number} index */
	number(index) {
		return this.steps[index]?.position ?? this.dropped + index + 1;
	}

	/** Write the body of a step, and what stands beside it; -1: the reset. @type {RowCompleter} */
	draw(root, index) {
		const step = this.steps[index];
		if (step) addStepBody(root, step, this.blobs, this.#earlier[index]);
		add(root, this.beside?.(this.number(index)));
	}

	/** Select a step and show it. @param {number} index */
	select(index) {
		if (this.rows.show(index, "nearest")) this.mark(index);
	}

	/** Select a step, or the reset, and leave the page where it is. @param {number} index */
	mark(index) {
		this.element.querySelector("[aria-current]")?.removeAttribute("aria-current");
		this.rows.element.children[index]?.setAttribute("aria-current", "step");
		this.selected = index;
		this.onSelect?.(this.number(index));
	}

	/** Return the indices of the steps whose call, outcome or messages before it have a text, in any case. @param {string} text */
	find(text) {
		const wanted = text.toLowerCase();
		return this.steps.flatMap((step, index) => {
			const { call, outcome, observation, logs } = step;
			const plain = JSON.stringify([call.name, call.arguments, outcome.result?.structured_content, outcome.error, observation, logs,
				this.before?.get(this.number(index))]);
			const texts = outcome.result?.content.map((block) => block.text) ?? [];
			return [plain, ...texts].join("\n").toLowerCase().includes(wanted) ? [index] : [];
		});
	}
}
