/** Elements, made from code only: no text of a server is ever parsed as HTML. */

/**
 * Return an element. A property `on...` is a listener, true an empty attribute; null, undefined and false leave the
 * attribute out; `aria` is aria-label. An element without any needs no properties.
 * @template {Selector} S
 * @param {S} selector the tag, and classes as in CSS: `p.error`
 * @param {Properties | Child} [first] the properties, or the first child
 * @param {...Child} children
 * @returns {Selected<S>}
 */
export function el(selector, first, ...children) {
	const bare = typeof first !== "object" || first === null || first instanceof Node;
	const properties = bare ? {} : first;
	const [tag = "", ...classes] = selector.split(".");
	const element = /** @type {Selected<S>} */ (document.createElement(tag));
	if (classes.length) element.classList.add(...classes);
	for (const [name, value] of Object.entries(properties)) {
		if (name.startsWith("on") && typeof value === "function") {
			element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
		} else if (name === "class") {
			if (value) element.className = `${element.className} ${value}`.trim();
		} else if (value != null && value !== false) {
			element.setAttribute(name === "aria" ? "aria-label" : name, value === true ? "" : String(value));
		}
	}
	add(element, bare && first, ...children);
	return element;
}

/** @type {Filler} */
export function add(element, ...children) {
	for (const child of children) {
		if (child != null && child !== false) element.append(child instanceof Node ? child : String(child));
	}
}

/** @param {...Child} children */
export const muted = (...children) => el("p.muted", ...children);

/** @param {string[] | undefined} sentences */
export const listOf = (sentences) => (sentences?.length ? el("ul", ...sentences.map((sentence) => el("li", sentence))) : null);

/** @param {unknown} error */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** @type {RegionMaker} */
export const region = (selector, name, ...children) => el(selector, { tabindex: "0", role: "region", aria: name }, ...children);

/** @type {CardMaker} */
export const cardOf = (name, ...children) => el("section.card", { aria: name }, ...children);

/** @param {[head: Child, style?: string][]} columns */
export const headOf = (columns) =>
	el("thead", el("tr", { "aria-rowindex": 1 }, ...columns.map(([head, style]) => el("th", { scope: "col", class: style }, head))));

/** @type {TableMaker} */
export function tableOf(name, heads, rows, style) {
	return region("div.scroll", name, el("table", headOf(heads.map((head, column) => [head, column ? style : undefined])),
		el("tbody", ...rows.map(([head, ...cells]) => el("tr", el("th", { scope: "row" }, head),
			...cells.map((cell) => el("td", { class: style }, cell)))))));
}

/** @type {LabelMaker} */
export function labelled(label, input, ...children) {
	return el("div.field", el("label", { for: input.id }, label), input, ...children);
}

/** Ctrl+Enter sends it from any field. @type {FormMaker} */
export function formOf(selector, properties, onSubmit, ...children) {
	const form = el(selector, { ...properties, onsubmit: (/** @type {Event} */ event) => {
		event.preventDefault();
		onSubmit();
	}, onkeydown: (/** @type {KeyboardEvent} */ event) => {
		if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
		event.preventDefault();
		if (form instanceof HTMLFormElement) form.requestSubmit();
	} }, ...children);
	return form;
}

/** @type {AlertMaker} */
export function alertOf(properties, ...children) {
	return el("p.error", { role: "alert", ...properties }, ...children);
}

/** @type {CardMaker} */
export const folded = (heading, ...children) => el("details", el("summary", heading), ...children);

/** @type {FoldMaker} */
export function foldedLater(selector, summary, make) {
	const details = el(selector, { ontoggle: () => details.open && details.childElementCount === 1 && add(details, ...make()) }, summary);
	return details;
}

/** @type {LinkMaker} */
export const link = (href, ...children) => el("a", { href }, ...children);

/** Replace the children. @type {Filler} */
export function fill(element, ...children) {
	element.replaceChildren();
	add(element, ...children);
}

/** Replace the children, and keep the keyboard at the same id or button. @type {Filler} */
export function refill(element, ...children) {
	const focused = element.contains(document.activeElement) ? document.activeElement : null;
	const at = [...element.querySelectorAll("button")].findIndex((each) => each === focused);
	fill(element, ...children);
	const same = focused?.id ? document.getElementById(focused.id) : element.querySelectorAll("button")[at];
	same?.focus({ preventScroll: true });
}

/** Show a text, unless it is there: screen readers would read it again. @type {Teller} */
export function tell(element, text) {
	if (element.textContent !== text) fill(element, text);
}

/** @type {ButtonMaker} */
export function button(text, onclick, properties = {}) {
	return el("button", { type: "button", onclick, ...properties }, text);
}

/** @type {CopyMaker} */
export function copyButton(text, name) {
	return button("Copy", async () => {
		try {
			await navigator.clipboard.writeText(text);
			notify(`Copied: ${name}.`);
		} catch (error) {
			notify(`Not copied: ${messageOf(error)}`);
		}
	}, { class: "quiet", aria: `Copy ${name}` });
}

/** Show a line at the foot of the page, which screen readers read out, or an empty text to remove it. @param {string} text */
export function notify(text) {
	const notice = document.getElementById("notice");
	if (notice) fill(notice, ...text ? [text, " ", button("Close", () => fill(notice), { class: "quiet" })] : []);
}
