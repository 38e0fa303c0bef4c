/** The field of a condition for episodes. The server reads it, and says what may come next. */

import { ApiError, ask } from "./api.js";
import { alertOf, el, fill, labelled } from "./dom.js";
import { plainText } from "./numbers.js";

const PATIENCE = 120;

/** Return a value as it stands in a condition. @param {unknown} value */
export const quoted = (value) => (value === null ? "none" : plainText(value) === value ? `"${value.replace(/(["\\])/g, "\\$1")}"` : plainText(value));

/** Return the agent whose episodes a list leaves out. @param {URLSearchParams} query of its address */
export const hiddenAgent = (query) => (query.get("console") === "shown" ? null : "console");

/** @type {Joiner} */
export const both = (one, other) => (one ? `${/\bor\b/.test(one) ? `(${one})` : one} and ${other}` : other);

export class WhereField {
	#timer = 0;

	/** @param {string} base @param {string} where @param {() => void} onApply */
	constructor(base, where, onApply) {
		const later = () => {
			clearTimeout(this.#timer);
			this.#timer = setTimeout(() => this.#complete(base), PATIENCE);
		};
		this.words = el("datalist", { id: "words" });
		this.input = el("input", { id: "where", type: "search", list: "words", autocomplete: "off", spellcheck: "false", "aria-describedby": "where-error",
			placeholder: 'return < 0.2 and tool("transfer")', oninput: later, onfocus: later, onchange: onApply });
		this.input.value = where;
		this.problem = alertOf({ id: "where-error" });
		this.element = labelled("Condition", this.input, this.words, this.problem);
	}

	/** @param {string} why */
	refuse(why) {
		fill(this.problem, why);
		this.input.setAttribute("aria-invalid", String(why !== ""));
	}

	/** Offer the whole texts, as browsers complete whole values. @param {string} base */
	async #complete(base) {
		const { value } = this.input;
		const before = value.slice(0, this.input.selectionStart ?? undefined);
		try {
			/** @type {{start: number, words: {text: string, hint: string}[]}} */
			const { start, words } = await ask(`${base}/completions`, { query: { where: before } });
			if (value !== this.input.value) return;
			fill(this.words, ...words.map(({ text, hint }) =>
				el("option", { value: `${before.slice(0, start)}${text}${value.slice(before.length)}`, label: hint ? `${text}   ${hint}` : text })));
		} catch (error) {
			if (!(error instanceof ApiError)) throw error;
		}
	}
}
