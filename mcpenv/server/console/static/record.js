/** One recorded episode, step by step. */

import { address, recordPath, recorded } from "./api.js";
import { Charts } from "./chart.js";
import { jsonOf } from "./content.js";
import { add, button, el, fill, labelled, link, muted } from "./dom.js";
import { countText, durationText, momentText, numberText, partsText, taskText } from "./format.js";
import { onKeys } from "./frame.js";
import { StepList, statusText } from "./step.js";
import { turnsOf } from "./turns.js";

/** Show an episode. @param {string} id @param {PageContext} context @param {AbortSignal} signal */
export async function showEpisode(id, { root, base, query, session }, signal) {
	const path = recordPath(id, base);
	const { episode } = await recorded(path, signal);
	if (signal.aborted) return;
	const { trajectory } = episode;
	const steps = stepsOf(episode);
	const playable = session.mode === "simulation" && trajectory.dropped === 0;
	const list = new StepList(`${path}/blobs/`, signal, (number) => {
		query.set("step", String(number));
		history.replaceState(null, "", `#/${path}?${query}`);
	}, (number) => playable && el("p", link(`#/play?record=${encodeURIComponent(id)}&steps=${number}`, "Play on from here")));
	list.begin(trajectory);
	list.append(steps);
	const charts = new Charts(true);
	const back = new URLSearchParams(query);
	back.delete("step");
	const again = new URLSearchParams(back);
	again.append("pick", id);
	fill(root, el("h1", "Episode ", el("code", trajectory.episode_id)),
		el("p", { class: "row" }, link(`#/${base}?${back}`, "All records"), link(`#/${base}?${again}`, "Compare with another"),
			playable && link(`#/play?record=${encodeURIComponent(id)}`, "Play it again"), link(address(`${path}/page.html`).href, "Save as one HTML file")),
		el("section", { class: "card", "aria-label": "Summary" }, factsOf(episode, base)), charts.element,
		finder(list, signal), el("h2", countText(trajectory.dropped + steps.length, "step")),
		trajectory.dropped > 0 && muted(`The first ${countText(trajectory.dropped, "step")} are not in the record.`),
		trajectory.observation && el("details", { class: "card" }, el("summary", "Reset"), jsonOf(trajectory.observation)),
		list.element, turnsOf(episode.model_turns, (step) => list.select(step - trajectory.dropped - 1)));
	charts.draw(steps, trajectory, episode.model_turns);
	const wanted = Number(query.get("step") ?? 0) - trajectory.dropped - 1;
	if (wanted >= 0) list.select(wanted);
}

/** Return the steps of an episode, with the observations of own actions. @param {Episode} episode @returns {Step[]} */
export function stepsOf(episode) {
	const observations = episode.extra.observations ?? {};
	return episode.trajectory.steps.map((step) => ({ ...step, observation: observations[String(step.call.step)] }));
}

/**
 * Return the reset data and the first calls of a recorded episode, to make them again.
 * @param {string} id
 * @param {number} count
 * @param {AbortSignal} signal
 * @returns {Promise<{reset: Plain, calls: (Call & {expected?: unknown})[]}>}
 */
export async function recordedCalls(id, count, signal) {
	const { episode } = await recorded(recordPath(id), signal);
	const { seed, options, task, dropped } = episode.trajectory;
	if (dropped) throw new Error(`The first ${countText(dropped, "step")} of the episode are not in the record: it cannot be played again.`);
	return {
		reset: { ...options, ...(seed === null ? {} : { seed }), ...(task ? { task: task.split ? task : task.id } : {}) },
		calls: stepsOf(episode).slice(0, count).map(({ call, observation, outcome }) => ({ name: call.name, arguments: call.arguments,
			own: observation !== undefined, expected: outcome.result?.structured_content ?? undefined })),
	};
}

/** Return the field that finds text in steps, and the keys that go through them. @param {StepList} list @param {AbortSignal} signal */
export function finder(list, signal) {
	const input = el("input", { type: "search", id: "find", autocomplete: "off" });
	const found = el("span", { role: "status", class: "muted" });
	const go = (/** @type {number} */ by) => {
		if (input.value === "") {
			fill(found);
			return;
		}
		const all = list.find(input.value);
		const next = by > 0 ? all.find((index) => index > list.selected) ?? all[0]
			: [...all].reverse().find((index) => index < list.selected) ?? all[all.length - 1];
		fill(found, next === undefined ? "Not found" : `${all.indexOf(next) + 1} of ${all.length}`);
		if (next !== undefined) list.select(next);
	};
	onKeys({ j: () => list.select(list.selected + 1), k: () => list.select(list.selected - 1),
		n: () => go(1), N: () => go(-1) }, signal);
	return el("form", { class: "row", role: "search", onsubmit: (event) => {
		event.preventDefault();
		go(1);
	} }, labelled("Find in the steps", input),
	button("Previous", () => go(-1)), el("button", "Next"), found);
}

/** @param {Episode} episode @param {string} base */
function factsOf({ trajectory, environment, agent }, base) {
	const { task, forked_from: fork, status } = trajectory;
	const ending = trajectory.terminated ? "terminated" : trajectory.truncated ? "truncated" : trajectory.reason ?? "unfinished";
	const rewarded = (/** @type {Reward | null} */ reward) => reward && `${numberText(reward.value)} ${partsText(reward.components)}`;
	/** @type {[string, string | HTMLElement | null][]} */
	const facts = [
		["Environment", [environment.name, environment.version].filter(Boolean).join(" ")],
		["Task", taskText(task)],
		["Seed", trajectory.seed === null ? "" : String(trajectory.seed)],
		["Options", Object.keys(trajectory.options).length ? JSON.stringify(trajectory.options) : ""],
		["Agent", agent ? JSON.stringify(agent) : ""],
		["Status", status ? statusText(status) : ""],
		["Ending", trajectory.reason && trajectory.reason !== ending ? `${ending}: ${trajectory.reason}` : ending],
		["Sum of rewards", numberText(trajectory.total_reward)],
		["Verified", rewarded(trajectory.verified)],
		["Reward of the end", rewarded(trajectory.end_reward)],
		["Scoring failed", trajectory.fault],
		["Started", momentText(trajectory.started_at)],
		["Took", trajectory.ended_at && trajectory.started_at ? durationText(trajectory.ended_at - trajectory.started_at) : ""],
		["Continues", fork && link(`#/${recordPath(fork.episode_id, base)}?step=${fork.step}`, `${fork.episode_id} after step ${fork.step}`)],
	];
	const list = el("dl", { class: "facts" });
	for (const [name, value] of facts) if (value) add(list, el("dt", name), el("dd", value));
	return list;
}
