/** What a tool returned, as elements: text as text, images and sounds by their declared type, never HTML. */

import { address } from "./api.js";
import { copyButton, el, foldedLater, muted, region } from "./dom.js";
import { read, written } from "./numbers.js";

const IMAGE = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)$/;
const SOUND = /^audio\/(mpeg|mp[34]|(x-)?wave?|ogg|webm|aac|flac)$/;
/** The most characters of JSON that stand on one line. */
const LINE = 60;
/** The most characters of an inner value that is open at first, and of entries that are drawn at once. */
const OPEN = 2000;
const ENTRIES = 200;
const TOKENS = /("(?:[^"\\]|\\.)*"(?:: )?|-?\b\d[\d.eE+-]*|\b(?:true|false|null)\b)/;
const BASE64 = /^[A-Za-z0-9+/=\s]*$/;

/** @type {ContentMaker} */
export function contentOf(block, blobs = "") {
	const { type, blob, ref = blob === undefined ? undefined : blobs + encodeURIComponent(blob) } = block;
	if (type === "text") return textOf(block.text ?? "");
	if (type === "image" || type === "audio") return mediaOf(block.mimeType, block.data, jsonOf(block), ref);
	if (type === "resource" && block.resource) return resourceOf(block.resource);
	if (type === "resource_link") {
		return el("p", "Resource ", el("code", block.uri), ` ${block.title ?? block.name ?? ""} ${block.description ?? ""}`);
	}
	return jsonOf(block);
}

/** Return a text; one that is JSON is shown indented. @param {string} text */
export function textOf(text) {
	if (text === "") return muted("An empty text.");
	// A fraction of more digits than a browser holds would be shown as another.
	const exact = (text.match(/\d+\.\d{14,}/g) ?? []).every((digits) => String(Number(digits)) === digits);
	if (exact && /^\s*[[{]/.test(text)) {
		try {
			return jsonOf(read(text));
		} catch {
			// It only begins like JSON.
		}
	}
	return codeOf(text, "text");
}

/** @param {unknown} value */
export function jsonOf(value) {
	const short = written(value) ?? "undefined";
	return codeOf(short.length > LINE ? written(value, 2) ?? "" : short, "JSON", [linesOf(value)]);
}

/** Return JSON whose objects and arrays fold; what is folded is drawn once it is opened. @type {JsonLines} */
function linesOf(value, label = "", end = "") {
	const text = written(value) ?? "undefined";
	if (text.length <= LINE || !value || typeof value !== "object") return el("div", ...painted(label + text + end));
	const [open, close] = Array.isArray(value) ? "[]" : "{}";
	const entries = Object.entries(value);
	/** @type {(from: number) => Child[]} */
	const some = (from) => {
		const rest = entries.length - from - ENTRIES;
		return [...entries.slice(from, from + ENTRIES).map((entry) =>
			linesOf(entry[1], open === "[" ? "" : `${JSON.stringify(entry[0])}: `, entry === entries.at(-1) ? "" : ",")),
		rest > 0 && foldedLater("details", el("summary", `${rest} more`), () => some(from + ENTRIES))];
	};
	const head = el("summary", ...painted(label + open), el("span.muted", ` ${entries.length} ${close}`));
	const inside = () => [...some(0), el("div", close + end)];
	return label + end && text.length > OPEN ? foldedLater("details", head, inside) : el("details", { open: true }, head, ...inside());
}

/** Return JSON in colours. @type {Inline} */
const painted = (text) => text.split(TOKENS).map((piece, at) =>
	(at % 2 ? el(`span.ansi-${piece.endsWith(": ") ? 4 : piece.startsWith('"') ? 2 : 5}`, piece) : piece));

/** @type {CodeMaker} */
export function codeOf(text, name, shown = coloured(text)) {
	return el("div.block", region("pre", name, ...shown), copyButton(text, name));
}

/** Return a text in the colours of a terminal, without its other codes. @type {Inline} */
function coloured(text) {
	if (!text.includes("\x1b")) return [text];
	/** @type {string[]} */
	let style = [];
	return text.split(/(\x1b\[[\d;]*m)/).map((piece, index) => {
		if (index % 2 === 0) {
			const shown = piece.replace(/\x1b(\[[\d;?]*[A-Za-z]|\][^\x07]*\x07|.)/g, "");
			return style.length && shown ? el("span", { class: style.join(" ") }, shown) : shown;
		}
		for (const code of piece.slice(2, -1).split(";").map(Number)) {
			if (code === 0) style = [];
			else if (code === 1) style.push("bold");
			else if (code >= 30 && code < 38 || code >= 90 && code < 98) style = [...style.filter((each) => !each.startsWith("ansi")), `ansi-${code % 10}`];
			else if (code === 39) style = style.filter((each) => !each.startsWith("ansi"));
		}
		return "";
	});
}

/** @param {Block["resource"] & {}} resource */
function resourceOf({ uri, mimeType, text, blob = "" }) {
	return el("figure", el("figcaption", "Resource ", el("code", uri)), text !== undefined ? textOf(text)
		: mediaOf(mimeType, blob, muted(`${mimeType ?? "bytes"}, ${blob.length} base64 characters`)));
}

/** @type {MediaMaker} */
function mediaOf(declared = "", data = "", otherwise, ref) {
	const type = declared.toLowerCase().split(";")[0]?.trim() ?? "";
	const src = ref !== undefined ? address(ref).href : BASE64.test(data) && `data:${type};base64,${data}`;
	if (src && IMAGE.test(type)) return el("button.picture", { type: "button", aria: "Show the image large", onclick: () => enlarge(src) },
		el("img", { src, alt: `Image (${type}) returned by the environment` }));
	if (src && SOUND.test(type)) return el("audio", { src, controls: true, aria: `Sound (${type}) returned by the environment` });
	return otherwise;
}

/** Show an image over the page. @param {string} src */
function enlarge(src) {
	const dialog = el("dialog.lightbox", { aria: "Image" }, el("img", { src, alt: "Image returned by the environment" }));
	dialog.addEventListener("click", () => dialog.close());
	dialog.addEventListener("close", () => dialog.remove());
	document.body.append(dialog);
	dialog.showModal();
}
