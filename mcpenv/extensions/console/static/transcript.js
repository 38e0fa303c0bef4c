/** What was said in an episode between its steps: task, user, and the model's words, thoughts and calls. */

import { contentOf, jsonOf, textOf } from "./content.js";
import { add, el, folded, muted, region } from "./dom.js";
import { durationText, listText, numberText } from "./format.js";
import { written } from "./numbers.js";

/** The most characters of a message that is shown open; longer ones of the system are folded. */
const LONG = 1500;
/** @type {Record<string, string>} */
const NAMES = { task: "Task", assistant: "Model", user: "User", system: "System prompt", tool: "Answer to the model" };

/** @type {TranscriptReader} */
export function spokenOf(entries) {
	/** @type {Map<number, Message[]>} */
	const before = new Map();
	/** @type {Message[]} */
	let waiting = [];
	for (const entry of entries) {
		if ("step" in entry) {
			before.set(entry.step, waiting);
			waiting = [];
		} else waiting.push(entry);
	}
	return { before, rest: waiting };
}

/** @type {MessageMaker} */
export function messageOf({ role, parts, turn: number }, turns) {
	const turn = number === undefined ? undefined : turns?.[number];
	const [tokens] = turn?.tokens ?? [];
	const shown = parts.map((part) => partOf(part, part.type === "text" ? tokens : undefined));
	const name = NAMES[role] ?? role;
	const long = role === "system" && parts.reduce((sum, { text }) => sum + (text?.length ?? 0), 0) > LONG;
	return el("section.said", { class: role, aria: name }, ...long ? [folded(name, ...shown)] : [el("div.row.step-head",
		el("strong", name), turn && el("span.muted.end", factsOf(turn, number))), ...shown]);
}

/** @type {TurnFacts} */
const factsOf = ({ model, usage, duration_s: took }, number) => listText(`turn ${number}`, model ?? "a model",
	usage && `${usage.input_tokens ?? "?"} tokens in, ${usage.output_tokens ?? "?"} out`, durationText(took));

/** @type {PartMaker} */
function partOf(part, tokens) {
	const { type, text = "" } = part;
	if (type === "text") return tokens && text === tokens.texts?.join("") ? sampledOf(tokens) : proseOf(text);
	if (type === "thought") return el("details.thought", { open: text.length < LONG }, el("summary", "Thought"), proseOf(text));
	if (type === "error") return el("p.error", text);
	// A call that made a step is shown as that step, which follows.
	if (type === "call") return part.step == null && el("p", "Calls ", el("code", `${part.name} ${written(part.arguments) ?? ""}`), " (no step of the episode)");
	if (type === "result") return el("div", ...(part.parts ?? []).map((each) => (each.type === "text" ? textOf(each.text ?? "") : partOf(each))));
	return type === "image" ? contentOf(/** @type {Block} */ (/** @type {unknown} */ (part))) : jsonOf(part.value);
}

/** Return the text of an answer with a colour for each token: the less probable, the stronger. @param {TurnTokens} tokens */
function sampledOf({ texts, logprobs }) {
	return region("div.prose", "Answer with the probabilities of its tokens", ...(texts ?? []).map((text, index) => {
		const logprob = logprobs?.[index];
		if (logprob == null) return text;
		const level = Math.min(4, Math.floor(-logprob));
		return el(`span.token-${level}`, { title: `log-probability ${numberText(logprob)}` }, text);
	}));
}

/** Return a text with the paragraphs, headings, lists, code and emphasis of Markdown. @param {string} text */
function proseOf(text) {
	if (text.trim() === "") return muted("An empty text.");
	const root = el("div.said-text");
	for (const [index, piece] of text.split(/^```.*$/m).entries()) {
		if (index % 2) add(root, region("pre", "Code", piece.replace(/^\n|\n$/g, "")));
		else for (const block of piece.split(/\n{2,}/)) if (block.trim()) add(root, blockOf(block.replace(/^\n+|\s+$/g, "")));
	}
	return root;
}

/** @type {BlockMaker} */
function blockOf(block) {
	const [, heading] = /^#{1,6} (.*)$/.exec(block) ?? [];
	if (heading !== undefined) return el("p", el("strong", ...inline(heading)));
	const lines = block.split("\n");
	const marker = /^\s*([-*+]|\d+[.)]) /;
	if (lines.every((line) => marker.test(line))) return el("ul.plain", ...lines.map((line) => el("li", ...inline(line.trim()))));
	return el("p.prose", ...inline(block));
}

/** @type {Inline} */
const inline = (text) => text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((piece, index) => (index % 2 === 0 ? piece
	: piece.startsWith("`") ? el("code", piece.slice(1, -1)) : el("strong", piece.slice(2, -2))));
