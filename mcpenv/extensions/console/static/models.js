/** The card of Play with which models play: one move, to the end, or two side by side. */

import { ApiError, ask } from "./api.js";
import { callBy } from "./calls.js";
import { add, button, el, fill, labelled, link, messageOf, tell } from "./dom.js";
import { countText, listText, numberText } from "./format.js";
import { Session } from "./socket.js";

/** @type {Mover} */
const moveOf = (id, model, signal) => ask(`sessions/${id}/moves`, { method: "POST", body: { model }, signal });

/** @type {ModelPlayer} */
async function playOn(id, model, most, signal, make) {
	for (let left = most; left > 0;) {
		const { text, calls, problem } = await moveOf(id, model, signal);
		if (problem) throw new ApiError(problem, "", 0);
		if (!calls.length) return `${model} has stopped. ${text}`;
		for (const call of calls.slice(0, left)) {
			signal.throwIfAborted();
			left -= 1;
			if (!(await make({ ...call, by: `model ${model}` }))) return "";
		}
	}
	throw new ApiError(`The limit of ${countText(most, "call")} is reached.`, "", 0);
}

/** @type {ModelCard} */
export function modelCard(play, names, recorded) {
	const [model, other] = ["model", "other-model"].map((id) => el("select", { id }, ...names.map((name) => el("option", name))));
	const most = el("input", { id: "model-calls", type: "number", min: 1, value: 50 });
	const said = el("p.prose", { role: "status" });
	const pair = el("div.pair");
	let running = new AbortController();
	const stop = button("Stop", () => running.abort(), { hidden: true, class: "primary" });
	/** @param {string} text @param {ModelWork} work */
	const does = (text, work) => button(text, async () => {
		if (!play.session || !stop.hidden) return;
		running = new AbortController();
		stop.hidden = false;
		tell(said, "Asking the model.");
		await saying(said, running.signal, work(play.session, running.signal));
		stop.hidden = true;
	});
	const next = does("Next move", async ({ id }, signal) => {
		const name = model.value;
		const { text, calls: [call, ...more], problem } = await moveOf(id, name, signal);
		if (call) play.propose({ ...call, by: `model ${name}` });
		return listText(call ? `${name} proposes ${call.name}: call it as it is, or edit it first` : problem ?? `${name} would stop`,
			more.length > 0 && `${countText(more.length, "further call")} left out`, text);
	});
	const run = does("Run to the end", async ({ id }, signal) => {
		const why = await playOn(id, model.value, most.valueAsNumber || 1, signal, async (call) => await play.call(call) && !play.over);
		if (why) await play.end();
		return why;
	});
	const both = does("Play both from here", async (session, signal) => {
		fill(pair);
		const { snapshot_id } = await session.ask("snapshot");
		const [one, two] = await Promise.all([model, other].map(async ({ value: name }) => {
			const state = el("p", { role: "status" });
			add(pair, el("div", el("strong", name), state));
			const { session_id: id } = await session.ask("fork", { snapshot_id });
			const fork = new Session(id, (error) => tell(state, error.message), `model-${name}`.replace(/[^\w.-]/g, "-").slice(0, 64));
			let calls = 0;
			await fork.ask("state"); // It is joined, and ends with this page.
			const why = await saying(state, signal, playOn(id, name, most.valueAsNumber || 1, signal, async (call) => {
				const { done } = await callBy(id, call);
				tell(state, countText(calls += 1, "call"));
				return !done;
			}));
			await fork.ask("end", { truncated: why === null });
			const { episode_id, total_reward } = await fork.ask("trajectory");
			add(state, ` ${countText(calls, "call")}, return ${numberText(total_reward)}`);
			fork.close();
			return episode_id;
		}));
		await session.ask("drop_snapshot", { snapshot_id });
		if (recorded) add(pair, link(`#/records/${encodeURIComponent(one)}?with=${encodeURIComponent(two)}`, "Compare them step by step"));
		return recorded ? "" : "Steps are compared by a record: start the server with --record.";
	});
	return el("details.card", { hidden: true }, el("summary", "Let a model play"), el("div.row", labelled("Model", model), next, run,
		labelled("Most calls", most), labelled("Beside it", other), both, stop), said, pair);
}

/** Say what comes of something, or why it failed; then return null. @type {Sayer} */
async function saying(place, signal, work) {
	try {
		const text = await work;
		tell(place, text);
		return text;
	} catch (error) {
		if (!signal.aborted && !(error instanceof ApiError)) throw error;
		tell(place, signal.aborted ? "Stopped." : messageOf(error));
		return null;
	}
}
