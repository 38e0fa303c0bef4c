/** What a call of the visitor's did: its outcome, the changes of the state, and the same call as code. */

import { BASE, ask } from "./api.js";
import { changes } from "./changes.js";
import { codeOf, jsonOf } from "./content.js";
import { add, el, fill, folded, foldedLater, messageOf, muted } from "./dom.js";
import { addStepBody, changeTable, stepHead } from "./step.js";

/** @type {PlayedStep} */
export function stepOf({ call, answer, took }, number) {
	const { observation, info = {}, reward } = answer;
	const { result, error, ...own } = observation;
	return {
		call: { ...call, step: number, plane: "control", principal: call.by ?? null }, observation: call.own ? own : undefined,
		outcome: { result: result ?? null, error: error ?? null, duration_s: took },
		reward: reward === null ? null : { value: reward, components: info.reward ?? {} },
		terminated: answer.terminated ?? false, truncated: answer.truncated ?? false, reason: info.reason ?? null,
		started_at: 0, scoring_s: 0, fault: null, status: info.status ?? null, logs: [],
	};
}

/** Return a step of a record that was made again as a call of the visitor's. @type {PlayedReader} */
export function playedOf({ call: { name, arguments: given }, observation, outcome, reward, terminated, truncated, reason, status }) {
	const { result, error, duration_s: took } = outcome;
	return { call: { name, arguments: given, own: observation !== undefined }, took, before: null, after: null, answer: {
		observation: /** @type {Plain} */ (observation) ?? { result, error }, reward: reward && reward.value, done: false,
		terminated, truncated, info: { reward: reward?.components, reason, status } } };
}

/** @type {PlayedCardMaker} */
export function playedCard(history, index, reset) {
	const played = history[index];
	if (!played) throw new RangeError(`there is no call ${index}`);
	const step = stepOf(played, index + 1);
	// Each call counts as a step; more steps were somebody else's.
	const changed = changes(played.before, played.after).filter(({ path, before, after }) => path !== "step_count" || after !== Number(before) + 1);
	const card = el("div.card", el("h2", stepHead(step, index + 1)));
	if (played.dropped) add(card, muted("Its result was too large to be kept when the page was loaded anew."));
	else addStepBody(card, step, "");
	const known = !played.dropped && played.after !== null; // A record has no states.
	add(card, known && el("h3", changed.length ? `What changed in the state (${changed.length})` : "The state is unchanged"),
		changed.length > 0 && changeTable(changed),
		known && folded("Whole state", jsonOf(played.after)),
		foldedLater("details", el("summary", "The same as code"), () => [codesOf(reset, history.slice(0, index + 1).map(({ call }) => call))]));
	return card;
}

/** Ask the server for the code of calls. @param {Plain} reset @param {Call[]} calls */
function codesOf(reset, calls) {
	const place = el("div");
	ask("console/api/code", { method: "POST", body: { base: BASE.href.replace(/\/$/, ""), reset, calls } }).then(
		({ codes }) => fill(place, ...codes.flatMap((/** @type {[string, string]} */ [name, code]) => [el("h3", name), codeOf(code, name)])),
		(error) => fill(place, messageOf(error)));
	return place;
}
