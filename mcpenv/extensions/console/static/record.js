/** One recorded episode, step by step. */

import { address, recordPath, recorded } from "./api.js";
import { Charts, drawn } from "./chart.js";
import { button, cardOf, el, fill, formOf, labelled, link } from "./dom.js";
import { countText } from "./format.js";
import { onKeys } from "./frame.js";
import { neighboursOf } from "./neighbours.js";
import { reviewOf } from "./review.js";
import { StepList, branchLink } from "./step.js";
import { messageOf, spokenOf } from "./transcript.js";
import { timeOf } from "./time.js";
import { turnsOf } from "./turns.js";

/** @type {EpisodePage} */
export async function showEpisode(id, { root, base, query, session }, signal) {
	const path = recordPath(id, base);
	const { episode, transcript, reviews, drawings } = await recorded(path, signal);
	if (signal.aborted) return;
	const { trajectory, model_turns: turns } = episode;
	const { before, rest } = spokenOf(transcript);
	const { dropped } = trajectory;
	const steps = stepsOf(episode);
	const playable = session.mode === "simulation" && dropped === 0;
	const list = new StepList(`${path}/blobs/`, signal, { before, turns,
		onSelect: (number) => {
			query.set("step", String(number));
			time.show(number);
			history.replaceState(null, "", `#/${path}?${query}`);
		},
		beside: (number) => playable && branchLink(id, number) });
	list.begin(trajectory);
	list.append(steps);
	const time = timeOf(list, path, playable, signal);
	const charts = new Charts(true, (index) => list.select(index));
	const back = new URLSearchParams(query);
	back.delete("step");
	const again = new URLSearchParams(back);
	again.append("pick", id);
	fill(root, el("h1", "Episode ", el("code", trajectory.episode_id)),
		el("p.row", link(`#/${base}?${back}`, "All records"), link(`#/${base}?${again}`, "Compare with another"),
			link(address(`${path}/page.html`).href, "Save as one HTML file"),
			neighboursOf(id, base, query, signal)),
		cardOf("Summary", drawn(drawings.summary)), drawings.tree && cardOf("Branches", el("h2", "Branches"), drawn(drawings.tree)),
			drawings.evidence && drawn(drawings.evidence), reviewOf(path, reviews ?? [], signal), charts.element, time.element,
		finder(list, signal), el("h2", countText(dropped + steps.length, "step")),
		el("div.outlined", list.outline, el("div", list.element, ...rest.map((message) => el("div.card", messageOf(message, turns))))),
		turnsOf(turns, (step) => list.select(step - dropped - 1)));
	charts.draw(steps, trajectory, turns);
	const wanted = Number(query.get("step") ?? 0) - dropped - 1;
	if (wanted >= 0) list.select(wanted);
}

/** @type {StepsReader} */
export function stepsOf(episode) {
	const observations = episode.extra.observations ?? {};
	return episode.trajectory.steps.map((step) => ({ ...step, observation: observations[String(step.call.step)] }));
}

/** @type {StartReader} */
export async function recordedStart(id, wanted, signal) {
	const { episode } = await recorded(recordPath(id), signal);
	const { seed, options, task } = episode.trajectory;
	const { reward, done, terminated, truncated, ...observation } = episode.trajectory.observation ?? {};
	const steps = stepsOf(episode);
	const last = steps[wanted - 1];
	const over = last && (last.terminated || last.truncated) ? last : null;
	return {
		reset: { ...options, ...(seed === null ? {} : { seed }), ...(task ? { task: task.split ? task : task.id } : {}) },
		id, wanted, over, step: over ? wanted - 1 : wanted, steps, observation,
	};
}

/** @type {FinderMaker} */
export function finder(list, signal) {
	const input = el("input", { type: "search", id: "find", autocomplete: "off" });
	const found = el("span.muted", { role: "status" });
	const go = (/** @type {number} */ by) => {
		if (input.value === "") return fill(found);
		const all = list.find(input.value);
		const next = by > 0 ? all.find((index) => index > list.selected) ?? all[0]
			: [...all].reverse().find((index) => index < list.selected) ?? all.at(-1);
		fill(found, next === undefined ? "Not found" : `${all.indexOf(next) + 1} of ${all.length}`);
		if (next !== undefined) list.select(next);
	};
	onKeys({ j: () => list.select(list.selected + 1), k: () => list.select(list.selected - 1),
		n: () => go(1), N: () => go(-1) }, signal);
	return formOf("form.row", { role: "search" }, () => go(1), labelled("Find in the steps", input),
		button("Previous", () => go(-1)), el("button", "Next"), found);
}
