/** JSON whose whole numbers of more than 53 bits, which a browser would round, are texts that begin with `MARK`. */

const MARK = "\u0000whole ";
const MARKED = /"\\u0000whole (-?\d+)"/g;
/** The texts and the numbers of a JSON text. */
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;

/** True if a number would be rounded or become infinite. @param {string} token of a number */
function isRounded(token) {
	const value = Number(token);
	return /^-?\d+$/.test(token) ? !Number.isSafeInteger(value) : !Number.isFinite(value);
}

/** @type {RoundedFinder} */
export function roundedIn(text) {
	return text.match(TOKENS)?.find((token) => !token.startsWith('"') && isRounded(token));
}

/** @type {JsonReader} */
export function read(text) {
	const value = JSON.parse(text);
	if (!/\d{16}/.test(text) || roundedIn(text) === undefined) return value;
	return JSON.parse(text.replace(TOKENS, (token) =>
		/^-?\d+$/.test(token) && isRounded(token) ? JSON.stringify(MARK + token) : token));
}

/** Return the text of a value that `read` returned: a text as it is, else its JSON. @param {unknown} value */
export const plainText = (value) => (typeof value === "string" && !value.startsWith(MARK) ? value : written(value) ?? "");

/** @type {JsonWriter} */
export function written(value, indent) {
	return JSON.stringify(value, null, indent)?.replace(MARKED, "$1");
}
