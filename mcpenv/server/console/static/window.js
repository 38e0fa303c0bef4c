/** A list of which a window of rows exists, so that an episode of any length stays quick. */

import { button, el } from "./dom.js";
import { countText } from "./format.js";

/** The number of rows that are added at once. */
const ROWS = 200;

export class RowWindow {
	/** The number of all rows; those from `from` up to `to` exist. */
	count = 0;
	from = 0;
	to = 0;
	/** @type {WeakMap<Element, number>} */
	#numbers = new WeakMap();

	/**
	 * @param {(index: number) => HTMLElement} make returns a row without what takes long
	 * @param {(row: HTMLElement, index: number) => void} complete adds the rest, once, when the row comes near the screen
	 * @param {AbortSignal} signal
	 */
	constructor(make, complete, signal) {
		this.make = make;
		this.list = el("ol", { class: "steps" });
		this.earlier = button("", () => this.#grow(-ROWS), { hidden: true });
		this.later = button("", () => this.#grow(ROWS), { hidden: true });
		this.element = el("div", {}, this.earlier, this.list, this.later);
		this.complete = (/** @type {Element} */ row) => {
			const index = this.#numbers.get(row);
			if (index === undefined || !(row instanceof HTMLElement)) return;
			this.#numbers.delete(row);
			this.observer.unobserve(row);
			complete(row, index);
		};
		this.observer = new IntersectionObserver((entries) => {
			for (const entry of entries) if (entry.isIntersecting) this.complete(entry.target);
		}, { rootMargin: "800px 0px" });
		signal.addEventListener("abort", () => this.observer.disconnect());
	}

	/** Remove all rows. */
	clear() {
		this.count = 0;
		this.#show(0, 0);
	}

	/**
	 * Set the number of rows. If the last row was shown, new ones are shown too.
	 * @param {number} count not less than before
	 * @param {boolean} keep the rows that exist; false: those far above the newest go
	 */
	grow(count, keep) {
		const atEnd = this.atEnd;
		this.count = count;
		if (!atEnd) this.#label();
		else if (keep) this.#append(Math.min(count, Math.max(this.to, this.from + 2 * ROWS)));
		else if (count - this.to > ROWS) this.showEnd();
		else {
			this.#append(count);
			if (this.to - this.from > 2 * ROWS) {
				while (this.to - this.from > ROWS) {
					this.#drop();
					this.from += 1;
				}
				this.#label();
			}
		}
	}

	/** True if the last row exists. */
	get atEnd() {
		return this.to === this.count;
	}

	/** Show the last rows. */
	showEnd() {
		this.#show(Math.max(0, this.count - ROWS), this.count);
	}

	/**
	 * Return the row of an index, which exists then and is complete.
	 * @param {number} index
	 * @returns {HTMLElement | null} null if there is none
	 */
	row(index) {
		if (index < 0 || index >= this.count) return null;
		if (index < this.from || index >= this.to) {
			const from = Math.max(0, index - ROWS / 4);
			this.#show(from, Math.min(this.count, from + ROWS));
		}
		const row = this.list.children[index - this.from];
		if (!(row instanceof HTMLElement)) return null;
		this.complete(row);
		return row;
	}

	/** @param {number} by */
	#grow(by) {
		if (by > 0) {
			this.#append(Math.min(this.count, this.to + by));
			return;
		}
		const first = this.list.firstElementChild;
		const from = Math.max(0, this.from + by);
		for (let index = from; index < this.from; index += 1) this.list.insertBefore(this.#made(index), first);
		this.from = from;
		this.#label();
	}

	/** @param {number} to */
	#append(to) {
		for (; this.to < to; this.to += 1) this.list.append(this.#made(this.to));
		this.#label();
	}

	/**
	 * @param {number} from
	 * @param {number} to
	 */
	#show(from, to) {
		while (this.list.firstElementChild) this.#drop();
		this.from = from;
		this.to = from;
		this.#append(to);
	}

	#drop() {
		const row = this.list.firstElementChild;
		if (!row) return;
		this.observer.unobserve(row);
		row.remove();
	}

	/** @param {number} index */
	#made(index) {
		const row = this.make(index);
		this.#numbers.set(row, index);
		this.observer.observe(row);
		return row;
	}

	#label() {
		const above = this.from;
		const below = this.count - this.to;
		this.earlier.hidden = above === 0;
		this.earlier.textContent = `Show earlier steps (${countText(above, "step")})`;
		this.later.hidden = below === 0;
		this.later.textContent = `Show later steps (${countText(below, "step")})`;
		this.list.start = this.from + 1;
	}
}
