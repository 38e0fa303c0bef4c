/** A form made from a JSON Schema: one field object for each value, which reads, writes and marks it. */

import { alertOf, button, el, fill, muted } from "./dom.js";
import { inputField } from "./inputs.js";
import { fits, memberName, members, resolved } from "./schema.js";

/**
 * Return the field of a schema.
 * @param {Schema | boolean | undefined} given
 * @param {string} name its label
 * @param {Schema} root the schema that references lead into
 * @returns {Field}
 */
export function fieldOf(given, name, root) {
	const schema = resolved(given, root);
	const field = bareField(schema, name, root);
	// A visitor who gives a value means more than the null that stands for none.
	if (schema.default !== undefined && schema.default !== null) field.write(schema.default);
	return field;
}

/** @type {FieldMaker} */
function bareField(schema, name, root) {
	if ("const" in schema || Array.isArray(schema.enum)) return inputField(schema, name);
	if (members(schema, root).length) return unionField(schema, name, root);
	if (schema.type === "array") return arrayField(schema, name, root);
	if (schema.type === "object" && (schema.properties || typeof schema.additionalProperties === "object")) {
		return objectField(schema, name, root);
	}
	return inputField(schema, name);
}

/** @type {FieldMaker} */
export function objectField(schema, name, root) {
	const { properties = {}, required = [], additionalProperties } = schema;
	/** @type {Map<string, Field>} */
	const fields = new Map();
	for (const [key, child] of Object.entries(properties)) {
		// A constant is given always, as pydantic leaves the discriminator out of `required`.
		const always = required.includes(key) || "const" in resolved(child, root);
		fields.set(key, always ? fieldOf(child, key, root) : optionalField(child, key, root));
	}
	const more = typeof additionalProperties === "object" ? rowsField(additionalProperties, root) : null;
	const { group, refuse } = groupOf(name, schema, ...[...fields.values()].map((field) => field.element), more?.element);
	return {
		element: group,
		read() {
			const value = more ? more.read() : {};
			for (const [key, field] of fields) {
				const given = field.read();
				if (given !== undefined) set(value, key, given);
			}
			return value;
		},
		write(value) {
			const given = record(value);
			for (const [key, field] of fields) field.write(Object.hasOwn(given, key) ? given[key] : undefined);
			more?.write(Object.fromEntries(Object.entries(given).filter(([key]) => !fields.has(key))));
		},
		mark([key, ...rest], message) {
			const field = key === undefined ? undefined : fields.get(key);
			if (field ? field.mark(rest, message) : key !== undefined && more?.mark([key, ...rest], message)) return true;
			return refuse(key === undefined ? message : `${key}: ${message}`);
		},
		clear() {
			refuse();
			for (const field of [...fields.values(), ...(more ? [more] : [])]) field.clear();
		},
	};
}

/**
 * The field of a value that can be left out. It is built when it is wanted, so that recursive schemas end.
 * @param {Schema} child
 * @param {string} name
 * @param {Schema} root
 * @returns {Field}
 */
function optionalField(child, name, root) {
	const fallback = resolved(child, root).default;
	const given = el("input", { type: "checkbox", "aria-label": `Give ${name}` });
	const place = el("div");
	const note = el("span", { class: "muted" }, fallback === undefined ? " optional" : ` default ${JSON.stringify(fallback)}`);
	/** @type {Field | null} */
	let field = null;
	const show = () => {
		field = given.checked ? fieldOf(child, name, root) : null;
		fill(place, field?.element);
	};
	given.addEventListener("change", show);
	return {
		element: el("div", { class: "field" }, el("label", given, ` ${name}`), note, place),
		read: () => field?.read(),
		write(value) {
			given.checked = value !== undefined;
			show();
			if (value !== undefined) field?.write(value);
		},
		mark: (path, message) => field?.mark(path, message) ?? false,
		clear: () => field?.clear(),
	};
}

/** @type {FieldMaker} */
function unionField(schema, name, root) {
	const choices = members(schema, root);
	const picker = el("select", { "aria-label": `Kind of ${name}` },
		...choices.map((member, index) => el("option", { value: index }, memberName(member, schema, root))));
	const place = el("div");
	/** @type {Field} */
	let field;
	const show = () => {
		const member = choices[Number(picker.value)] ?? {};
		field = fieldOf(member, memberName(member, schema, root), root);
		fill(place, field.element);
	};
	picker.addEventListener("change", show);
	const first = choices.findIndex((member) => member.type !== "null");
	picker.value = String(Math.max(first, 0));
	show();
	const { group, refuse } = groupOf(name, schema, picker, place);
	return {
		element: group,
		read: () => field.read(),
		write(value) {
			const index = choices.findIndex((member) => fits(value, member, root));
			if (index >= 0) {
				picker.value = String(index);
				show();
			}
			if (value !== undefined) field.write(value);
		},
		mark(path, message) {
			// The server names the member too, by its tag, its type or its class, unless null is the only other one.
			const named = choices.filter((member) => member.type !== "null").length > 1;
			return field.mark(named ? path.slice(1) : path, message) || refuse(message);
		},
		clear() {
			refuse();
			field.clear();
		},
	};
}

