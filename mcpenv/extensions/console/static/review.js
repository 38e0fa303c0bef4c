/** What people say of an episode: a rating, tags and a note; the keys 1 to 5 rate. */

import { ask } from "./api.js";
import { alertOf, button, cardOf, el, fill, formOf, labelled, messageOf, muted, notify, tableOf } from "./dom.js";
import { momentText } from "./format.js";
import { onKeys } from "./frame.js";

/** The place in the browser's store of the reader's name. */
const NAME = "mcpenv-rater";

/** @type {ReviewMaker} */
export function reviewOf(path, reviews, signal) {
	const rater = el("input", { id: "rater", autocomplete: "name", maxlength: 100, required: true });
	const tags = el("input", { id: "review-tags", autocomplete: "off", "aria-describedby": "review-tags-hint" });
	const note = el("textarea.short", { id: "review-note", rows: 2, maxlength: 10000 });
	const ratings = [1, 2, 3, 4, 5].map((each) => el("input", { type: "radio", name: "rating", id: `rating-${each}`, value: each }));
	const problem = alertOf();
	const others = el("div");
	rater.value = localStorage.getItem(NAME) ?? "";
	const show = (/** @type {Review[]} */ all) => {
		reviews = all;
		fill(others, reviews.length > 0 ? tableOf("Reviews", ["Rater", "Rating", "Tags", "Note", "When"],
			reviews.map((each) => [each.rater, each.rating ?? "–", each.tags.join(", "), each.note, momentText(each.at)])) : muted("Nobody has reviewed this episode."));
	};
	/** Show what the reader said before. */
	const mine = () => {
		const own = reviews.find((each) => each.rater === rater.value.trim());
		for (const each of ratings) each.checked = Number(each.value) === own?.rating;
		tags.value = own?.tags.join(", ") ?? "";
		note.value = own?.note ?? "";
	};
	const save = async (/** @type {number | null} */ rating) => {
		fill(problem);
		if (!rater.value.trim()) {
			fill(problem, "Write your name first: a review has a rater.");
			form.open = true;
			return rater.focus();
		}
		localStorage.setItem(NAME, rater.value.trim());
		const said = { rater: rater.value.trim(), rating, tags: tags.value.split(",").map((each) => each.trim()).filter(Boolean), note: note.value };
		try {
			show((await ask(`${path}/review`, { method: "PUT", body: said, signal })).reviews);
			notify(rating || said.tags.length || said.note ? `Saved: ${rating ?? "no rating"}.` : "Your review is taken back.");
		} catch (error) {
			if (!signal.aborted) fill(problem, messageOf(error));
		}
	};
	const chosen = () => Number(ratings.find((each) => each.checked)?.value) || null;
	for (const each of ratings) each.addEventListener("change", () => void save(chosen()));
	rater.addEventListener("change", mine);
	onKeys(Object.fromEntries(ratings.map((each) => [each.value, () => {
		each.checked = true;
		void save(chosen());
	}])), signal);
	show(reviews);
	mine();
	const form = el("details", el("summary", "Your review"), formOf("form", {}, () => void save(chosen()),
		el("div.row", labelled("Your name", rater), el("fieldset.row.ratings", el("legend", "Rating, from 1 (worst) to 5; the keys 1 to 5 set it"),
			...ratings.map((each) => el("label", { for: each.id }, each, ` ${each.value}`)))),
		el("div.row", labelled("Tags", tags, el("span.muted", { id: "review-tags-hint" }, "with commas between them")), labelled("Note", note)),
		el("div.bar", el("button.primary", "Save"), button("Take it back", () => {
			for (const each of ratings) each.checked = false;
			tags.value = note.value = "";
			void save(null);
		}))));
	return cardOf("Review", el("h2", "Review"), others, problem, form);
}
