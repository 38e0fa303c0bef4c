/** The form that begins an episode: task, split, seed and the environment's own reset options. */

import { ask } from "./api.js";
import { alertOf, el, fill, folded, formOf, labelled, messageOf } from "./dom.js";
import { objectField } from "./form.js";
import { Problem, attempt } from "./inputs.js";

/** The number of tasks that are offered by name. Any other can be typed. */
const OFFERED = 200;

/** @type {SetupMaker} */
export function setupForm(metadata, schema, onStart, signal) {
	const seed = el("input", { id: "seed", type: "number", step: 1, placeholder: "any" });
	const splits = Object.entries(metadata.tasks ?? {});
	const split = el("select", { id: "split", onchange: () => { offered = offer(); } }, ...splits.map(([name, count]) => el("option", { value: name }, `${name} (${count})`)));
	const task = el("input", { id: "task", list: "tasks", placeholder: "none", autocomplete: "off" });
	const tasks = el("datalist", { id: "tasks" });
	const problem = alertOf();
	let preset = "";
	const offer = async () => {
		try {
			const { tasks: listed } = await ask(`${encodeURIComponent(metadata.name)}/task_range`,
				{ method: "POST", body: { split: split.value, start: 0, stop: Math.min(OFFERED, metadata.tasks?.[split.value] ?? 0) }, signal });
			// A task that the visitor typed stays.
			if (task.value === preset) task.value = preset = listed[0]?.id ?? "";
			fill(tasks, ...listed.map((/** @type {{id: string}} */ each) => el("option", { value: each.id })));
		} catch (error) {
			if (!signal.aborted) fill(problem, `The tasks could not be listed: ${messageOf(error)}`);
		}
	};
	const options = Object.keys(schema.properties ?? {}).length ? objectField(schema, "Options", schema) : null;
	const start = el("button.primary", "Start an episode");
	const element = formOf("form", { novalidate: true }, async () => {
		await offered;
		if (start.disabled) return;
		options?.clear();
		const reset = attempt(problem, "Not started.", () => {
			const reset = /** @type {Plain} */ (options?.read() ?? {});
			if (seed.value !== "") reset.seed = seed.valueAsNumber;
			if (seed.value !== "" && !Number.isSafeInteger(reset.seed)) throw new Problem(`The seed is a whole number from -${Number.MAX_SAFE_INTEGER} to ${Number.MAX_SAFE_INTEGER}.`);
			if (task.value !== "") reset.task = task.value;
			// Drawn here, so that the calls can be made again in the same world. A task draws its own.
			else reset.seed ??= Math.floor(Math.random() * 2 ** 31);
			return reset;
		});
		if (!reset) return;
		start.disabled = true;
		fill(start, "Starting");
		try {
			await onStart(reset);
		} finally {
			fill(start, "Start an episode");
			start.disabled = false;
		}
	}, el("div.row", ...splits.length ? [labelled("Split", split), labelled("Task", task), tasks] : [],
		labelled("Seed", seed), start), options && folded("Reset options", options.element), problem);
	let offered = splits.length ? offer() : null;
	return {
		element,
		refuse(message, errors = []) {
			fill(problem, message);
			for (const { loc, msg } of errors) if (schema.properties?.[String(loc[0])]) options?.mark(loc.map(String), msg);
		},
	};
}
