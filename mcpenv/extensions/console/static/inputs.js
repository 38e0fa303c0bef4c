/** The fields of single values: constants, choices, numbers, texts with formats, files, any JSON. */

import { alertOf, el, fill, labelled, messageOf } from "./dom.js";
import { roundedIn, written } from "./numbers.js";
import { aboutOf, same } from "./schema.js";

/** An input that holds no value of its schema. It is marked at its field already. */
export class Problem extends Error {
	count = 1;
}

/** @type {EveryReader} */
export function everyOf(reads) {
	/** @type {Problem | null} */
	let first = null;
	const values = [];
	for (const read of reads) {
		try {
			values.push(read());
		} catch (error) {
			if (!(error instanceof Problem)) throw error;
			if (first) first.count += error.count;
			else first = error;
		}
	}
	if (first) throw first;
	return values;
}

/** @param {HTMLElement} form */
export const focusFault = (form) => /** @type {HTMLElement | null} */ (form.querySelector("[aria-invalid]"))?.focus();

/** @type {Record<string, string>} */
const INPUT_TYPES = { date: "date", "date-time": "datetime-local", time: "time", email: "email", uri: "url", password: "password" };
/** @type {Record<string, string>} */
const PLACEHOLDERS = { uuid: "00000000-0000-0000-0000-000000000000", duration: "P1DT2H", ipv4: "127.0.0.1", ipv6: "::1" };
const FILES = new Set(["binary", "byte", "base64", "base64url"]);

let last = 0;

/** @type {InputMaker} */
export function inputField(schema, name) {
	if ("const" in schema) return constantField(schema.const);
	if (Array.isArray(schema.enum)) return choiceField(schema, name);
	if (schema.type === "null") return constantField(null);
	if (schema.type === "boolean") return choiceField({ ...schema, enum: [false, true] }, name);
	if (schema.type === "number" || schema.type === "integer") return numberField(schema, name);
	if (schema.type !== "string") return jsonField(schema, name);
	if (FILES.has(schema.format) || String(schema.contentEncoding).startsWith("base64")) return fileField(schema, name);
	return textField(schema, name);
}

/** @type {ConstantMaker} */
function constantField(value) {
	return { element: el("div", { hidden: true }), read: () => value, write() {}, mark: () => false, clear() {} };
}

/** @type {InputMaker} */
function choiceField(schema, name) {
	const choices = schema.enum ?? [];
	const input = el("select", ...choices.map((each, index) =>
		el("option", { value: index }, typeof each === "string" ? each : JSON.stringify(each))));
	return valueField(schema, name, input, () => choices[Number(input.value)], (value) => {
		const index = choices.findIndex((each) => same(each, value));
		input.value = String(Math.max(index, 0));
	});
}

/** @type {InputMaker} */
function numberField(schema, name) {
	const whole = schema.type === "integer";
	const input = el("input", { type: "number", step: whole ? 1 : "any", min: schema.minimum, max: schema.maximum });
	return valueField(schema, name, input, () => {
		const value = input.valueAsNumber;
		if (Number.isNaN(value)) throw new Problem("Type a number.");
		if (whole && !Number.isInteger(value)) throw new Problem("Type a whole number.");
		if (whole && !Number.isSafeInteger(value)) throw new Problem("A browser cannot hold this number exactly.");
		if (value < (schema.minimum ?? -Infinity)) throw new Problem(`At least ${schema.minimum}.`);
		if (value > (schema.maximum ?? Infinity)) throw new Problem(`At most ${schema.maximum}.`);
		if (value <= (schema.exclusiveMinimum ?? -Infinity)) throw new Problem(`More than ${schema.exclusiveMinimum}.`);
		if (value >= (schema.exclusiveMaximum ?? Infinity)) throw new Problem(`Less than ${schema.exclusiveMaximum}.`);
		return value;
	}, (value) => { input.value = typeof value === "number" ? String(value) : ""; });
}