/** @type {FieldMaker} */
function arrayField(schema, name, root) {
	const { prefixItems = [], items, minItems = 0, maxItems = Infinity } = schema;
	const most = items === false || (prefixItems.length && items === undefined) ? Math.min(prefixItems.length, maxItems) : maxItems;
	/** @type {{field: Field, row: HTMLElement}[]} */
	let rows = [];
	const list = el("div");
	const more = button(`Add to ${name}`, () => grow());
	const { group, refuse } = groupOf(name, schema, list, more);
	const refresh = () => {
		more.disabled = rows.length >= most;
		for (const { row } of rows) {
			const remove = row.querySelector(":scope > button");
			if (remove instanceof HTMLButtonElement) remove.disabled = rows.length <= Math.max(minItems, 0);
		}
	};
	const grow = () => {
		const field = fieldOf(prefixItems[rows.length] ?? items, `${name} ${rows.length + 1}`, root);
		const row = el("div", { class: "field" }, field.element, button("Remove", () => {
			rows = rows.filter((each) => each.row !== row);
			row.remove();
			refresh();
			more.focus();
		}, { class: "quiet", "aria-label": `Remove an entry of ${name}` }));
		rows.push({ field, row });
		list.append(row);
		refresh();
		return field;
	};
	const reset = (/** @type {number} */ length) => {
		rows = [];
		fill(list);
		while (rows.length < length) grow();
		refresh();
	};
	reset(Math.max(minItems, 0));
	return {
		element: group,
		read: () => rows.map(({ field }) => field.read()),
		write(value) {
			const values = Array.isArray(value) ? value : [];
			reset(values.length);
			values.forEach((each, index) => rows[index]?.field.write(each));
		},
		mark([key, ...rest], message) {
			return (key !== undefined && rows[Number(key)]?.field.mark(rest, message)) || refuse(message);
		},
		clear() {
			refuse();
			for (const { field } of rows) field.clear();
		},
	};
}

/** The rows of names and values of an object with `additionalProperties`. @param {Schema} values @param {Schema} root */
function rowsField(values, root) {
	/** @type {{key: HTMLInputElement, field: Field, row: HTMLElement}[]} */
	let rows = [];
	const list = el("div");
	const grow = () => {
		const key = el("input", { type: "text", "aria-label": "Name" });
		const field = fieldOf(values, "value", root);
		const row = el("div", { class: "field" }, key, field.element, button("Remove", () => {
			rows = rows.filter((each) => each.row !== row);
			row.remove();
		}, { class: "quiet" }));
		rows.push({ key, field, row });
		list.append(row);
		return { key, field };
	};
	return {
		element: el("div", list, button("Add a name", grow)),
		read() {
			/** @type {Plain} */
			const value = {};
			for (const { key, field } of rows) set(value, key.value, field.read());
			return value;
		},
		write(/** @type {unknown} */ value) {
			rows = [];
			fill(list);
			for (const [name, each] of Object.entries(record(value))) {
				const { key, field } = grow();
				key.value = name;
				field.write(each);
			}
		},
		mark: (/** @type {string[]} */ [name, ...rest], /** @type {string} */ message) =>
			rows.find(({ key }) => key.value === name)?.field.mark(rest, message) ?? false,
		clear() {
			for (const { field } of rows) field.clear();
		},
	};
}

/** @param {string} name @param {Schema} schema @param {...(HTMLElement | undefined)} children */
function groupOf(name, schema, ...children) {
	const problem = alertOf();
	const group = el("fieldset", el("legend", name),
		typeof schema.description === "string" && muted(schema.description), ...children, problem);
	/** Show why the value is refused, or nothing. @param {string} [message] */
	const refuse = (message) => {
		fill(problem, message);
		return true;
	};
	return { group, refuse };
}

/** Set a member, also one named `__proto__`. @param {Plain} object @param {string} name @param {unknown} value */
function set(object, name, value) {
	Object.defineProperty(object, name, { value, enumerable: true, configurable: true, writable: true });
}

/** @param {unknown} value @returns {Plain} */
function record(value) {
	return typeof value === "object" && value !== null && !Array.isArray(value) ? /** @type {Plain} */ (value) : {};
}
