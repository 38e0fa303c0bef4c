/** The page of a run while it trains: charts, alarms and tables that lead to episodes. It asks again while it is shown. */

import { ApiError, ask } from "./api.js";
import { drawingOf } from "./chart.js";
import { el, fill, messageOf, muted } from "./dom.js";
import { tablesOf } from "./evaluations.js";
import { countText } from "./format.js";
import { after } from "./frame.js";
import { WhereField } from "./where.js";

const PAUSE = 10_000;

/** @type {Page} */
export async function page({ root, query }, signal) {
	const where = query.get("where") ?? "";
	const field = new WhereField("records", where, () => {
		location.hash = `#/training?${new URLSearchParams({ where: field.input.value })}`;
	});
	const body = el("section.card", { "aria-label": "Run" });
	fill(root, el("h1", "Training"), el("section.card", { role: "search" }, field.element), body);
	let seen = -1;
	while (!signal.aborted) {
		try {
			/** @type {RunReport & {total: number, alarms: RunTable[]}} */
			const { total, notes, alarms, charts, tables } = await ask("records/training", { query: { where, not_agent: "console" }, signal });
			// Whoever reads the page by keyboard is not thrown out of it.
			if (total !== seen && !body.contains(document.activeElement)) {
				seen = total;
				fill(body, el("p", { role: "status" }, countText(total, "episode")), ...notes.map((note) => muted(note)), ...tablesOf(alarms, "records"),
					el("div.charts", ...charts.map(drawingOf)), ...tablesOf(tables, "records"));
			}
		} catch (error) {
			if (!(error instanceof ApiError) || error.status !== 422) throw error;
			return field.refuse(messageOf(error));
		}
		await after(PAUSE, signal);
	}
}
