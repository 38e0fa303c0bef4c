/** What people say of an episode: a rating, tags and a note; the keys 1 to 5 rate. */

import { ask } from "./api.js";
import { alertOf, button, cardOf, el, fill, formOf, labelled, messageOf, muted, notify, tableOf } from "./dom.js";
import { momentText } from "./format.js";
import { onKeys } from "./frame.js";

/** The place in the browser's store of the reader's name. */
const NAME = "mcpenv-rater";

/** Return the reader's name, or keep one. @param {string} [name] */
export function raterName(name) {
	try {
		if (name) localStorage.setItem(NAME, name);
		return localStorage.getItem(NAME) ?? "";
	} catch {
		return ""; // The browser keeps nothing for this page.
	}
}

/** @type {ReviewMaker} */
export function reviewOf(path, reviews, signal) {
	const rater = el("input", { id: "rater", autocomplete: "name", maxlength: 100, required: true });
	const tags = el("input", { id: "review-tags", autocomplete: "off", "aria-describedby": "review-tags-hint" });
	const note = el("textarea.short", { id: "review-note", rows: 2, maxlength: 10000 });
	const ratings = [1, 2, 3, 4, 5].map((each) => el("input", { type: "radio", name: "rating", id: `rating-${each}`, value: each }));
	const problem = alertOf();
	const others = el("div");
	rater.value = raterName();
	/** What is saved, or will be, as JSON. */
	let saved = "";
	let last = Promise.resolve();
	const show = (/** @type {Review[]} */ all) => {
		reviews = all;
		fill(others, reviews.length > 0 ? tableOf("Reviews", ["Rater", "Rating", "Tags", "Note", "When"],
			reviews.map((each) => [each.rater, each.rating ?? "–", each.tags.join(", "), each.note, momentText(each.at)])) : muted("Nobody has reviewed this episode."));
	};
	const said = () => ({ rating: Number(ratings.find((each) => each.checked)?.value) || null,
		tags: tags.value.split(",").map((each) => each.trim()).filter(Boolean), note: note.value });
	const edited = () => JSON.stringify(said()) !== saved;
	/** Show what the reader said before. */
	const mine = () => {
		const own = reviews.find((each) => each.rater === rater.value.trim());
		for (const each of ratings) each.checked = Number(each.value) === own?.rating;
		tags.value = own?.tags.join(", ") ?? "";
		note.value = own?.note ?? "";
		saved = JSON.stringify(said());
	};
	const save = () => {
		fill(problem);
		const name = rater.value.trim();
		if (!name) {
			if (signal.aborted) return notify("Your review is not saved: it has no name.");
			fill(problem, "Write your name first: a review has a rater.");
			form.open = true;
			return rater.focus();
		}
		raterName(name);
		const body = { rater: name, ...said() };
		const changed = edited();
		saved = JSON.stringify(said());
		// One after the other: the last one stands. Without the page's signal: it is saved when the page is left.
		last = last.then(async () => {
			try {
				if (changed || !saved) show((await ask(`${path}/review`, { method: "PUT", body })).reviews);
				notify(body.rating || body.tags.length || body.note ? `Saved: ${body.rating ?? "no rating"}.` : "Your review is taken back.");
			} catch (error) {
				saved = "";
				if (signal.aborted) notify(`Your review is not saved: ${messageOf(error)}`);
				else fill(problem, messageOf(error));
			}
		});
	};
	for (const each of ratings) each.addEventListener("change", save);
	rater.addEventListener("change", () => {
		if (edited()) saved = "";
		else mine();
	});
	const leave = () => edited() && save();
	signal.addEventListener("abort", leave);
	addEventListener("sign-out", leave, { signal });
	onKeys(Object.fromEntries(ratings.map((each) => [each.value, () => {
		each.checked = true;
		save();
	}])), signal);
	show(reviews);
	mine();
	const form = el("details", el("summary", "Your review"), formOf("form", {}, save,
		el("div.row", labelled("Your name", rater), el("fieldset.row.ratings", el("legend", "Rating, from 1 (worst) to 5; the keys 1 to 5 set it"),
			...ratings.map((each) => el("label", { for: each.id }, each, ` ${each.value}`)))),
		el("div.row", labelled("Tags", tags, el("span.muted", { id: "review-tags-hint" }, "with commas between them")), labelled("Note", note)),
		el("div.bar", el("button.primary", "Save"), button("Take it back", () => {
			for (const each of ratings) each.checked = false;
			tags.value = note.value = "";
			save();
		}))));
	return cardOf("Review", el("h2", "Review"), others, problem, form);
}
