/** The rollouts of one task as lanes of calls on one trie. */

import { ask, recordPath } from "./api.js";
import { drawn } from "./chart.js";
import { cardOf, el, fill, headOf, link, muted, region } from "./dom.js";
import { countText, numberText } from "./format.js";
import { plainText, written } from "./numbers.js";
import { taskPath } from "./overview.js";
import { both, hiddenAgent, quoted } from "./where.js";

/** @type {EpisodePage} */
export async function showTask(id, { root, base, query }, signal) {
	const where = query.get("where") ?? "";
	const shown = hiddenAgent(query) === null;
	/** @type {Rollouts} */
	const { lanes, total, scored, mean, equal, kinds, told } = await ask(`${base}/rollouts`, { query: { task_id: id, where, not_agent: hiddenAgent(query) }, signal });
	if (signal.aborted) return;
	const best = lanes[0]?.place ?? "";
	const deepest = Math.max(0, ...lanes.map(({ steps }) => steps.length));
	const rows = lanes.map(({ place, id: name, seed, score, advantage, status, steps, n_steps: count, dropped }, lane) => el("tr",
		el("th", { scope: "row" }, link(`#/${recordPath(place, base)}`, cut(name, 14)), el("span.muted.wide", seed !== null && ` seed ${written(seed)}`, status && status !== "completed" && ` ${status}`), " ",
			lane > 0 && el("a", { href: `#/${recordPath(best, base)}?with=${encodeURIComponent(place)}`, aria: `Compare ${name} with the first` }, "compare")),
		el("td.number", numberText(score)),
		el("td.number", { class: advantage && (advantage > 0 ? "good" : "error") }, advantage === null ? "–" : `${advantage > 0 ? "+" : ""}${advantage.toFixed(2)}`),
		...steps.map((step, at) => {
			const sign = signOf(lanes.slice(lane, lane + step.lanes));
			return step.lanes > 0 && el("td", { rowspan: step.lanes, class: sign }, chipOf(step, `#/${recordPath(place, base)}?step=${dropped + at + 1}`, sign));
		}),
		count > dropped + steps.length && el("td.muted", `${count - dropped - steps.length} more`)));
	fill(root, el("h1", "Task ", el("code", id)),
		el("p.row", link(`#/${base}?${new URLSearchParams({ where: both(where, `task = ${quoted(id)}`), ...shown && { console: "shown" } })}`, "Its episodes in the records"), link(`#/${taskPath(base, id, shown)}`, "All its rollouts")),
		cardOf("Summary", el("p", el("strong", countText(lanes.length, "rollout")), total > lanes.length && `, the newest of ${numberText(total)}`,
			`, mean score ${numberText(mean)} `, where && el("code", where)),
		...Object.entries(kinds).map(([field, groups]) => groups.length > 1 && el("p.bar", `${field.replace("_", " ")}: `, ...groups.map(({ value, episodes }) =>
			link(`#/${taskPath(base, id, shown, both(where, `${field} = ${quoted(value)}`))}`, `${value === null ? "none" : plainText(value)} (${episodes})`)))),
		equal ? el("p", el("strong.warn", "All scores are equal: no gradient."))
			: scored < 2 ? muted("An advantage needs two rollouts with a score.")
				: told ? drawn(told) : muted("No call tells winners from losers.")),
		region("div.card.lanes", "Rollouts", el("table.trie", headOf([["Rollout"], ["Score"], ["Advantage"], ...Array.from({ length: deepest }, (_, at) => /** @type {[number]} */ ([at + 1]))]),
			el("tbody", ...rows))));
}

/** @type {ChipMaker} */
function chipOf({ name, arguments: given, reward, failed }, href, sign) {
	return el("a.step-chip", { href, title: `${name} ${given}` }, el("strong", sign && (sign === "wins" ? "↑ " : "↓ "), name), given !== "{}" && el("code.muted", ` ${cut(given, 14)}`),
		failed && el("span.error", " failed"), reward ? el(reward < 0 ? "span.error" : "span.good", ` ${numberText(reward)}`) : null);
}

/** @param {Lane[]} lanes */
function signOf(lanes) {
	const sum = lanes.reduce((total, { advantage }) => total + (advantage ?? 0), 0);
	return Math.abs(sum) < 1e-9 ? null : sum > 0 ? "wins" : "loses";
}

/** @type {Cutter} */
const cut = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);
