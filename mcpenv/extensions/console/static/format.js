/** Numbers, times and tasks as short texts. */

/** Return a number with at most six digits. @param {number | null | undefined} value @param {string} [none] the text for no value */
export function numberText(value, none = "–") {
	if (value == null) return none;
	return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(6)));
}

/** Return the sum of an episode's rewards as a text. @param {Trajectory} trajectory */
export function returnText({ observation, dropped, end_reward: end, steps, total_reward: total }) {
	const scored = observation?.reward != null || dropped > 0 || end || steps.some(({ reward }) => reward);
	return numberText(scored ? total : null);
}

/** Return a duration. @param {number} seconds */
export function durationText(seconds) {
	if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
	if (seconds < 90) return `${seconds.toFixed(1)} s`;
	if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
	return `${(seconds / 3600).toFixed(1)} h`;
}

/** Return a moment in the reader's time zone. @param {number | null | undefined} seconds since the epoch */
export function momentText(seconds) {
	// Swedish writes moments as ISO 8601 does.
	return seconds ? new Date(seconds * 1000).toLocaleString("sv") : "";
}

/** Return a task with its split. @param {{id: string, split?: string} | null | undefined} task */
export function taskText(task) {
	return task ? `${task.split ? `${task.split}/` : ""}${task.id}` : "";
}

/** Return a count with its noun, whose plural has an s. @param {number} count @param {string} noun */
export function countText(count, noun) {
	return `${numberText(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Return the texts of a list that are there, with a comma between them. @param {...(string | null | undefined | false)} texts */
export const listText = (...texts) => texts.filter(Boolean).join(", ");

/** Return how an episode has ended. @param {{terminated?: boolean, truncated?: boolean}} outcome @param {string} otherwise */
export const endText = ({ terminated, truncated }, otherwise) => (terminated ? "terminated" : truncated ? "truncated" : otherwise);

/** Return the parts of a reward on one line. @param {Reward["components"]} components */
export function partsText(components) {
	return Object.entries(components).map(([name, value]) => `${name} ${numberText(value)}`).join(", ");
}
