/** JSON with whole numbers of more than 53 bits, which a browser would round: they are texts that begin with `MARK`. */

const MARK = "\u0000whole ";
const MARKED = /"\\u0000whole (-?\d+)"/g;
/** The texts and the numbers of a JSON text. */
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;

/** True if a number would be rounded or become infinite. @param {string} token of a number */
function isRounded(token) {
	const value = Number(token);
	return /^-?\d+$/.test(token) ? !Number.isSafeInteger(value) : !Number.isFinite(value);
}

/** Return the first number of a JSON text that a browser cannot hold. @param {string} text @returns {string | undefined} */
export function roundedIn(text) {
	return text.match(TOKENS)?.find((token) => !token.startsWith('"') && isRounded(token));
}

/** Return the value of a JSON text. @param {string} text @returns {any} @throws {SyntaxError} if it is no JSON */
export function read(text) {
	const value = JSON.parse(text);
	if (!/\d{16}/.test(text) || roundedIn(text) === undefined) return value;
	return JSON.parse(text.replace(TOKENS, (token) =>
		/^-?\d+$/.test(token) && isRounded(token) ? JSON.stringify(MARK + token) : token));
}

/** Return the JSON text of a value that `read` returned. @param {unknown} value @param {number} [indent] @returns {string | undefined} */
export function written(value, indent) {
	return JSON.stringify(value, null, indent)?.replace(MARKED, "$1");
}
