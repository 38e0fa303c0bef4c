/** The shell: navigation, sign-in and the router of addresses (`#/live/abc`). */

import { ApiError, ask } from "./api.js";
import { followCode } from "./dev.js";
import { alertOf, button, el, fill, formOf, labelled, messageOf, muted, notify } from "./dom.js";
import { onKeys } from "./frame.js";

/** @type {Entry[]} In the order of the navigation; the digits 1, 2, ... lead to them. Each is a module. */
const PAGES = [
	{ name: "play", title: "Play", shown: ({ mode }) => mode === "simulation" },
	{ name: "live", title: "Live", shown: ({ mode }) => mode !== "records" },
	{ name: "records", title: "Records", shown: ({ records }) => records },
	{ name: "training", title: "Training", shown: ({ records }) => records },
	{ name: "evaluations", title: "Evaluations", shown: ({ evaluations }) => evaluations === true },
];

/** @type {ConsoleSession | null} */
let session = null;
let leave = new AbortController();
const FOREVER = new AbortController().signal;
/** @type {Promise<void> | undefined} */
let following;

/** @type {Starter} */
async function start(refused) {
	try {
		session = await ask("console/api/session");
	} catch (error) {
		return showFailure(error);
	}
	if (!refused || (session?.needs_token && !session.signed_in)) await route();
	else notify("The server refuses this page although nothing is missing. Load it again.");
}

async function route() {
	leave.abort();
	leave = new AbortController();
	const { signal } = leave;
	const root = at("page");
	const current = session;
	if (!current) return;
	const { name: environment, needs_token: guarded, signed_in: entered } = current;
	fill(at("environment"), environment);
	fill(at("account"), guarded && entered && button("Sign out", () => sign("out", {}, notify), { class: "quiet" }));
	if (guarded && !entered) return showSignIn();
	following ??= followCode(at("code"), () => {
		dispatchEvent(new Event("code-reloaded")); // A page may keep what it needs.
		void start();
	}, FOREVER);
	const shown = PAGES.filter((each) => each.shown(current));
	const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
	// The page of a task is one of the records.
	const [name = "", ...parts] = path.replace(/^task\//, "records/task/").split("/").map(decoded);
	const entry = shown.find((each) => each.name === name) ?? (name === "" ? shown[0] : undefined);
	fill(at("pages"), ...shown.map((each) =>
		el("a", { href: `#/${each.name}`, "aria-current": each === entry ? "page" : null }, each.title)));
	if (!entry) {
		return fill(root, el("h1", "No such page"), el("p", `The console has no page "${name}" on this server.`));
	}
	document.title = `${entry.title} - ${environment} - mcpenv console`;
	fill(root, muted("Loading"));
	try {
		/** @type {{page: Page}} */
		const { page } = await import(`./${entry.name}.js`);
		if (signal.aborted) return;
		fill(root);
		await page({ root, parts, base: entry.name, query: new URLSearchParams(query), session: current }, signal);
	} catch (error) {
		if (!signal.aborted) showFailure(error);
	}
}

/** @param {string} part */
function decoded(part) {
	try {
		return decodeURIComponent(part);
	} catch {
		return part; // A lone percent sign: the visitor typed it.
	}
}

/** @param {unknown} error */
function showFailure(error) {
	if (!(error instanceof ApiError)) console.error(error);
	fill(at("page"), el("h1", "The page could not be shown"), el("p", { role: "alert" }, messageOf(error)),
		button("Try again", () => start()));
}

/** @type {Signer} */
async function sign(way, body, refuse) {
	try {
		if (way === "out") dispatchEvent(new Event("sign-out")); // A page may have a session to end.
		session = await ask(`console/api/sign-${way}`, { method: "POST", body });
		await route();
	} catch (error) {
		refuse(messageOf(error));
	}
}

function showSignIn() {
	const token = el("input", { id: "token", type: "password", autocomplete: "current-password", required: true,
		"aria-describedby": "token-error" });
	const problem = alertOf({ id: "token-error" });
	fill(at("pages"));
	fill(at("page"), formOf("form.card.narrow", {}, () => sign("in", { token: token.value }, (why) => {
		fill(problem, why);
		token.focus();
	}), el("h1", "Sign in"), labelled("Control token", token), problem, el("button.primary", "Sign in")));
	token.focus();
}

/** @param {string} id */
function at(id) {
	const element = document.getElementById(id);
	if (!element) throw new Error(`index.html has no element "${id}"`);
	return element;
}

addEventListener("hashchange", () => void route());
// A page that the browser keeps for its back button would keep its streams too.
addEventListener("pagehide", () => leave.abort());
addEventListener("pageshow", (event) => {
	if (event.persisted) void route();
});
addEventListener("signed-out", () => start(true));
onKeys({
	"/": () => /** @type {HTMLElement | null} */ (at("page").querySelector("input[type=search]"))?.focus(),
	...Object.fromEntries(PAGES.map((_, index) => [index + 1, () => at("pages").querySelectorAll("a")[index]?.click()])),
}, FOREVER, window);
at("skip").addEventListener("click", (event) => {
	event.preventDefault(); // The hash is the address of the page.
	at("page").focus();
});

start();
