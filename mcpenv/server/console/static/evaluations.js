/** The page of the evaluations below a folder: their list, and two of them compared. */

import { ApiError, ask } from "./api.js";
import { alertOf, el, fill, labelled, muted, tableOf } from "./dom.js";
import { countText, momentText, numberText } from "./format.js";

const HEADS = ["Name", "Environment", "Agent", "Split", "Episodes", "pass@1", "Mean return", "Started"];

/** @type {Page} */
export async function page({ root, query }, signal) {
	/** @type {{runs: Run[], left_out: LeftOut[]}} */
	const { runs, left_out: leftOut } = await ask("evaluations", { signal });
	// The newest comes first: it is the candidate, and the one before it the baseline.
	const sides = ["baseline", "candidate"].map((id, index) => {
		const input = el("select", { id }, ...runs.map(({ name }) => el("option", name)));
		input.value = query.get(id) ?? runs[1 - index]?.name ?? "";
		return input;
	});
	const result = el("div");
	fill(root, el("h1", "Evaluations"), el("form", { class: "card row", onsubmit: (event) => {
		event.preventDefault();
		location.hash = `#/evaluations?${new URLSearchParams(sides.map(({ id, value }) => [id, value]))}`;
	} }, ...sides.map((side) => labelled(side.id, side)), el("button", { class: "primary", disabled: runs.length < 2 }, "Compare")),
	result, el("section", { class: "card" }, el("h2", countText(runs.length, "evaluation")),
		tableOf("Evaluations", HEADS, runs.map((run) => [run.name, run.environment, run.agent, run.split,
			run.planned === run.finished ? run.finished : `${run.finished} of ${run.planned ?? "?"}`,
			numberText(run.pass_at_1), numberText(run.mean_return), momentText(run.started_at)])),
		...leftOut.map(({ where, why }) => el("p", { class: "warn" }, `${where} cannot be read: ${why}`))));
	if (!query.has("baseline")) return;
	try {
		/** @type {RunComparison} */
		const { verdict, significant, notes, tables } = await ask("evaluations/compare", { query: Object.fromEntries(query), signal });
		fill(result, el("section", { class: "card", "aria-label": "Comparison" },
			el("p", { role: "status", class: significant && "warn" }, el("strong", verdict)), ...notes.map((note) => muted(note)),
			...tables.flatMap(({ title, heads, rows, style }) => [el("h2", title), tableOf(title, heads, rows, style)])));
	} catch (error) {
		if (!(error instanceof ApiError)) throw error;
		fill(result, alertOf({ class: "card error" }, error.message));
	}
}
