/** Numbers, times and tasks as short texts. */

/** @type {NumberWriter} */
export function numberText(value, none = "–") {
	if (value == null) return none;
	return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(6)));
}

/** @param {Trajectory} trajectory */
export function returnText({ observation, dropped, end_reward: end, steps, total_reward: total }) {
	const scored = observation?.reward != null || dropped > 0 || end || steps.some(({ reward }) => reward);
	return numberText(scored ? total : null);
}

/** @param {number} seconds */
export function durationText(seconds) {
	if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
	if (seconds < 90) return `${seconds.toFixed(1)} s`;
	if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
	return `${(seconds / 3600).toFixed(1)} h`;
}

/** @type {MomentWriter} */
export function momentText(seconds) {
	// Swedish writes moments as ISO 8601 does.
	return seconds ? new Date(seconds * 1000).toLocaleString("sv") : "";
}

/** @type {TaskWriter} */
export function taskText(task) {
	return task ? `${task.split ? `${task.split}/` : ""}${task.id}` : "";
}

/** @type {CountWriter} */
export function countText(count, noun) {
	return `${numberText(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** @type {ListWriter} */
export const listText = (...texts) => texts.filter(Boolean).join(", ");

/** @type {EndWriter} */
export const endText = ({ terminated, truncated }, otherwise) => (terminated ? "terminated" : truncated ? "truncated" : otherwise);

/** @param {Reward["components"]} components */
export function partsText(components) {
	return Object.entries(components).map(([name, value]) => `${name} ${numberText(value)}`).join(", ");
}
