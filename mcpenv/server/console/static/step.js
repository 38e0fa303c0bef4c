/** One step of an episode, and the list of all. Used by the live page, the records and the files that are shared. */

import { changes } from "./changes.js";
import { contentOf, jsonOf, textOf } from "./content.js";
import { add, el, folded, muted, tableOf } from "./dom.js";
import { durationText, momentText, numberText, partsText } from "./format.js";
import { LazyRows } from "./rows.js";

/** The most characters of arguments in the heading of a step. */
const SHORT = 100;

/** Return the text of a status with all that is known of it. @param {Status} status */
export function statusText(status) {
	return [status.code, status.limit && `(${status.limit})`, status.stage && `stage ${status.stage}`,
		status.retryable && "a retry may help"].filter(Boolean).join(", ");
}

/** Return the heading of a step: its number, call, reward, and what is unusual. @param {Step} step @param {number} number */
export function stepHead(step, number) {
	const given = JSON.stringify(step.call.arguments);
	const { status } = step;
	return el("div", { class: "row step-head" },
		el("strong", `${number}. ${step.call.name}`),
		given !== "{}" && el("code", { class: "muted" }, given.length > SHORT ? `${given.slice(0, SHORT)}…` : given),
		step.reward && el("span", { class: step.reward.value < 0 ? "error" : "good" }, `reward ${numberText(step.reward.value)}`),
		status && status.code !== "completed" && el("span", { class: "warn" }, statusText(status)),
		(step.terminated || step.truncated) && el("span", { class: "warn" },
			`${step.terminated ? "terminated" : "truncated"}${step.reason ? `: ${step.reason}` : ""}`),
		el("span", { class: "muted end" }, durationText(step.outcome.duration_s), step.started_at > 0 && ` at ${momentText(step.started_at).slice(-8)}`));
}

/**
 * Append what a step has beside its heading.
 * @param {HTMLElement} root
 * @param {Step} step
 * @param {string} blobs the path of the record's blobs
 * @param {{number: number, value: unknown} | null} earlier the value that this step's is compared with
 */
export function addStepBody(root, step, blobs, earlier) {
	const { result, error } = step.outcome;
	const value = valueOf(step);
	if (JSON.stringify(step.call.arguments).length > SHORT) add(root, jsonOf(step.call.arguments));
	if (error) add(root, el("p", { class: "error" }, `${error.error_type}: `), textOf(error.message));
	if (step.fault) add(root, el("p", { class: "error" }, `The environment failed: ${step.fault}`));
	if (result?.is_error) add(root, el("p", { class: "error" }, "The tool marked its result as an error."));
	for (const block of result?.content ?? []) add(root, contentOf(block, blobs));
	if (result && !result.content.length) add(root, muted("No content."));
	add(root, result && structuredOf(result));
	if (step.observation !== undefined && step.observation !== null) {
		add(root, el("details", { open: !result }, el("summary", "Observation"), jsonOf(step.observation)));
	}
	if (earlier && value !== undefined) add(root, changesOf(earlier, value));
	if (step.reward && Object.keys(step.reward.components).length) {
		add(root, el("p", `Parts of the reward: ${partsText(step.reward.components)}`));
	}
	if (step.logs.length) {
		add(root, folded(`Log (${step.logs.length})`, el("ul", ...step.logs.map((entry) => el("li", {},
			`${entry.level}: ${entry.message ?? ""} ${entry.progress === null ? "" : `${entry.progress} of ${entry.total ?? "unknown"}`}`)))));
	}
	if (step.call.plane !== "control") {
		add(root, muted(`Called on the ${step.call.plane} plane${step.call.principal ? ` by ${step.call.principal}` : ""}.`));
	}
}

/** Return the structured content of a result; null if its text says the same. @param {Result} result */
export function structuredOf({ content, structured_content: value }) {
	if (!value) return null;
	const only = Object.keys(value).length === 1 ? value.result : undefined;
	const said = content.length === 1 ? content[0]?.text : undefined;
	if (said !== undefined && (said === only || same(said, value) || same(said, only))) return null;
	return folded("Structured content", jsonOf(value));
}

/** @param {string} text @param {unknown} value */
function same(text, value) {
	try {
		return value !== undefined && changes(JSON.parse(text), value).length === 0;
	} catch {
		return false; // The text is no JSON.
	}
}

