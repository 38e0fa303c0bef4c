/** Where the pages of records read from: this server, or a file that has all of it. */

import { address, ask } from "./api.js";

/** Return the source of this server's record. @returns {RecordSource} */
export function serverSource() {
	const path = (/** @type {string} */ id) => `records/${encodeURIComponent(id)}`;
	return {
		rows: (conditions, offset, limit, signal) => ask("records", { query: { ...conditions, offset, limit }, signal }),
		episode: (id, signal) => ask(path(id), { signal }),
		pageOf: (id) => address(`${path(id)}/page.html`).href,
		addressOf: (id) => (block) => address(`${path(id)}/blobs/${encodeURIComponent(block.blob ?? "")}`).href,
	};
}
