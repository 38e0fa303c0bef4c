/** What was played as a task, a test or a bug: written by `mcpenv dev`, elsewhere a line to copy. */

import { ApiError, ask } from "./api.js";
import { codeOf } from "./content.js";
import { alertOf, button, el, fill, foldedLater, formOf, labelled, link, listOf, messageOf, muted } from "./dom.js";
import { written } from "./numbers.js";

const KINDS = { task: "Task", test: "Test: a task of the split test", bug: "Bug: in bugs.jsonl, which is no set of tasks" };

/** @type {SaveCardMaker} */
export function saveCard(read, onWritten) {
	const kind = el("select", { id: "save-kind", onchange: () => draw() }, ...Object.entries(KINDS).map(([value, text]) => el("option", { value }, text)));
	const id = el("input", { id: "save-id", autocomplete: "off", required: true, maxlength: 255 });
	const prompt = el("textarea", { id: "save-prompt" });
	const expected = el("textarea", { id: "save-expected" });
	const wanted = labelled("What should have happened", expected);
	const problem = alertOf();
	const answer = el("div", { role: "status" });
	const submit = el("button.primary", "Save");
	const draw = () => { wanted.hidden = kind.value !== "bug"; };
	const save = async (/** @type {boolean} */ anyway) => {
		fill(problem);
		fill(answer, "Playing it again and validating.");
		submit.disabled = true;
		try {
			const task = await ask("console/api/task", { method: "POST",
				body: { session_id: read().id, kind: kind.value, id: id.value, prompt: prompt.value, expected: expected.value } });
			const dev = await ask("console/dev/tasks").catch((error) => {
				// Elsewhere there is no such address, or the console's page is there.
				if (error instanceof ApiError && [200, 404].includes(error.status)) return null;
				throw error;
			});
			if (!dev) return showLine(written(task) ?? "");
			const done = await ask("console/dev/tasks", { method: "POST", body: { kind: kind.value, task, anyway } });
			const text = `${done.written ? "Written" : "Not written"}: ${task.id}, ${done.file}.`;
			if (done.written) onWritten([text, ...done.notes].join(" "));
			fill(answer, el(done.written ? "p.good" : "p.warn", text, done.problems.length ? " Validation found:" : " Validation found nothing wrong."),
				listOf(done.problems.map((/** @type {any} */ each) => `${each.problem}. ${each.remedy}.`)), listOf(done.notes), codeOf(done.row, "Line"),
				!done.written && button("Write it anyway", () => save(true)));
		} catch (error) {
			fill(answer);
			fill(problem, `Not saved: ${messageOf(error)}`);
		} finally {
			submit.disabled = false;
		}
	};
	const showLine = (/** @type {string} */ line) => {
		const file = link(URL.createObjectURL(new Blob([line, "\n"])), "Download the line");
		file.download = `${id.value}.jsonl`;
		fill(answer, muted("Only mcpenv dev writes and validates it. Here is the line, without a verifier: add it to tasks.jsonl, and run mcpenv validate."), codeOf(line, "Line"), file);
	};
	return foldedLater("details.card", el("summary", "Save as a task, a test or a bug"), () => {
		draw();
		prompt.value ||= read().prompt;
		return [formOf("form", {}, () => save(false), el("div.row", labelled("Kind", kind), labelled("Id", id)), labelled("Prompt", prompt), wanted, problem, submit), answer];
	});
}
