/** A form made from a JSON Schema: one field object for each value, which reads, writes and marks it. */

import { alertOf, button, el, fill, muted } from "./dom.js";
import { everyOf, inputField } from "./inputs.js";
import { aboutOf, fits, isPlain, memberName, members, resolved } from "./schema.js";

/** @type {AnyFieldMaker} */
function fieldOf(given, name, root) {
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
	const more = typeof additionalProperties === "object" ? entriesField(additionalProperties, name, root) : null;
	const all = [...fields.values(), ...more ? [more] : []];
	return groupOf(name, schema, {
		element: el("div", ...all.map((field) => field.element)),
		read(draft) {
			const own = everyOf([...fields].map(([key, field]) => () => /** @type {const} */ ([key, field.read(draft)])));
			const value = /** @type {Plain} */ (more?.read(draft) ?? {});
			for (const [key, given] of own) if (given !== undefined) set(value, key, given);
			return value;
		},
		write(value) {
			const given = isPlain(value) ? value : {};
			for (const [key, field] of fields) field.write(Object.hasOwn(given, key) ? given[key] : undefined);
			more?.write(Object.fromEntries(Object.entries(given).filter(([key]) => !fields.has(key))));
		},
		mark(path, message) {
			const [key = "", ...rest] = path;
			return (path.length > 0 && (fields.get(key)?.mark(rest, message) ?? more?.mark(path, message))) || false;
		},
		clear() {
			for (const field of all) field.clear();
		},
	});
}

/** A field is built when it is wanted, so that recursive schemas end. @type {FieldMaker} */
function optionalField(child, name, root) {
	const schema = resolved(child, root);
	const fallback = schema.default;
	/** @type {Schema[]} */
	const [kind = schema] = members(schema, root).filter(({ type }) => type !== "null");
	const given = el("input", { type: "checkbox", aria: `Give ${name}`, onchange: () => {
		show();
		// A visitor who gives a boolean means the one that is not sent anyway.
		if (kind.type === "boolean") field?.write(fallback !== true);
	} });
	const place = el("div");
	const note = el("span.muted", fallback === undefined ? " optional" : ` default ${JSON.stringify(fallback)}`);
	const about = muted(aboutOf({ ...kind, description: schema.description ?? kind.description }));
	/** @type {Field | null} */
	let field = null;
	const show = () => {
		field = given.checked ? fieldOf(child, name, root) : null;
		fill(place, field?.element);
		about.hidden = given.checked;
	};
	return {
		element: el("div.field", el("label", given, ` ${name}`), note, about, place),
		read: (draft) => field?.read(draft),
		write(value) {
			given.checked = value !== undefined;
			show();
			field?.write(value);
		},
		mark: (path, message) => field?.mark(path, message) ?? false,
		clear: () => field?.clear(),
	};
}

/** @type {FieldMaker} */
function unionField(schema, name, root) {
	const choices = members(schema, root);
	const picker = el("select", { aria: `Kind of ${name}`, onchange: () => show() },
		...choices.map((member, index) => el("option", { value: index }, memberName(member, schema, root))));
	const place = el("div");
	/** @type {Field} */
	let field;
	const show = () => {
		const member = choices[Number(picker.value)] ?? {};
		field = fieldOf(member, memberName(member, schema, root), root);
		fill(place, field.element);
	};
	const first = choices.findIndex((member) => member.type !== "null");
	picker.value = String(Math.max(first, 0));
	show();
	return groupOf(name, schema, {
		element: el("div", picker, place),
		read: (draft) => field.read(draft),
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
			return field.mark(named ? path.slice(1) : path, message);
		},
		clear: () => field.clear(),
	});
}

/** @type {FieldMaker} */
function arrayField(schema, name, root) {
	const { prefixItems = [], items, minItems = 0, maxItems = Infinity } = schema;
	const most = items === false || (prefixItems.length && items === undefined) ? Math.min(prefixItems.length, maxItems) : maxItems;
	return groupOf(name, schema, listField(name, `Add to ${name}`,
		(index) => fieldOf(prefixItems[index] ?? items, `${name} ${index + 1}`, root), minItems, most));
}

/** @type {FieldMaker} */
function entriesField(values, name, root) {
	const list = listField(name, "Add a name", () => {
		const key = el("input", { type: "text", aria: "Name" });
		const field = fieldOf(values, "value", root);
		return {
			element: el("div", key, field.element),
			read: (draft) => [key.value, field.read(draft)],
			write(/** @type {any} */ [given, value]) {
				key.value = given;
				field.write(value);
			},
			mark: ([given, ...rest], message) => given === key.value && field.mark(rest, message),
			clear: field.clear,
		};
	});
	return {
		...list,
		read(draft) {
			/** @type {Plain} */
			const value = {};
			for (const [key, each] of /** @type {[string, unknown][]} */ (list.read(draft))) set(value, key, each);
			return value;
		},
		write: (value) => list.write(isPlain(value) ? Object.entries(value) : []),
		mark: (path, message) => list.fields().some((field) => field.mark(path, message)),
	};
}

/** @type {ListFieldMaker} */
function listField(name, text, make, least = 0, most = Infinity) {
	/** @type {Field[]} */
	let fields = [];
	const rows = el("div");
	const more = button(text, () => grow());
	const refresh = () => {
		more.disabled = fields.length >= most;
		for (const { lastElementChild: remove } of rows.children) {
			if (remove instanceof HTMLButtonElement) remove.disabled = fields.length <= least;
		}
	};
	const grow = () => {
		const field = make(fields.length);
		const row = el("div.field", field.element, button("Remove", () => {
			fields = fields.filter((each) => each !== field);
			row.remove();
			refresh();
			more.focus();
		}, { class: "quiet", aria: `Remove an entry of ${name}` }));
		fields.push(field);
		rows.append(row);
		refresh();
		return field;
	};
	while (fields.length < least) grow();
	refresh();
	return {
		element: el("div", rows, more),
		fields: () => fields,
		read: (/** @type {boolean | undefined} */ draft) => /** @type {unknown} */ (everyOf(fields.map((field) => () => field.read(draft)))),
		write(/** @type {unknown} */ value) {
			fields = [];
			fill(rows);
			for (const each of Array.isArray(value) ? value : []) grow().write(each);
			refresh();
		},
		mark: (/** @type {string[]} */ [key, ...rest], /** @type {string} */ message) =>
			fields[Number(key)]?.mark(rest, message) ?? false,
		clear() {
			for (const field of fields) field.clear();
		},
	};
}

/** @type {GroupMaker} */
function groupOf(name, schema, inside) {
	const problem = alertOf();
	return {
		...inside,
		element: el("fieldset", el("legend", name), muted(aboutOf(schema.type === "object" ? { description: schema.description } : schema)), inside.element, problem),
		mark(path, message) {
			if (!inside.mark(path, message)) fill(problem, [...path.slice(0, 1), message].join(": "));
			return true;
		},
		clear() {
			fill(problem);
			inside.clear();
		},
	};
}

/** @type {Setter} */
function set(object, name, value) {
	Object.defineProperty(object, name, { value, enumerable: true, configurable: true, writable: true });
}
