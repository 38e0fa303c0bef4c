/** Two episodes side by side, and their first difference. */

import { ask, recordPath, recorded } from "./api.js";
import { changes } from "./changes.js";
import { add, button, cardOf, el, fill, link, muted } from "./dom.js";
import { countText, returnText } from "./format.js";
import { onKeys } from "./frame.js";
import { stepsOf } from "./record.js";
import { addStepBody, branchLink, changeTable, stepHead } from "./step.js";
import { LazyRows } from "./rows.js";

/** @type {ComparisonPage} */
export async function showComparison(id, other, { root, base, session }, signal) {
	const sides = await Promise.all([id, other].map(async (name) => {
		const { episode, hashes } = await recorded(recordPath(name, base), signal);
		const { trajectory } = episode;
		return { path: recordPath(name, base), place: name, playable: session.mode === "simulation" && !trajectory.dropped, name: trajectory.episode_id, steps: stepsOf(episode), hashes, trajectory };
	}));
	/** @type {{pairs: StepPair[]}} */
	const { pairs } = await ask(`${base}/alignment`, { query: { one: id, other }, signal });
	if (signal.aborted) return;
	const names = sides.map(({ name }) => name);
	const [one, two] = sides;
	const count = pairs.length;
	const resetDiffers = one.hashes.reset !== two.hashes.reset;
	const endDiffers = one.hashes.end !== two.hashes.end;
	const verdicts = pairs.map(([, , verdict]) => verdict);
	const first = verdicts.findIndex((verdict) => verdict !== null);
	const droppedBy = (/** @type {number} */ side) => sides[side]?.trajectory.dropped ?? 0;
	const stepAt = (/** @type {Step[]} */ steps, /** @type {number} */ index, /** @type {number} */ side) => {
		const at = Number(pairs[index]?.[side] ?? -1);
		return /** @type {const} */ ([steps[at], at + 1 + droppedBy(side)]);
	};
	const numbersOf = (/** @type {number} */ index) => (pairs[index] ?? []).slice(0, 2).flatMap((at, side) => (at === null ? [] : [Number(at) + 1 + droppedBy(side)]));
	const rows = new LazyRows(
		(index) => {
			const verdict = verdicts[index] ?? null;
			const row = el(verdict ? "li.card.step.differs" : "li.card.step", { tabindex: "-1", "data-step": index + 1 });
			add(row, el(verdict ? "p.verdict.error" : "p.verdict.muted",
				`Step ${[...new Set(numbersOf(index))].join(" and ")}: ${verdict ?? "equal"}${index === first && !resetDiffers ? ". This is the first difference." : ""}`),
			...sides.map(({ name, steps }, side) => {
				const [step, number] = stepAt(steps, index, side);
				return el("div", { "aria-label": name, role: "group" }, step ? stepHead(step, number) : muted("No such step."));
			}));
			return row;
		},
		(row, index) => {
			row.querySelectorAll(":scope > div").forEach((group, place) => {
				const { path, place: id, playable, steps } = place ? two : one;
				const [step, number] = stepAt(steps, index, place);
				if (!step) return;
				addStepBody(group, step, `${path}/blobs/`);
				add(group, playable && branchLink(id, number));
			});
			const [left, right] = sides.map(({ steps }, side) => stepAt(steps, index, side)[0]);
			const found = verdicts[index] && left && right ? changes(factsOf(left), factsOf(right)) : [];
			add(row, found.length > 0 && el("details.verdict", { open: index === first }, el("summary", "What differs"), changeTable(found, names)));
		}, signal);
	rows.element.classList.add("pairs");
	rows.grow(count);
	let at = -1;
	const select = (/** @type {number} */ index) => {
		if (rows.show(index, "start")) at = index;
	};
	const next = (/** @type {number} */ by) => {
		for (let index = at + by; index >= 0 && index < count; index += by) {
			if (verdicts[index]) return select(index);
		}
	};
	onKeys({ j: () => select(at + 1), k: () => select(at - 1), n: () => next(1), N: () => next(-1) }, signal);
	const differing = (/** @type {string} */ what, /** @type {unknown[]} */ [before, after]) =>
		el("section.card.differs", { "aria-label": what }, el("h2", `The ${what} differ`), changeTable(changes(before, after), names));
	const summary = resetDiffers ? "The episodes differ from the reset on."
		: first >= 0 ? `The first difference is at step ${numbersOf(first)[0]}.`
			: endDiffers ? "All steps are equal. The ends differ." : "The episodes are equal: reset, all steps, and end.";
	fill(root, el("h1", "Two episodes"),
		el("p", link(`#/${base}`, "All records")),
		cardOf("Comparison",
			el("p", { id: "first-difference" }, el("strong", summary)),
			muted("Steps are aligned by their calls: an extra step is one difference. Times, logs and ids do not count."),
			el("p", `Steps that differ: ${verdicts.filter(Boolean).length}.`),
			first >= 0 && button("First difference", () => select(first), { class: "primary" })),
		resetDiffers && differing("resets", sides.map(({ trajectory }) => trajectory.observation)),
		el("div.card.watched.pair", ...sides.map(({ path, name, steps, trajectory }) => el("div", el("strong", link(`#/${path}`, name)),
			muted(`${countText(trajectory.dropped + steps.length, "step")}, return ${returnText(trajectory)}`)))),
		rows.element,
		endDiffers && differing("ends", sides.map(endOf)));
}

/** @param {Step} step */
function factsOf(step) {
	const { result, error } = step.outcome;
	return { name: step.call.name, arguments: step.call.arguments, error, observation: step.observation, reward: step.reward,
		result: result && { content: result.content, structured_content: result.structured_content, is_error: result.is_error },
		terminated: step.terminated, truncated: step.truncated, fault: step.fault };
}

/** @param {{trajectory: Trajectory}} side */
function endOf({ trajectory: { terminated, truncated, end_reward, verified, total_reward, fault } }) {
	return { terminated, truncated, end_reward, verified, return: total_reward, fault };
}
