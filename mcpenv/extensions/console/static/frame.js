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

/** Call a function when its key is pressed, unless the visitor is typing. @param {Record<string, () => void>} keys @param {AbortSignal} signal */
export function onKeys(keys, signal) {
	document.addEventListener("keydown", (event) => {
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		const { target } = event;
		if (target instanceof HTMLElement && target.closest("input:not([type=checkbox]), textarea, select")) return;
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
