/** Two episodes side by side, and their first difference. */

import { ask, recordPath, recorded } from "./api.js";
import { add, button, cardOf, el, fill, link, muted } from "./dom.js";
import { countText, returnText } from "./format.js";
import { onKeys } from "./frame.js";
import { stepsOf } from "./record.js";
import { addStepBody, branchLink, changeTable, stepHead } from "./step.js";
import { LazyRows } from "./rows.js";

/** @type {ComparisonPage} */
export async function showComparison(id, other, { root, base, session }, signal) {
	const sides = await Promise.all([id, other].map(async (name) => {
		const path = recordPath(name, base);
		const { episode } = await recorded(path, signal);
		return { path, name: episode.trajectory.episode_id, steps: stepsOf(episode), trajectory: episode.trajectory };
	}));
	/** @type {AlignmentAnswer} */
	const { pairs, reset, end, first, summary } = await ask(`${base}/alignment`, { query: { one: id, other }, signal });
	if (signal.aborted) return;
	const names = sides.map(({ name }) => name);
	const [one, two] = sides;
	const count = pairs.length;
	const stepAt = (/** @type {number} */ index, /** @type {number} */ side) => {
		const { path, steps, trajectory: { dropped } } = side ? two : one;
		const at = pairs[index]?.at[side] ?? -1;
		return { step: steps[at], number: at + 1 + dropped, path, playable: session.mode === "simulation" && !dropped };
	};
	const rows = new LazyRows(
		(index) => {
			const { differs, text } = /** @type {StepPair} */ (pairs[index]);
			const row = el(differs ? "li.card.step.differs" : "li.card.step", { tabindex: "-1", "data-step": index + 1 });
			add(row, el(differs ? "p.verdict.error" : "p.verdict.muted", text), ...names.map((name, side) => {
				const { step, number } = stepAt(index, side);
				return el("div", { aria: name, role: "group" }, step ? stepHead(step, number) : muted("No such step."));
			}));
			return row;
		},
		(row, index) => {
			row.querySelectorAll(":scope > div").forEach((group, side) => {
				const { step, number, path, playable } = stepAt(index, side);
				if (!step) return;
				addStepBody(group, step, `${path}/blobs/`);
				add(group, playable && branchLink(side ? other : id, number));
			});
			const found = pairs[index]?.found;
			add(row, found && el("details.verdict", { open: index === first }, el("summary", "What differs"), changeTable(found, names)));
		}, signal);
	rows.element.classList.add("pairs");
	rows.grow(count);
	let at = -1;
	const select = (/** @type {number} */ index) => {
		if (rows.show(index, "start")) at = index;
	};
	const next = (/** @type {number} */ by) => {
		for (let index = at + by; index >= 0 && index < count; index += by) {
			if (pairs[index]?.differs) return select(index);
		}
	};
	onKeys({ j: () => select(at + 1), k: () => select(at - 1), n: () => next(1), N: () => next(-1) }, signal);
	const differing = (/** @type {string} */ what, /** @type {Change[] | null} */ found) =>
		found && el("section.card.differs", { aria: what }, el("h2", `The ${what} differ`), changeTable(found, names));
	fill(root, el("h1", "Two episodes"),
		el("p", link(`#/${base}`, "All records")),
		cardOf("Comparison",
			el("p", { id: "first-difference" }, el("strong", summary)),
			muted("Steps are aligned by their calls: an extra step is one difference. Times, logs and ids do not count."),
			el("p", `Steps that differ: ${pairs.filter(({ differs }) => differs).length}.`),
			first !== null && button("First difference", () => select(first), { class: "primary" })),
		differing("resets", reset),
		el("div.card.watched.pair", ...sides.map(({ path, name, steps, trajectory }) => el("div", el("strong", link(`#/${path}`, name)),
			muted(`${countText(trajectory.dropped + steps.length, "step")}, return ${returnText(trajectory)}`)))),
		rows.element,
		differing("ends", end));
}
