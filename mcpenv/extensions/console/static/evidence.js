/** Why an episode has its reward: its parts, and the changes beside what the verifier expected. */

import { ApiError, ask } from "./api.js";
import { drawn } from "./chart.js";
import { el } from "./dom.js";

/** Return the evidence of an episode's end, which the server draws, or why it does not; null if it has none. @type {EvidenceReader} */
export async function evidenceOf({ steps, ...trajectory }) {
	const rewards = steps.map(({ reward }) => ({ call: { name: "", arguments: {}, step: 0 }, outcome: {}, reward }));
	try {
		const drawing = await ask("console/api/evidence", { method: "POST", body: { ...trajectory, steps: rewards } });
		return drawing && drawn(drawing);
	} catch (error) {
		if (!(error instanceof ApiError)) throw error;
		return el("p.error", error.message);
	}
}