/** @type {InputMaker} */
function textField(schema, name) {
	const format = String(schema.format ?? "");
	const one = format !== "" || schema.pattern !== undefined || (schema.maxLength ?? Infinity) <= 80;
	const input = one
		? el("input", { type: INPUT_TYPES[format] ?? "text", step: format === "date-time" || format === "time" ? "any" : null,
			placeholder: PLACEHOLDERS[format], autocomplete: "off" })
		: el("textarea.short", { rows: 1 });
	return valueField(schema, name, input, () => {
		const value = input.value;
		// Code points are counted, as JSON Schema does, not UTF-16 units.
		const length = [...value].length;
		if (!input.validity.valid) throw new Problem(input.validationMessage);
		if (format !== "" && value === "") throw new Problem(`Give a value of the format ${format}.`);
		if (length < (schema.minLength ?? 0)) throw new Problem(`At least ${schema.minLength} characters.`);
		if (schema.pattern !== undefined && !matches(value, schema.pattern)) throw new Problem(`It does not match ${schema.pattern}`);
		if (length > (schema.maxLength ?? Infinity)) throw new Problem(`At most ${schema.maxLength} characters.`);
		return format === "date-time" ? new Date(value).toISOString() : value;
	}, (value) => {
		const text = typeof value === "string" ? value : "";
		input.value = format === "date-time" && text ? localTime(text) : text;
	});
}

/** @type {InputMaker} */
function fileField(schema, name) {
	const input = el("input", { type: "file" });
	const held = el("span.muted");
	const safe = schema.format === "base64url" || schema.contentEncoding === "base64url";
	let data = "";
	/** @type {string | null} */
	let reading = null;
	input.addEventListener("change", () => {
		const file = input.files?.[0];
		if (!file) return;
		reading = file.name;
		const reader = new FileReader();
		reader.addEventListener("loadend", () => {
			const text = String(reader.result ?? "").split(",", 2)[1] ?? "";
			data = safe ? text.replaceAll("+", "-").replaceAll("/", "_") : text;
			reading = null;
			fill(held, file.name, reader.error ? ` could not be read: ${reader.error.message}` : `, ${file.size} bytes`);
		});
		reader.readAsDataURL(file);
	});
	const field = valueField(schema, name, input, () => {
		if (reading !== null) throw new Problem(`${reading} is still being read. Try again.`);
		return data;
	}, (value) => {
		data = typeof value === "string" ? value : "";
		input.value = "";
		fill(held, data ? `${data.length} base64 characters` : "");
	});
	field.element.append(held);
	return field;
}

/** @type {InputMaker} */
function jsonField(schema, name) {
	const input = el("textarea", { rows: 2, spellcheck: "false" });
	input.value = schema.type === "object" ? "{}" : "null";
	return valueField(schema, `${name} (JSON)`, input, () => parsed(input.value), (value) => {
		input.value = written(value ?? (schema.type === "object" ? {} : null), 2) ?? "";
	});
}

/** @type {Attempt} */
export function attempt(problem, refusal, read) {
	fill(problem);
	try {
		return read();
	} catch (error) {
		if (!(error instanceof Problem)) throw error;
		fill(problem, `${refusal} ${error.message}${error.count > 1 ? ` ${error.count} values are wrong.` : ""}`);
	}
}

/** @throws {Problem} if it is not JSON, or would be rounded @param {string} text */
export function parsed(text) {
	let value;
	try {
		value = JSON.parse(text);
	} catch (error) {
		throw new Problem(`Not JSON: ${messageOf(error)}`);
	}
	const rounded = roundedIn(text);
	if (rounded !== undefined) throw new Problem(`A browser cannot hold ${rounded} exactly.`);
	return value;
}

/** Return what `datetime-local` takes. @param {string} text */
function localTime(text) {
	const time = new Date(text);
	if (Number.isNaN(time.getTime())) return "";
	return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, -1);
}

/** @type {ValueFieldMaker} */
function valueField(schema, name, input, read, write) {
	input.id = `field-${last += 1}`;
	input.setAttribute("aria-describedby", `${input.id}-about ${input.id}-error`);
	const problem = alertOf({ id: `${input.id}-error` });
	const mark = (/** @type {string} */ message) => {
		input.setAttribute("aria-invalid", "true");
		fill(problem, message);
	};
	const clear = () => {
		input.removeAttribute("aria-invalid");
		fill(problem);
	};
	input.addEventListener("input", clear);
	return {
		element: labelled(name, input, el("p.muted", { id: `${input.id}-about` }, aboutOf(schema)), problem),
		read(draft) {
			if (!draft) clear();
			try {
				return read();
			} catch (error) {
				if (error instanceof Problem) {
					if (draft) return schema.type === "string" && input.type !== "file" && input.value || undefined;
					mark(error.message);
				}
				throw error;
			}
		},
		write(value) {
			if (value !== undefined) write(value);
		},
		mark(_path, message) {
			mark(message);
			return true;
		},
		clear,
	};
}

/** @type {PatternTest} */
function matches(value, pattern) {
	try {
		return new RegExp(pattern, "u").test(value);
	} catch {
		return true; // The server knows this pattern.
	}
}
