/** The page of the evaluations below a folder: their list, one of them, and two compared. */

import { ApiError, ask, recordPath } from "./api.js";
import { drawingOf } from "./chart.js";
import { alertOf, cardOf, el, fill, formOf, labelled, link, muted, tableOf } from "./dom.js";
import { countText, momentText, numberText } from "./format.js";

/** @type {Page} */
export async function page(context, signal) {
	const [name, what, ...parts] = context.parts;
	if (!name) return await showList(context, signal);
	const { root } = context;
	const path = recordPath(name, context.base);
	const base = `${path}/records`;
	if (what) {
		const { page } = await import("./records.js");
		await page({ ...context, base, parts }, signal);
		if (!signal.aborted) root.prepend(el("p", link(`#/${path}`, `Evaluation ${name}`)));
		return;
	}
	/** @type {RunReport} */
	const { title, notes, recorded, charts, tables } = await ask(`${path}/report`, { signal });
	fill(root, el("h1", `${title}: `, el("code", name)),
		el("p.row", link(`#/${context.base}`, "All evaluations"), recorded && link(`#/${base}`, "All its episodes")),
		cardOf("Report", ...notes.map((note) => el("p.warn", note)), el("div.charts", ...charts.map(drawingOf)), ...tablesOf(tables, base)));
}

/** @type {Page} */
async function showList({ root, base, query }, signal) {
	/** @type {{runs: Run[], left_out: LeftOut[]}} */
	const { runs, left_out: leftOut } = await ask(base, { signal });
	// The newest comes first: it is the candidate, and the one before it the baseline.
	const sides = ["baseline", "candidate"].map((id, index) => {
		const input = el("select", { id }, ...runs.map(({ name }) => el("option", name)));
		input.value = query.get(id) ?? runs[1 - index]?.name ?? "";
		return input;
	});
	const result = el("div");
	fill(root, el("h1", "Evaluations"), formOf("form.card.row", {}, () => {
		location.hash = `#/evaluations?${new URLSearchParams(sides.map(({ id, value }) => [id, value]))}`;
	}, ...sides.map((side) => labelled(side.id, side)), el("button.primary", { disabled: runs.length < 2 }, "Compare")),
	result, el("section.card", el("h2", countText(runs.length, "evaluation")),
		tableOf("Evaluations", ["Name", "Environment", "Agent", "Split", "Episodes", "pass@1", "Mean return", "Started"], runs.map((run) => [link(`#/${recordPath(run.name, base)}`, run.name), run.environment, run.agent, run.split,
			run.planned === run.finished ? run.finished : `${run.finished} of ${run.planned ?? "?"}`,
			numberText(run.pass_at_1), numberText(run.mean_return), momentText(run.started_at)])),
		...leftOut.map(({ where, why }) => el("p.warn", `${where} cannot be read: ${why}`))));
	if (!query.has("baseline")) return;
	try {
		/** @type {RunComparison} */
		const { verdict, significant, notes, tables } = await ask(`${base}/compare`, { query: Object.fromEntries(query), signal });
		fill(result, cardOf("Comparison",
			el("p", { role: "status", class: significant && "warn" }, el("strong", verdict)), ...notes.map((note) => muted(note)), ...tablesOf(tables, base)));
	} catch (error) {
		if (!(error instanceof ApiError)) throw error;
		fill(result, alertOf({ class: "card error" }, error.message));
	}
}

/** @type {TablesMaker} */
export function tablesOf(tables, base) {
	return tables.flatMap(({ title, heads, rows, style }) => [el("h2", title), tableOf(title, heads, rows.map((cells) => cells.map((cell) =>
		typeof cell === "string" ? cell : el("span.bar", ...cell.map(({ id, text, name, run, style: mark, where, sort }) =>
			(where !== undefined ? el("a", { class: mark, href: `#/records?${new URLSearchParams({ where, ...sort && { sort } })}` }, text) : id == null ? el("span", { class: mark }, text)
				: el("a", { href: `#/${recordPath(id, run === undefined ? base : `${recordPath(run, base)}/records`)}`, aria: name }, text)))))), style)]);
}
