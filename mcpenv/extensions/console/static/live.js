/** The page of the sessions that run on this server, and of one that is watched. */

import { ask } from "./api.js";
import { alertOf, el, fill, headOf, messageOf, refill, region, tell } from "./dom.js";
import { countText, durationText, numberText, taskText } from "./format.js";
import { after, onKeys } from "./frame.js";
import { Watcher } from "./watch.js";

/** Milliseconds between two looks at the sessions. */
const EVERY = 2000;

/** @type {Page} */
export async function page(context, signal) {
	const [id] = context.parts;
	if (id) await new Watcher(id, context.root, signal).follow();
	else await list(context.root, signal);
}

/** @type {SessionsPage} */
async function list(root, signal) {
	const status = el("p", { role: "status" });
	const problem = alertOf();
	const body = el("tbody");
	fill(root, el("h1", "Live"), status, problem, region("div.scroll.card", "Sessions", el("table", headOf([["Session"], ["Task"], ["Step"],
		["Return"], ["State"], ["Opened by", "wide"], ["Age", "wide"]]), body)));
	const step = (/** @type {number} */ by) => {
		const links = [...body.querySelectorAll("a")];
		const at = links.findIndex((link) => link === document.activeElement);
		links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
	};
	onKeys({ j: () => step(1), k: () => step(-1) }, signal);
	for (;;) {
		try {
			/** @type {{sessions: SessionInfo[]}} */
			const { sessions } = await ask("sessions", { signal });
			fill(problem);
			tell(status, countText(sessions.length, "session"));
			refill(body, ...sessions.sort((one, other) => other.created_at - one.created_at).map(rowOf),
				sessions.length === 0 && el("tr", el("td.empty", { colspan: 7 }, "No session is open.")));
		} catch (error) {
			if (signal.aborted) return;
			fill(problem, `The sessions could not be read: ${messageOf(error)} Trying again.`);
		}
		await after(EVERY, signal);
		if (signal.aborted) return;
	}
}

/** @param {SessionInfo} session */
function rowOf(session) {
	const age = durationText(Math.max(1, Math.round(Date.now() / 1000 - session.created_at)));
	const watched = session.origin === "socket" || session.origin === "http";
	const id = session.session_id;
	const name = id.slice(0, 12);
	return el("tr", el("th", { scope: "row" }, watched ? el("a", { id: `session-${id}`, href: `#/live/${encodeURIComponent(id)}`,
			title: id, aria: `Watch session ${name}` }, name) : el("span", { title: "An agent opened it: it has no episodes" }, name)),
		el("td", taskText(session.task) || "–"), el("td.number", session.step_count), el("td.number", numberText(session.return)),
		el("td", session.state + (session.paused_until ? ", paused" : session.busy ? ", busy" : "")),
		el("td.wide", `${session.origin}, ${session.planes.join(" and ")}`), el("td.number.wide", age));
}
