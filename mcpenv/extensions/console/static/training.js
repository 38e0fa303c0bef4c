/** The page of a run while it trains: charts, alarms and tables that lead to episodes. */

import { ApiError, ask } from "./api.js";
import { drawingOf } from "./chart.js";
import { alertOf, el, fill, messageOf, muted } from "./dom.js";
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
	const problem = alertOf();
	const body = el("section.card", { aria: "Run" });
	fill(root, el("h1", "Training"), el("section.card", { role: "search" }, field.element), problem, body);
	let seen = "";
	while (!signal.aborted) {
		try {
			/** @type {RunReport & {total: number, alarms: RunTable[]}} */
			const found = await ask("records/training", { query: { where, not_agent: "console" }, signal });
			fill(problem);
			// Who reads by keyboard is not thrown out.
			if (JSON.stringify(found) !== seen && !body.contains(document.activeElement)) {
				seen = JSON.stringify(found);
				const { total, notes, alarms, charts, tables } = found;
				fill(body, el("p", { role: "status" }, countText(total, "episode")), ...notes.map((note) => muted(note)), ...tablesOf(alarms, "records"),
					el("div.charts", ...charts.map(drawingOf)), ...tablesOf(tables, "records"));
			}
		} catch (error) {
			if (!(error instanceof ApiError)) throw error;
			if (error.status === 422) return field.refuse(messageOf(error));
			fill(problem, `${messageOf(error)} Trying again.`);
		}
		await after(PAUSE, signal);
	}
}
