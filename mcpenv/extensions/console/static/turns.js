/** The model's side of an episode: each request to a model with its answer, tokens and calls. */

import { jsonOf } from "./content.js";
import { el, folded, foldedLater, muted, tableOf } from "./dom.js";
import { countText, durationText, numberText } from "./format.js";

/** The most tokens in the table of a turn; the record has all. */
const SHOWN_TOKENS = 500;

/** @type {TurnsMaker} */
export function turnsOf(turns, onStep) {
	if (!turns?.length) return null;
	return el("section", { aria: "Model" }, el("h2", countText(turns.length, "model turn")),
		el("ol.steps", { start: "0" }, ...turns.map((turn, index) => turnOf(turn, index, onStep))));
}

/** @type {TurnMaker} */
function turnOf(turn, index, onStep) {
	const { usage } = turn;
	return el("li", foldedLater("details.card", el("summary.row.step-head",
		el("strong", `${index}. ${turn.model ?? "a model"}`),
		el(turn.status === 200 && !turn.cut ? "span.muted" : "span.warn", turn.status ?? "no answer", turn.cut && ` cut by the ${turn.cut}`),
		usage && el("span.muted", `${usage.input_tokens ?? "?"} tokens in`, usage.cached_tokens ? ` (${usage.cached_tokens} cached)` : "",
			`, ${usage.output_tokens ?? "?"} out`),
		...turn.calls.map(({ name, step }) => el("span", `${name}${step === null ? "" : ` (step ${step})`}`)),
		el("span.muted.end", durationText(turn.duration_s))), () => turnBody(turn, onStep)));
}

/** @type {TurnBody} */
function turnBody({ error, calls, answer, tokens, prompt_ids: prompt, repeated, request }, onStep) {
	return [error && el("p.error", error),
		...calls.map(({ name, step }) => step !== null && el("p", `${name} made a step. `, el("a", { href: "#", onclick: (event) => {
			event.preventDefault();
			onStep(step);
		} }, `Show step ${step}`))),
		el("h3", "Answer"), jsonOf(answer), ...tokens.map(tokensOf),
		prompt && folded(`Token ids of the prompt (${prompt.length})`, jsonOf(prompt)),
		folded("Request", repeated && muted(`${countText(repeated.messages, "message")} and the fields `,
			`${repeated.fields.join(", ") || "(none)"} are those of turn ${repeated.turn}.`), jsonOf(request))];
}

/** @param {TurnTokens} tokens */
function tokensOf({ ids, logprobs, texts }) {
	const count = Math.max(...[ids, logprobs, texts].map((each) => each?.length ?? 0));
	const rows = Array.from({ length: Math.min(count, SHOWN_TOKENS) }, (_, index) =>
		[index, texts && JSON.stringify(texts[index]), ids?.[index], numberText(logprobs?.[index], "")]);
	return folded(`Tokens (${count})`, tableOf("Tokens", ["Place", "Text", "Id", "Log-probability"], rows),
		count > SHOWN_TOKENS && muted(`The first ${SHOWN_TOKENS} are shown.`));
}
