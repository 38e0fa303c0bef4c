/** JSON Schemas as the form reads them: references, members of unions, their names, values that fit. */

/** Keywords beside a `$ref` win over those it leads to. @type {SchemaResolver} */
export function resolved(schema, root) {
	if (schema === undefined || typeof schema === "boolean") return {};
	/** @type {Set<string>} */
	const seen = new Set();
	let current = schema;
	while (typeof current.$ref === "string") {
		const { $ref, ...beside } = current;
		if (seen.has($ref)) throw new Error(`The schema's reference ${$ref} leads in a circle.`);
		seen.add($ref);
		current = { ...target($ref, root), ...beside };
	}
	if (!Array.isArray(current.allOf)) return current;
	const { allOf, ...beside } = current;
	return [...allOf.map((each) => resolved(each, root)), beside].reduce(merged, {});
}

/** @type {MembersReader} */
export function members(schema, root) {
	const { anyOf, oneOf, type, ...beside } = schema;
	if (Array.isArray(type)) return type.map((each) => ({ ...beside, type: each }));
	const union = anyOf ?? oneOf;
	return Array.isArray(union) ? union.map((each) => merged({ title: each.$ref?.split("/").at(-1) }, resolved(each, root))) : [];
}

/** @type {MemberNamer} */
export function memberName(member, union, root) {
	const properties = member.properties ?? {};
	const key = union.discriminator?.propertyName
		?? Object.keys(properties).find((name) => "const" in resolved(properties[name], root));
	const constant = key === undefined ? undefined : resolved(properties[key], root).const;
	if (constant !== undefined) return String(constant);
	if ("const" in member) return String(member.const);
	return String(member.title ?? member.format ?? member.type ?? "any JSON");
}

/** @type {SchemaTest} */
export function fits(value, given, root) {
	const schema = resolved(given, root);
	if ("const" in schema) return same(value, schema.const);
	if (Array.isArray(schema.enum)) return schema.enum.some((each) => same(value, each));
	const union = members(schema, root);
	if (union.length) return union.some((member) => fits(value, member, root));
	if (schema.type === "integer") return Number.isInteger(value);
	if (schema.type === "array") return Array.isArray(value);
	if (schema.type === "null") return value === null;
	if (schema.type !== "object") return schema.type === undefined || typeof value === schema.type;
	if (!isPlain(value)) return false;
	const properties = schema.properties ?? {};
	const has = (/** @type {string} */ name) => Object.hasOwn(value, name);
	if ((schema.required ?? []).some((name) => !has(name))) return false;
	if (schema.additionalProperties === false && Object.keys(value).some((name) => !Object.hasOwn(properties, name))) return false;
	return Object.keys(properties).every((name) => !has(name)
		|| fits(value[name], properties[name], root));
}

/** @param {unknown} value @returns {value is Plain} */
export const isPlain = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @type {Comparison} */
export const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** @type {ReferenceReader} */
function target(reference, root) {
	if (!reference.startsWith("#")) throw new Error(`The schema refers to ${reference}, which is not part of it.`);
	/** @type {any} */
	let at = root;
	for (const part of decodeURIComponent(reference.slice(1)).split("/").slice(1)) {
		const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
		if (typeof at !== "object" || at === null || !Object.hasOwn(at, name)) {
			throw new Error(`The schema's reference ${reference} leads nowhere.`);
		}
		at = at[name];
	}
	return typeof at === "boolean" ? {} : at;
}

/** @type {Merger} */
function merged(one, other) {
	const both = { ...one, ...other };
	if (one.properties && other.properties) both.properties = { ...one.properties, ...other.properties };
	if (one.required && other.required) both.required = [...new Set([...one.required, ...other.required])];
	return both;
}

/** @param {Schema} schema */
export function aboutOf(schema) {
	const { type, format, pattern, multipleOf, description } = schema;
	const unit = type === "array" ? " items" : type === "string" ? " characters" : "";
	const range = [["minimum", "at least"], ["exclusiveMinimum", "more than"], ["minLength", "at least"], ["minItems", "at least"], ["maximum", "at most"],
		["exclusiveMaximum", "less than"], ["maxLength", "at most"], ["maxItems", "at most"]].flatMap(([key = "", words]) => schema[key] === undefined ? [] : `${words} ${schema[key]}${unit}`);
	const what = "const" in schema || schema.enum || typeof type !== "string" ? "" : type === "string" ? format ?? "text" : type;
	const facts = [what, ...range, multipleOf !== undefined && `a multiple of ${multipleOf}`, pattern !== undefined && `matches ${pattern}`].filter(Boolean).join(", ");
	return [facts && `${facts}.`, typeof description === "string" && description].filter(Boolean).join(" ");
}
