/** What `mcpenv dev` tells of the code that a server runs: reloads, and why new code does not load. */

import { ApiError, stream } from "./api.js";
import { codeOf } from "./content.js";
import { el, fill, folded, muted, notify, region } from "./dom.js";
import { after } from "./frame.js";

/** The most milliseconds before an attempt to connect again. */
const MOST = 2000;

/** @type {CodeFollower} */
export async function followCode(place, onReload, signal) {
	let known = "";
	let pause = 0;
	while (!signal.aborted) {
		try {
			await stream("console/dev/events", ({ event, data }) => {
				pause = 0;
				const code = /** @type {CodeEvent} */ (data);
				if (event === "failed") fill(place, faultOf(code));
				if (event !== "reloaded") return;
				fill(place);
				const running = `${code.server} ${code.generation}`;
				if (known !== "" && known !== running) {
					notify(`Reloaded: ${code.changed.join(", ")}${code.took_s ? ` in ${code.took_s.toFixed(2)} s` : ""}.`);
					onReload();
				}
				known = running;
			}, { signal });
		} catch (error) {
			if (signal.aborted) return;
			if (!(error instanceof ApiError)) throw error;
			if (error.final) return;
		}
		await after(pause, signal);
		pause = Math.min(MOST, pause * 2 || MOST / 4);
	}
}

/** @param {CodeEvent} code */
function faultOf({ file, line, message, source, traceback }) {
	return el("section.card.differs", { role: "alert", aria: "Fault of the code" },
		el("p.error", el("strong", message)),
		file && el("p", el("code", line ? `${file}, line ${line}` : file)), source && region("pre", "Source", source),
		folded("Traceback", codeOf(traceback, "Traceback")),
		muted("The code from before goes on serving. Mend the file: it is loaded when you save it."));
}
