/** The card of a call that runs: its time, progress and log, and a button that cancels it. */

import { ApiError, ask } from "./api.js";
import { cancelCall } from "./calls.js";
import { button, el, fill, region, tell } from "./dom.js";
import { durationText } from "./format.js";
import { after } from "./frame.js";

/** Milliseconds between two looks at the log. */
const EVERY = 500;

/** @type {RunningCard} */
export async function showRunning(place, name, id, signal) {
	const began = performance.now();
	const clock = el("strong", { role: "timer" });
	const bar = el("progress", { aria: `Progress of ${name}`, hidden: true });
	const said = el("span.muted");
	const log = region("pre", "Log so far");
	log.hidden = true;
	const tick = () => tell(clock, durationText((performance.now() - began) / 1000));
	const cancel = button("Cancel the call", async () => {
		cancel.disabled = true;
		await cancelCall(id).catch(() => false);
	}, { class: "primary" });
	fill(place, el("div.bar", el("span", "Running ", el("code", name)), clock, bar, said, el("div.bar.end", cancel)), log);
	place.hidden = false;
	place.scrollIntoView({ block: "nearest" });
	const timer = setInterval(tick, 100);
	signal.addEventListener("abort", () => {
		clearInterval(timer);
		place.hidden = true;
	});
	tick();
	for (await after(EVERY, signal); !signal.aborted; await after(EVERY, signal)) {
		try {
			/** @type {{logs: Step["logs"]}} */
			const { logs } = await ask(`sessions/${id}/running`, { signal });
			const progress = [...logs].reverse().find((each) => each.progress !== null);
			const lines = logs.filter((each) => each.level !== "progress");
			bar.hidden = !progress;
			if (progress?.total) bar.max = progress.total;
			if (progress?.total && progress.progress !== null) bar.value = progress.progress;
			tell(said, progress ? `${progress.progress}${progress.total ? ` of ${progress.total}` : ""} ${progress.message ?? ""}` : "");
			log.hidden = !lines.length;
			tell(log, lines.map(({ level, message }) => `${level}: ${message ?? ""}`).join("\n"));
		} catch (error) {
			if (!(error instanceof ApiError)) {
				if (signal.aborted) return;
				throw error;
			}
		}
	}
}
