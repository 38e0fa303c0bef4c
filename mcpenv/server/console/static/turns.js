/** The model's side of an episode: each request to a model with its answer, tokens and calls. */

import { jsonOf } from "./content.js";
import { add, el, folded, link, muted, tableOf } from "./dom.js";
import { countText, durationText, numberText } from "./format.js";

/** The most tokens in the table of a turn; the record has all. */
const SHOWN_TOKENS = 500;

/**
 * Return the turns under a heading; null if no proxy recorded the model.
 * @param {ModelTurn[] | null | undefined} turns
 * @param {(step: number) => void} onStep called with the number of a step that is to be shown
 */
export function turnsOf(turns, onStep) {
	if (!turns?.length) return null;
	const list = el("ol", { class: "steps", start: "0" });
	for (const [index, turn] of turns.entries()) add(list, turnOf(turn, index, onStep));
	return el("section", { "aria-label": "Model" }, el("h2", countText(turns.length, "model turn")), list);
}

/** @param {ModelTurn} turn @param {number} index @param {(step: number) => void} onStep */
function turnOf(turn, index, onStep) {
	const details = el("details", { class: "card" }, el("summary", { class: "row step-head" },
		el("strong", `${index}. ${turn.model ?? "a model"}`),
		el("span", { class: turn.status === 200 && !turn.cut ? "muted" : "warn" },
			turn.status === null ? "no answer" : String(turn.status), turn.cut && ` cut by the ${turn.cut}`),
		turn.usage && el("span", { class: "muted" }, usageText(turn.usage)),
		...turn.calls.map(({ name, step }) => el("span", `${name}${step === null ? "" : ` (step ${step})`}`)),
		el("span", { class: "muted end" }, durationText(turn.duration_s))));
	// Built when it is opened: a long episode has thousands of tokens.
	details.addEventListener("toggle", () => details.open && details.childElementCount === 1 && addTurnBody(details, turn, onStep));
	return el("li", details);
}

/** @param {ModelTurn["usage"] & {}} usage */
const usageText = ({ input_tokens: given, output_tokens: sampled, cached_tokens: cached }) =>
	`${given ?? "?"} tokens in${cached ? ` (${cached} cached)` : ""}, ${sampled ?? "?"} out`;

/** @param {HTMLElement} root @param {ModelTurn} turn @param {(step: number) => void} onStep */
function addTurnBody(root, turn, onStep) {
	if (turn.error) add(root, el("p", { class: "error" }, turn.error));
	for (const { name, step } of turn.calls) {
		if (step === null) continue;
		const to = link("#", `Show step ${step}`);
		to.addEventListener("click", (event) => {
			event.preventDefault();
			onStep(step);
		});
		add(root, el("p", `${name} made a step. `, to));
	}
	add(root, el("h3", "Answer"), jsonOf(turn.answer));
	for (const tokens of turn.tokens) add(root, tokensOf(tokens));
	if (turn.prompt_ids) add(root, folded(`Token ids of the prompt (${turn.prompt_ids.length})`, jsonOf(turn.prompt_ids)));
	const repeated = turn.repeated && `${countText(turn.repeated.messages, "message")} and the fields ${turn.repeated.fields.join(", ") || "(none)"} are those of turn ${turn.repeated.turn}.`;
	add(root, folded("Request", repeated && muted(repeated), jsonOf(turn.request)));
}

/** @param {TurnTokens} tokens */
function tokensOf({ ids, logprobs, texts }) {
	const count = Math.max(...[ids, logprobs, texts].map((each) => each?.length ?? 0));
	const rows = Array.from({ length: Math.min(count, SHOWN_TOKENS) }, (_, index) => [String(index),
		texts ? JSON.stringify(texts[index]) : "", String(ids?.[index] ?? ""), logprobs?.[index] == null ? "" : numberText(logprobs[index])]);
	return folded(`Tokens (${count})`, tableOf("Tokens", ["", "Text", "Id", "Log-probability"], rows),
		count > SHOWN_TOKENS && muted(`The first ${SHOWN_TOKENS} are shown.`));
}
