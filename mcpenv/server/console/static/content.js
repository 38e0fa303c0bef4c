/** What a tool returned, as elements: text as text, images and sounds by their declared type, never HTML. */

import { address } from "./api.js";
import { copyButton, el, muted } from "./dom.js";

const IMAGE = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)$/;
const SOUND = /^audio\/(mpeg|mp[34]|(x-)?wave?|ogg|webm|aac|flac)$/;
/** The most characters of JSON that stand on one line. */
const LINE = 60;
const BASE64 = /^[A-Za-z0-9+/=\s]*$/;

/** Return a content block. @param {Block} block @param {string} [blobs] the path of the record's blobs @returns {HTMLElement} */
export function contentOf(block, blobs = "") {
	const type = (block.mimeType ?? "").toLowerCase().split(";")[0]?.trim() ?? "";
	if (block.type === "text") return textOf(block.text ?? "");
	if (block.type === "image" || block.type === "audio") {
		const elsewhere = block.ref ?? (block.blob === undefined ? undefined : blobs + encodeURIComponent(block.blob));
		return mediaOf(type, elsewhere === undefined ? dataUrl(type, block.data ?? "") : address(elsewhere).href, block);
	}
	if (block.type === "resource" && block.resource) return resourceOf(block.resource);
	if (block.type === "resource_link") {
		return el("p", "Resource ", el("code", block.uri ?? ""), ` ${block.title ?? block.name ?? ""} ${block.description ?? ""}`);
	}
	return jsonOf(block);
}

/** Return a text; one that is JSON is shown indented. @param {string} text @returns {HTMLElement} */
export function textOf(text) {
	if (text === "") return muted("An empty text.");
	// A number of more digits than a browser holds would be shown as another.
	if (/^\s*[[{]/.test(text) && !/\d{16}/.test(text)) {
		try {
			return jsonOf(JSON.parse(text));
		} catch {
			return codeOf(text, "text"); // It only begins like JSON.
		}
	}
	return codeOf(text, "text");
}

/** Return a value as indented JSON. @param {unknown} value @returns {HTMLElement} */
export function jsonOf(value) {
	const short = JSON.stringify(value) ?? "undefined";
	return codeOf(short.length > LINE ? JSON.stringify(value, null, 2) : short, "JSON");
}

/**
 * Return a text as it is, with a button that copies it.
 * @param {string} text
 * @param {string} name what it is, for screen readers
 * @returns {HTMLElement}
 */
export function codeOf(text, name) {
	return el("div", { class: "block" },
		el("pre", { tabindex: "0", role: "region", "aria-label": name }, text), copyButton(() => text, name));
}

/** @param {{uri?: string, mimeType?: string, text?: string, blob?: string}} resource */
function resourceOf(resource) {
	const type = (resource.mimeType ?? "").toLowerCase();
	const body = resource.text !== undefined ? textOf(resource.text)
		: IMAGE.test(type) || SOUND.test(type) ? mediaOf(type, dataUrl(type, resource.blob ?? ""), resource)
			: muted(`${type || "bytes"}, ${(resource.blob ?? "").length} base64 characters`);
	return el("figure", el("figcaption", "Resource ", el("code", resource.uri ?? "")), body);
}

/** @param {string} type @param {string | null} url @param {unknown} otherwise what is shown as JSON if the type is not a known one */
function mediaOf(type, url, otherwise) {
	if (url && IMAGE.test(type)) return el("img", { src: url, alt: `Image (${type}) returned by the environment` });
	if (url && SOUND.test(type)) return el("audio", { src: url, controls: true, "aria-label": `Sound (${type}) returned by the environment` });
	return jsonOf(otherwise);
}

/** @param {string} type @param {string} data */
function dataUrl(type, data) {
	return BASE64.test(data) && (IMAGE.test(type) || SOUND.test(type)) ? `data:${type};base64,${data}` : null;
}
