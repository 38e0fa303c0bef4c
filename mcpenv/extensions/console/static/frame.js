/** Work that is done once a frame, however often it is asked for, and the keys of a page. */

/** @type {FrameAsker} */
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

/** @type {KeyListener} */
export function onKeys(keys, signal, at = document) {
	at.addEventListener("keydown", (given) => {
		const event = /** @type {KeyboardEvent} */ (given);
		// AltGr, with which some keyboards write brackets, is Ctrl and Alt on some systems.
		const command = (event.ctrlKey || event.metaKey || event.altKey) && !event.getModifierState("AltGraph");
		if (event.defaultPrevented || command) return;
		const { target } = event;
		if (target instanceof HTMLElement && target.closest("input:not([type=checkbox], [type=radio], [type=range]), textarea, select")) return;
		const action = Object.hasOwn(keys, event.key) ? keys[event.key] : undefined;
		if (!action) return;
		event.preventDefault();
		action();
	}, { signal });
}

/** @type {Waiter} */
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
