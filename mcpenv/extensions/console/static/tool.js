/** The card of one tool: its form, the same as JSON, and the server's faults at their fields. */

import { alertOf, button, el, fill, formOf, muted } from "./dom.js";
import { objectField } from "./form.js";
import { Problem, attempt, focusFault, parsed } from "./inputs.js";
import { written } from "./numbers.js";
import { isPlain } from "./schema.js";

/** @type {ToolCardMaker} */
export function toolCard(tool, onCall) {
	const form = objectField(tool.input_schema, "Arguments", tool.input_schema);
	const { properties = {}, additionalProperties } = tool.input_schema;
	if (!Object.keys(properties).length && typeof additionalProperties !== "object") form.element.append(muted("It takes no arguments."));
	const json = el("textarea", { aria: "Arguments as JSON", spellcheck: "false" });
	const place = el("div", form.element);
	const problem = alertOf();
	const submit = el("button.primary", { "aria-describedby": "call-over" }, "Call");
	const why = el("span.warn", { id: "call-over", role: "status" });
	let byJson = false;
	let over = false;
	const read = () => /** @type {Plain} */ (byJson ? objectOf(json.value) : form.read());
	const swap = button("Edit as JSON", () => attempt(problem, "Not called.", () => {
		if (byJson) form.write(objectOf(json.value));
		else json.value = written(form.read(true), 2) ?? "";
		show(!byJson);
	}));
	const show = (/** @type {boolean} */ asJson) => {
		byJson = asJson;
		fill(place, byJson ? json : form.element);
		fill(swap, byJson ? "Back to the form" : "Edit as JSON");
	};
	/** @type {HTMLElement} */
	const element = formOf("form.card", { novalidate: true }, async () => {
		form.clear();
		const value = !submit.disabled && attempt(problem, "Not called.", read);
		if (!value) return focusFault(element);
		submit.disabled = true;
		try {
			await onCall(value);
		} finally {
			submit.disabled = over;
		}
	}, el("h2", tool.title ?? tool.name, " ", el("code", tool.name)), muted(tool.description),
	place, problem, el("div.row", submit, swap, why));
	return {
		element,
		draft: () => (byJson ? { value: {}, json: json.value } : { value: /** @type {Plain} */ (form.read(true)) }),
		write(value, text) {
			form.write(value);
			json.value = text ?? written(value, 2) ?? "";
			if ((text !== undefined) !== byJson && text !== undefined) show(true);
		},
		end(ended) {
			submit.disabled = over = ended;
			fill(why, over && "The episode has ended. Begin another one to call tools.");
		},
		refuse({ message, errors }) {
			fill(problem, message);
			if (!byJson) for (const { loc, msg } of errors ?? []) form.mark(loc.map(String), msg);
			focusFault(element);
		},
	};
}

/** @param {string} text an empty one gives no argument */
function objectOf(text) {
	const value = text.trim() ? parsed(text) : {};
	if (!isPlain(value)) throw new Problem("The arguments are a JSON object.");
	return value;
}
