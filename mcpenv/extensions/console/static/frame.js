/** Work that is done once a frame, however often it is asked for, and the keys of a page. */

/**
 * Return a function that asks for `work` in the next frame of the browser. A hidden page has no frames: the work waits
 * until it is shown.
 * @param {() => void} work
 * @param {AbortSignal} signal after which nothing is done any more
 */
export function onceAFrame(work, signal) {
	let asked = 0;
	signal.addEventListener("abort", () => cancelAnimationFrame(asked));
	return () => {
		if (asked || signal.aborted) return;
		asked = requestAnimationFrame(() => {
			asked = 0;
			work();
		});
	};
}

/**
 * Call a function when its key is pressed, unless the visitor is typing.
 * @param {Record<string, () => void>} keys @param {AbortSignal} signal
 * @param {Document | Window} [at] a page's keys, on the document, come before those of the shell, on the window
 */
export function onKeys(keys, signal, at = document) {
	at.addEventListener("keydown", (given) => {
		const event = /** @type {KeyboardEvent} */ (given);
		if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
		const { target } = event;
		if (target instanceof HTMLElement && target.closest("input:not([type=checkbox], [type=radio]), textarea, select")) return;
		const action = Object.hasOwn(keys, event.key) ? keys[event.key] : undefined;
		if (!action) return;
		event.preventDefault();
		action();
	}, { signal });
}

/** Return after a time, at once if `signal` aborts. @type {Waiter} */
export function after(milliseconds, signal) {
	return new Promise((resolve) => {
		if (signal.aborted) resolve();
		const timer = setTimeout(resolve, milliseconds);
		signal.addEventListener("abort", () => {
			clearTimeout(timer);
			resolve();
		}, { once: true });
	});
}