/** Return a table of changes. @param {{number: number, value: unknown}} earlier @param {unknown} value */
function changesOf(earlier, value) {
	const found = changes(earlier.value, value);
	const since = earlier.number ? `step ${earlier.number}` : "the reset";
	if (!found.length) return muted(`Unchanged since ${since}.`);
	return el("details", { open: true }, el("summary", `Changed since ${since}: ${found.length}`), changeTable(found, ["Before", "After"]));
}

/** Return changes as a table. @param {Change[]} found @param {[string, string]} names of the two sides */
export function changeTable(found, names) {
	return tableOf("Changes", ["Path", ...names], found.map((each) => [each.path || "(all)",
		...[each.before, each.after].map((side) => JSON.stringify(side) ?? "not there")]));
}

/** Return what a step says about the world: the observation of an own action, else the structured content of a tool. @param {Step} step */
const valueOf = (step) => step.observation ?? step.outcome.result?.structured_content ?? undefined;

/** The steps of an episode as a list. A record has no states: a step is compared with the last one that asked the same. */
export class StepList {
	/** @type {Step[]} */
	steps = [];
	selected = -1;
	/** The index of the step that each one is compared with, -1 for the reset. @type {(number | undefined)[]} */
	#earlier = [];
	/** @type {Map<string, number>} */
	#last = new Map();
	/** @type {unknown} */
	#reset = undefined;

	/**
	 * @param {string} blobs the path of the record's blobs
	 * @param {AbortSignal} signal
	 * @param {(number: number) => void} [onSelect]
	 * @param {(number: number) => Child} [beside] what a step has at its foot
	 */
	constructor(blobs, signal, onSelect, beside) {
		this.onSelect = onSelect;
		this.rows = new LazyRows(
			(index) => el("li", { class: "card step", tabindex: "-1", "data-step": this.number(index),
				"aria-current": index === this.selected ? "step" : null }, stepHead(this.#step(index), this.number(index))),
			(row, index) => {
				addStepBody(row, this.#step(index), blobs, this.#before(index));
				add(row, beside?.(this.number(index)));
			}, signal);
		this.element = this.rows.element;
	}

	/** Begin anew. @param {Pick<Trajectory, "observation" | "dropped">} trajectory */
	begin({ observation, dropped }) {
		this.steps = [];
		this.selected = -1;
		this.dropped = dropped;
		this.#earlier = [];
		this.#reset = observation ?? undefined;
		this.#last = new Map(this.#reset === undefined ? [] : [["observation", -1]]);
		this.rows.clear();
	}

	/** Append steps. @param {Step[]} steps */
	append(steps) {
		for (const step of steps) {
			const key = step.observation !== undefined && step.observation !== null ? "observation"
				: `${step.call.name} ${JSON.stringify(step.call.arguments)}`;
			if (valueOf(step) !== undefined) {
				this.#earlier[this.steps.length] = this.#last.get(key);
				this.#last.set(key, this.steps.length);
			}
			this.steps.push(step);
		}
		this.rows.grow(this.steps.length);
	}

	/** The steps before the first of the list. */
	dropped = 0;

	/** Return the number of a step in its episode. @param {number} index */
	number(index) {
		return this.steps[index]?.position ?? this.dropped + index + 1;
	}

	/** Select a step and show it. @param {number} index @returns {boolean} false if there is none */
	select(index) {
		const row = this.rows.row(index);
		if (!row) return false;
		this.element.querySelector("[aria-current]")?.removeAttribute("aria-current");
		row.setAttribute("aria-current", "step");
		this.selected = index;
		row.focus({ preventScroll: true });
		row.scrollIntoView({ block: "nearest", behavior: "instant" });
		this.onSelect?.(this.number(index));
		return true;
	}

	/** Return the indices of the steps whose call or outcome has a text, in any case. @param {string} text */
	find(text) {
		const wanted = text.toLowerCase();
		return this.steps.flatMap((step, index) => {
			const { call, outcome, observation, logs } = step;
			const plain = JSON.stringify([call.name, call.arguments, outcome.result?.structured_content, outcome.error, observation, logs]);
			const all = `${plain}\n${(outcome.result?.content ?? []).map((block) => block.text ?? "").join("\n")}`.toLowerCase();
			return all.includes(wanted) ? [index] : [];
		});
	}

	/** @param {number} index */
	#step(index) {
		const step = this.steps[index];
		if (!step) throw new RangeError(`there is no step ${index}`);
		return step;
	}

	/** @param {number} index */
	#before(index) {
		const earlier = this.#earlier[index];
		if (earlier === undefined) return null;
		if (earlier < 0) return { number: 0, value: this.#reset };
		return { number: this.number(earlier), value: valueOf(this.#step(earlier)) };
	}
}
