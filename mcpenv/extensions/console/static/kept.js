/** What a tab keeps of its episode through a reload. */

import { BASE } from "./api.js";
import { read, written } from "./numbers.js";

const KEY = `mcpenv play ${BASE.href}`;

/** Return what was kept; null if nothing was. @returns {Kept | null} */
export function load() {
	try {
		return read(sessionStorage.getItem(KEY) ?? "null");
	} catch {
		return null; // It was written by another version, or the browser keeps nothing for this page.
	}
}

/** Keep an episode, without its answers if they are too large. @param {Kept} kept */
export function keep(kept) {
	if (store(kept)) return;
	const history = kept.history.map(({ call, answer: { reward, done } }) =>
		({ call, answer: { observation: {}, reward, done }, took: 0, before: null, after: null, dropped: true }));
	if (!store({ ...kept, history, state: null, first: bare(kept.first), last: bare(kept.last) })) forget();
}

/** @param {Observed} answer */
const bare = (answer) => ({ ...answer, observation: {} });

/** @param {Kept} kept */
function store(kept) {
	try {
		sessionStorage.setItem(KEY, written(kept) ?? "");
		return true;
	} catch {
		return false;
	}
}

export function forget() {
	try {
		sessionStorage.removeItem(KEY);
	} catch {
		// The browser keeps nothing for this page.
	}
}
