/** What changed between two states, by path. */

/** @type {Differ} */
export function changes(before, after, path = "") {
	if (JSON.stringify(before) === JSON.stringify(after)) return [];
	if (!nested(before) || !nested(after) || Array.isArray(before) !== Array.isArray(after)) return [{ path, before, after }];
	const names = new Set([...Object.keys(after), ...Object.keys(before)]);
	return [...names].flatMap((name) => changes(
		Object.hasOwn(before, name) ? before[name] : undefined,
		Object.hasOwn(after, name) ? after[name] : undefined,
		path === "" ? name : `${path}.${name}`));
}

/** @param {unknown} value @returns {value is Plain} */
const nested = (value) => typeof value === "object" && value !== null;
