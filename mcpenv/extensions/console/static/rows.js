/** A list whose rows get their contents when they come near the screen. */

import { el, fill } from "./dom.js";

export class LazyRows {
	/** @type {WeakMap<Element, number>} */
	#numbers = new WeakMap();

	/** `complete` adds what takes long, once. @param {RowMaker} make @param {RowCompleter} complete @param {AbortSignal} signal */
	constructor(make, complete, signal) {
		this.make = make;
		this.element = el("ol.steps");
		this.complete = complete;
		this.observer = new IntersectionObserver((entries) => {
			for (const { isIntersecting, target } of entries) if (isIntersecting) this.#complete(target);
		}, { rootMargin: "800px 0px" });
		signal.addEventListener("abort", () => this.observer.disconnect());
	}

	/** @param {Element} row */
	#complete(row) {
		const index = this.#numbers.get(row);
		if (index === undefined) return;
		this.#numbers.delete(row);
		this.observer.unobserve(row);
		this.complete(row, index);
	}

	clear() {
		this.observer.disconnect();
		fill(this.element);
	}

	/** Append rows. @param {number} count of all rows, not less than before */
	grow(count) {
		const rows = [];
		for (let index = this.element.childElementCount; index < count; index += 1) {
			const row = this.make(index);
			this.#numbers.set(row, index);
			this.observer.observe(row);
			rows.push(row);
		}
		this.element.append(...rows);
	}

	/** @type {RowShower} */
	show(index, block) {
		const row = this.element.children[index];
		if (!(row instanceof HTMLElement)) return null;
		this.#complete(row);
		row.focus({ preventScroll: true });
		row.scrollIntoView({ block, behavior: "instant" });
		return row;
	}
}
