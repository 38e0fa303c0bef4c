/** The slider over a recorded episode: one of its steps, and the world there. */

import { ApiError, ask } from "./api.js";
import { changes } from "./changes.js";
import { jsonOf } from "./content.js";
import { cardOf, el, fill, folded, labelled, muted, tell } from "./dom.js";
import { countText } from "./format.js";
import { changesOf, refusalOf, stepHead } from "./step.js";
import { AppView } from "./view.js";

/** @type {TimeMaker} */
export function timeOf(list, path, playable, signal) {
	const { steps, dropped } = list;
	/** @type {HTMLInputElement} */
	const axis = el("input", { id: "time", type: "range", min: dropped, max: dropped + steps.length, value: dropped,
		oninput: () => { list.mark(axis.valueAsNumber - dropped - 1); } });
	const looks = el("input", { id: "looks", type: "checkbox", onchange: () => look() });
	const place = el("div");
	const status = el("p.muted", { role: "status" });
	const world = el("div");
	let looked = new AbortController();
	let viewed = looked;
	signal.addEventListener("abort", () => { looked.abort(); viewed.abort(); });

	/** Show the world at the step. A look at another one ends. */
	const look = async () => {
		looked.abort();
		tell(status, "");
		if (!looks.checked) return fill(world);
		const at = axis.valueAsNumber, { signal: moved } = looked = new AbortController();
		tell(status, `Making ${countText(at, "call")} again.`);
		try {
			showWorld(at, await ask(`${path}/world`, { method: "POST", body: { step: at }, signal: moved }));
		} catch (error) {
			if (moved.aborted) return;
			if (!(error instanceof ApiError)) throw error;
			fill(world, el("p.error", error.message), refusalOf(error));
		}
		tell(status, "");
	};

	/** @type {WorldWriter} */
	const showWorld = (at, { before, after, view: html }) => {
		viewed.abort();
		viewed = new AbortController();
		const view = html === null ? null : new AppView(html, async () => null, viewed.signal);
		for (const { call, outcome: { result } } of steps.slice(0, at)) if (result) view?.show(call, result);
		fill(world, view?.element, before !== null && changesOf({ number: at - 1, value: before }, after), folded("Whole state", jsonOf(after)));
	};

	const show = (/** @type {number} */ number) => {
		axis.value = String(number);
		const step = steps[number - dropped - 1];
		axis.setAttribute("aria-valuetext", step ? `${number}. ${step.call.name}` : "Reset");
		fill(place, step ? stepHead(step, number) : el("strong", "Reset"));
		list.draw(place, number - dropped - 1);
		void look();
	};
	show(dropped);
	return { show, element: cardOf("Time", labelled(`Step, ${dropped} to ${dropped + steps.length}`, axis),
		playable && el("p", el("label.check", looks, " Show the world there: calls are made again, but for those to the outside")), place, status, world) };
}
