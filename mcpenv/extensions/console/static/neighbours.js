/** The episodes before and after one in the list that it was opened from; the keys [ and ] lead to them. */

import { ask, recordPath } from "./api.js";
import { el, fill, link, messageOf } from "./dom.js";
import { numberText } from "./format.js";
import { onKeys } from "./frame.js";
import { hiddenAgent } from "./where.js";

/** What the address of a list says of its rows. */
const CONDITIONS = ["where", "text", "task", "split", "status", "return_min", "tool", "sort"];

/** @type {NeighbourMaker} */
export function neighboursOf(id, base, query, signal) {
	const element = el("span", { role: "status" });
	const kept = new URLSearchParams(query);
	for (const name of ["step", "with", "pick"]) kept.delete(name);
	const rest = kept.size ? `?${kept}` : "";
	const wanted = Object.fromEntries(CONDITIONS.map((name) => [name, query.get(name)]));
	void (async () => {
		try {
			const { position, total, previous, next } = await ask(`${recordPath(id, base)}/neighbours`, { query: { ...wanted, not_agent: hiddenAgent(query) }, signal });
			if (position === null) return fill(element, "Not among the episodes of the list.");
			const to = (/** @type {string | null} */ place, /** @type {string} */ text) =>
				(place ? link(`#/${recordPath(place, base)}${rest}`, text) : el("span.muted", text));
			const links = [to(previous, "[ Previous"), to(next, "Next ]")];
			fill(element, links[0], ` Episode ${numberText(position)} of ${numberText(total)} `, links[1]);
			const press = (/** @type {number} */ index) => () => links[index]?.click();
			onKeys({ "[": press(0), "]": press(1) }, signal);
		} catch (error) {
			if (!signal.aborted) fill(element, el("span.error", messageOf(error)));
		}
	})();
	return element;
}
