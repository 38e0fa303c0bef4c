/** Elements, made from code only: no text of a server is ever parsed as HTML. */

/**
 * Return an element. A property `on...` is a listener, `class` the class name, true an empty attribute;
 * null, undefined and false leave the attribute out. An element without any needs no properties.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Properties | Child} [first] the properties, or the first child
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, first, ...children) {
	const bare = typeof first !== "object" || first === null || first instanceof Node;
	const properties = bare ? {} : first;
	const element = document.createElement(tag);
	for (const [name, value] of Object.entries(properties)) {
		if (name.startsWith("on") && typeof value === "function") {
			element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
		} else if (value !== null && value !== undefined && value !== false) {
			element.setAttribute(name, value === true ? "" : String(value));
		}
	}
	add(element, bare && first, ...children);
	return element;
}

/** Append children, texts as text. @param {Element} element @param {...Child} children */
export function add(element, ...children) {
	for (const child of children) {
		if (child === null || child === undefined || child === false) continue;
		element.append(child instanceof Node ? child : String(child));
	}
}

/** Return a paragraph that matters less. @param {...Child} children */
export const muted = (...children) => el("p", { class: "muted" }, ...children);

/** Return the text of an error. @param {unknown} error */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/**
 * Return a place that scrolls by itself, also by the keyboard.
 * @param {string} name for screen readers
 * @param {string} style
 * @param {...Child} children
 */
export function region(name, style, ...children) {
	return el("div", { class: style, tabindex: "0", role: "region", "aria-label": name }, ...children);
}

/**
 * Return a table whose first column names the rows.
 * @param {string} name for screen readers
 * @param {Child[]} heads
 * @param {Child[][]} rows
 * @param {string} [style] of the other columns
 */
export function tableOf(name, heads, rows, style) {
	return region(name, "scroll", el("table", {},
		el("thead", el("tr", ...heads.map((head) => el("th", { scope: "col" }, head)))),
		el("tbody", ...rows.map(([head, ...cells]) => el("tr", el("th", { scope: "row" }, head),
			...cells.map((cell) => el("td", { class: style }, cell)))))));
}

/** Return an input under its label. @param {string} label @param {HTMLElement} input which has an id */
export function labelled(label, input) {
	return el("div", { class: "field" }, el("label", { for: input.id }, label), input);
}

/** Return a place for the text of an error, which screen readers read out. @param {Properties} [properties] @param {...Child} children */
export function alertOf(properties, ...children) {
	return el("p", { class: "error", role: "alert", ...properties }, ...children);
}

/** Return children that are shown when their heading is opened. @param {string} heading @param {...Child} children */
export const folded = (heading, ...children) => el("details", el("summary", heading), ...children);

/** Return a link. @param {string} href @param {...Child} children */
export const link = (href, ...children) => el("a", { href }, ...children);

/** Replace the children of an element. @param {Element} element @param {...Child} children */
export function fill(element, ...children) {
	element.replaceChildren();
	add(element, ...children);
}

/** Replace the children of an element, and keep the keyboard at the same button. @param {Element} element @param {...Child} children */
export function refill(element, ...children) {
	const at = [...element.querySelectorAll("button")].findIndex((each) => each === document.activeElement);
	fill(element, ...children);
	if (at >= 0) element.querySelectorAll("button")[at]?.focus({ preventScroll: true });
}

/** Return a button that submits nothing. @param {string} text @param {(event: Event) => unknown} onclick @param {Properties} [properties] */
export function button(text, onclick, properties = {}) {
	return el("button", { type: "button", onclick, ...properties }, text);
}

/**
 * Return a button that copies a text, which it asks for when it is pressed.
 * @param {() => string} text
 * @param {string} name what is copied, for screen readers
 */
export function copyButton(text, name) {
	return button("Copy", async () => {
		try {
			await navigator.clipboard.writeText(text());
			notify(`Copied: ${name}.`);
		} catch (error) {
			notify(`Not copied: ${messageOf(error)}`);
		}
	}, { class: "quiet", "aria-label": `Copy ${name}` });
}

/** Show a line at the foot of the page, which screen readers read out. @param {string} text */
export function notify(text) {
	const notice = document.getElementById("notice");
	if (notice) fill(notice, text, " ", button("Close", () => fill(notice), { class: "quiet" }));
}
