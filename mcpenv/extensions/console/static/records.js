/** The page of what this server has recorded: the list, one episode, or two. */

import { ApiError } from "./api.js";
import { showComparison } from "./compare.js";
import { alertOf, el, fill, link } from "./dom.js";
import { showEpisode } from "./record.js";
import { RecordList } from "./record_list.js";
import { showTask } from "./task.js";

/** @type {Page} */
export async function page(context, signal) {
	const [id, task] = context.parts;
	if (!id) return new RecordList(context, signal).reload();
	if (id === "task" && task) return await showTask(task, context, signal);
	const other = context.query.get("with");
	try {
		if (other) await showComparison(id, other, context, signal);
		else await showEpisode(id, context, signal);
	} catch (error) {
		if (!(error instanceof ApiError) || error.status !== 404) throw error;
		fill(context.root, el("h1", "No such episode"), alertOf({}, error.message),
			el("p", "It may belong to another server, or its session has not ended yet. ", link(`#/${context.base}`, "All records")));
	}
}
