/** Why an episode has its reward: its parts, and the changes beside what the verifier expected. */

import { changes } from "./changes.js";
import { cardOf, el, listOf, muted, tableOf } from "./dom.js";
import { numberText } from "./format.js";
import { plainText } from "./numbers.js";
import { isPlain } from "./schema.js";

/** Return the evidence of an episode's end; null if it has none. @param {Trajectory} trajectory */
export function evidenceOf(trajectory) {
	const { verified, evidence = [], problems = [], changes: told = [], task, steps, end_reward: end } = trajectory;
	/** @type {Map<string, number>} */
	const parts = new Map();
	for (const reward of [...steps.map((step) => step.reward), end]) {
		for (const [name, value] of Object.entries(reward?.components ?? {})) parts.set(name, (parts.get(name) ?? 0) + value);
	}
	if (!verified && !problems.length && !parts.size) return null;
	const wrong = evidence.filter(({ passed }) => passed === false).length;
	return cardOf("Why this reward", el("h2", "Why this reward"), partsOf(parts, task?.reward_range), listOf(problems),
		evidence.length > 0 ? tableOf("Evidence", ["Where", "Before", "Expected", "Actual", "Verdict"], evidence.map(rowOf))
			: told.length > 0 ? listOf(told) : verified && muted("Nothing in the world changed that is known."),
		wrong > 0 && evidence.length > wrong && muted(`${wrong} of ${evidence.length} places are wrong; they stand first.`));
}

/** @type {PartsMaker} */
function partsOf(parts, range) {
	const [floor = 0, full = 1] = range ?? [];
	const most = Math.max(full, ...parts.values());
	const least = Math.min(floor, ...parts.values());
	return parts.size > 0 && el("dl.facts", ...[...parts].flatMap(([name, value]) => [el("dt", name), el("dd.row",
		el("meter", { min: least, max: most, value, "aria-label": name }), el("span", numberText(value), range && ` of ${numberText(floor)} to ${numberText(full)}`))]));
}

/** @type {EvidenceRow} */
function rowOf({ where, kind, before, after, expected, passed, cut }) {
	const right = expected[0];
	const wanted = expected.length ? expected.flatMap((each, index) => [index > 0 && el("p.muted", "or"), valueOf(each, undefined)])
		: [muted(passed === null ? "" : "no change")];
	const verdict = passed ? el("span.good", "as expected") : passed === null ? kind
		: el("strong.error", kind === "missing" ? "missing" : expected.length ? "another value" : "not expected");
	return [el("code", where), kind === "added" || kind === "missing" ? muted("") : valueOf(before, undefined), el("div", ...wanted),
		kind === "missing" ? muted("no such change") : kind === "removed" ? muted("removed") : valueOf(after, passed === false ? right : undefined),
		el("div", verdict, cut && muted("shortened"))];
}

/** @type {ValueMaker} */
function valueOf(value, expected) {
	if (isMark(value, "$any")) return muted("any value");
	if (isMark(value, "$removed")) return muted("removed");
	if (!isPlain(value)) return el("span.value", { class: expected !== undefined && differs(value, expected) ? "error" : null }, plainText(value));
	const right = isPlain(expected) ? expected : undefined;
	const names = [...Object.keys(value), ...Object.keys(right ?? {}).filter((name) => !Object.hasOwn(value, name))];
	return el("dl.fields", ...names.flatMap((name) => {
		const wrong = right && differs(value[name], right[name]);
		const own = Object.hasOwn(value, name) ? value[name] : undefined;
		return [el("dt", { class: wrong && "error" }, wrong ? el("strong", name) : name), el("dd", { class: wrong && "error" },
			own === undefined ? "not there" : isPlain(own) ? valueOf(own, undefined) : plainText(own))];
	}));
}

/** @type {Comparison} */
const differs = (value, expected) => !isMark(expected, "$any") && (isPlain(value) && isPlain(expected)
	? [...new Set([...Object.keys(value), ...Object.keys(expected)])].some((name) => differs(value[name], expected[name]))
	: changes(value, expected).length > 0);

/** @type {MarkTest} */
const isMark = (value, name) => isPlain(value) && value[name] === true && Object.keys(value).length === 1;
