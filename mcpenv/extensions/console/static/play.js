/** The page that plays an episode in a session of the visitor's own. */

import { ApiError, BASE, ask, recordPath } from "./api.js";
import { actionOf, callBy } from "./calls.js";
import { changes } from "./changes.js";
import { jsonOf } from "./content.js";
import { alertOf, button, cardOf, copyButton, el, fill, link, listOf, messageOf, muted, notify, refill, region } from "./dom.js";
import { evidenceOf } from "./evidence.js";
import { countText, endText, listText, numberText, returnText } from "./format.js";
import * as keeping from "./kept.js";
import { written } from "./numbers.js";
import { modelCard } from "./models.js";
import { playedCard, playedOf } from "./played.js";
import { recordedStart } from "./record.js";
import { showRunning } from "./running.js";
import { saveCard } from "./save.js";
import { setupForm } from "./setup.js";
import { Session } from "./socket.js";
import { refusalOf } from "./step.js";
import { toolCard } from "./tool.js";
import { ToolList } from "./tool_list.js";
import { AppView, readView } from "./view.js";

/** The number of snapshots that are held for undoing. */
const UNDO_DEPTH = 10;
const ABOUT = "About this environment";

/** The page, which other pages of the console do not end. @type {Play | null} */
let kept = null;
/** The episode that goes on with new code. @type {Replay & {why: string} | null} */
let carried = null;

addEventListener("code-reloaded", () => {
	if (kept?.session) carried = { reset: kept.reset, calls: kept.calls, why: `${kept.saved} The code was reloaded, and the episode began again.` };
	drop();
});
addEventListener("sign-out", drop);

function drop() {
	kept?.end_page();
	kept = null;
	keeping.forget();
}

/** @type {Page} */
export async function page({ root, query, session }, signal) {
	const { hash } = location;
	let record = query.get("record");
	if (!kept) {
		const [metadata, offered] = await Promise.all(["metadata", "console/api/play"].map((path) => ask(path, { signal })));
		if (signal.aborted) return;
		kept = new Play(metadata, offered, session.records);
		const before = keeping.load();
		if (before && before.name === metadata.name) {
			if (record && before.address !== hash && replaceable(before)) kept.joined(before.id).close();
			else {
				record = null;
				void kept.takeUp(before);
			}
		}
	} else if (record && (kept.address === hash && !kept.over || !replaceable(kept))) record = null;
	const play = kept;
	if (!record) history.replaceState(null, "", play.address); // That of a branch is where it is found again.
	fill(root, play.element);
	play.arrive();
	signal.addEventListener("abort", () => play.leave());
	if (carried) {
		const { reset, calls, why } = carried;
		carried = null;
		if (await play.begin(reset)) play.offer(why, calls);
	}
	if (record) await play.branch(record, Number(query.get("steps")), signal);
}

/** Return true if an episode has nothing to lose, or the visitor gives it up. @type {EpisodeTest} */
const replaceable = ({ over, history, origin }) => over || history.length <= (origin?.step ?? 0) || confirm("An episode with calls runs here. End it and play the recorded one?");

class Play {
	/** @type {Session | null} */
	session = null;
	/** @type {Plain} */
	reset = {};
	/** Where this episode is found again. */
	address = "#/play";
	/** The recorded episode that this one continues, and the steps in common. @type {Origin | null} */
	origin = null;
	/** @type {Played[]} */
	history = [];
	/** @type {(string | null)[]} */
	snapshots = [];
	/** @type {string | null} */
	why = null;
	/** @type {unknown} */
	state = null;
	/** @type {string | null} */
	mcpUrl = null;
	/** @type {Tool[]} */
	tools = [];
	/** @type {{html: string, app: AppView} | null} */
	view = null;
	/** @type {{name: string, card: ToolCard} | null} */
	open = null;
	/** The forms of the tools, which keep what was typed. @type {Map<string, {schema: string, card: ToolCard}>} */
	cards = new Map();
	/** What was typed before the page was loaded anew. @type {Record<string, Draft>} */
	drafts = {};
	/** What was saved last, as a sentence. */
	saved = "";
	/** What is being done, while nothing else can be. */
	doing = "";
	/** @type {Call | null} */
	pending = null;
	over = false;
	/** The answers of the reset and of the last frame that had an observation. @type {Observed | null} */
	first = null;
	/** @type {Observed | null} */
	last = null;
	#ended = new AbortController();
	#viewed = new AbortController();
	#timer = 0;
	#keep = () => {
		clearTimeout(this.#timer);
		this.#timer = setTimeout(() => this.keep(), 300);
	};

	/** A call that a model proposes, which the form has. @type {Call | null} */
	proposed = null;

	/** @param {any} metadata @param {{models: string[], actions: Tool[], reset: Schema}} offered @param {boolean} recorded */
	constructor(metadata, { models, actions, reset }, recorded) {
		const { signal } = this.#ended;
		this.models = models.length ? modelCard(this, models, recorded) : null;
		this.name = metadata.name;
		this.actions = actions;
		this.signal = signal;
		this.setup = setupForm(metadata, reset, async (reset) => { await this.begin(reset); }, signal);
		this.begun = el("summary", "Begin an episode");
		this.fold = el("details.card", { open: true }, this.begun, this.setup.element);
		this.lost = el("div", { role: "alert" });
		this.prompt = region("div.card.prose", "Prompt");
		this.prompt.hidden = true;
		this.status = el("div.card.bar", { hidden: true });
		this.agent = el("details.card", { hidden: true });
		this.list = new ToolList((name) => this.select(name, undefined, true));
		this.form = el("div.pane", { role: "region", aria: "Form of the tool" });
		this.running = el("section.card", { aria: "Running", hidden: true });
		this.own = cardOf("View");
		this.own.hidden = true;
		this.result = el("section", { aria: "Result", "aria-live": "polite" });
		this.past = el("ol.list");
		this.saving = this.savingCard();
		this.hint = el("p.empty", "Start an episode to see the tools and call them.");
		this.board = el("div.columns.board", { hidden: true },
			el("div.pane.card", { role: "region", aria: "Tools" }, el("h2", "Tools"), this.list.search, this.list.list), this.form,
			region("div.pane", "Results", this.running, this.own, this.result, cardOf("History", el("h2", "History"), this.past), this.saving));
		const [lead = "", ...more] = String(metadata.description ?? "").split("\n\n");
		this.element = el("div", el("h1", "Play ", el("code", metadata.name)), muted(lead),
			more.length > 0 && el("details.card", el("summary", ABOUT), region("pre.prose", ABOUT, more.join("\n\n"))),
			this.lost, this.fold, this.prompt, this.status, this.agent, this.models, this.hint, this.board);
		this.form.addEventListener("input", this.#keep);
		this.form.addEventListener("change", this.#keep);
		// A call ends with its socket. Everything else is there again after a reload.
		addEventListener("beforeunload", (event) => {
			if (this.pending) event.preventDefault();
		}, { signal });
		addEventListener("pagehide", () => {
			this.keep();
			this.session?.rest();
		}, { signal });
	}

	/** The page is shown, after it was left or not. */
	arrive() {
		this.session?.wake();
		if (this.view) this.showView(this.view.html); // A frame that is moved is loaded anew.
	}

	/** The page is left. An episode that is over needs no place on the server. */
	leave() {
		if (this.over && !this.doing) this.session?.rest();
	}

	end_page() {
		this.#ended.abort();
		this.#viewed.abort();
		clearTimeout(this.#timer);
		this.session?.close();
	}

	keep() {
		const { session, first, last, name, reset, address, origin, history, snapshots, why, state, over, mcpUrl, pending } = this;
		const drafts = { ...this.drafts };
		for (const [tool, { card }] of this.cards) drafts[tool] = card.draft();
		if (session && first && last) {
			keeping.keep({ id: session.id, first, last, name, reset, address, origin, history, snapshots, why, state, over, mcpUrl, pending,
				drafts, recent: this.list.recent, open: this.open?.name ?? "" });
		}
	}

	/** Go on with the episode that this tab had before it was loaded anew. @param {Kept} before */
	async takeUp({ id, drafts, recent, open, pending, first, last, mcpUrl, ...more }) {
		Object.assign(this, more, { drafts, first });
		this.list.recent = recent;
		this.session = this.joined(id);
		this.showBegun(first);
		this.showEpisode({ ...last, info: { ...last.info, mcp_url: mcpUrl } });
		if (this.history.length) this.showPlayed(this.history.length - 1);
		const there = await this.alone("taking up the episode", async (session) => {
			const state = await session.ask("state");
			if (state.episode_id !== last.info?.episode_id) throw new ApiError("This session has begun another episode.", "SESSION_LOST", 0);
			const known = this.state;
			this.state = state;
			await this.listTools(session);
			this.select(open);
			if (pending) this.offer(`${pending.name} was running when the page was loaded anew. It may have been cancelled: its result is not in the history.`, []);
			else if (!this.over && known && changes(known, state).length) notify("The state has changed since: an agent or another page acted.");
		}, (error) => this.offer(`${error.message} Your calls are still here.`, this.calls));
		if (there && !pending) notify("The episode goes on where this page was left.");
		await this.showOwn();
	}

	get calls() {
		return this.history.map(({ call }) => call);
	}

	/** It is joined when it is asked. @param {string} id */
	joined(id) {
		return new Session(id, (error) => this.lose(error));
	}

	/** Say that the session is gone. @param {ApiError} error */
	lose(error) {
		if (!this.#ended.signal.aborted) this.offer(`${error.message} Your calls are still here.`, this.calls);
	}

	/** @type {AloneDoer} */
	async alone(what, work, refuse) {
		if (this.doing) {
			notify(`Not done: ${what}. The page waits for: ${this.doing}.`);
			return false;
		}
		this.doing = what;
		try {
			if (!this.session || this.session.closed) {
				const session = await Session.open((error) => this.lose(error));
				if (this.#ended.signal.aborted) {
					session.close();
					return false;
				}
				this.snapshots = [];
				this.session = session;
			}
			await work(this.session);
			return true;
		} catch (error) {
			if (!(error instanceof ApiError)) throw error;
			refuse(error);
			return false;
		} finally {
			this.doing = "";
			this.#keep();
		}
	}

	savingCard() {
		return saveCard(() => ({ id: this.session?.id ?? "", prompt: this.prompt.textContent ?? "" }), (text) => { this.saved = text; });
	}

	/** @param {string} record @param {number} step @param {AbortSignal} signal */
	async branch(record, step, signal) {
		const start = await recordedStart(record, step, signal);
		if (!(await this.begin(start.reset, start))) return;
		const { over } = start;
		if (over) this.select(over.call.name, over.call.arguments);
		notify(over ? `The episode is over after step ${step}. This is the step before it, and the form has its call.`
			: `${countText(start.step, "call")} came out as recorded. The episode goes on from there.`);
	}

	/** @param {Plain} reset @param {RecordedStart | null} [start] the step of a record that the episode continues */
	async begin(reset, start = null) {
		const begun = await this.alone("beginning an episode", async (session) => {
			const answer = await (start ? session.ask("branch", { episode_id: start.id, step: start.step }) : session.ask("reset", reset));
			const steps = start ? (await session.ask("trajectory")).steps : [];
			fill(this.lost);
			this.reset = reset;
			this.origin = start ? { id: start.id, step: start.step } : null;
			this.address = start ? `#/play?record=${encodeURIComponent(start.id)}&steps=${start.wanted}` : "#/play";
			if (this.element.isConnected) history.replaceState(null, "", this.address);
			for (const snapshot of this.snapshots.splice(0)) {
				if (snapshot) await session.ask("drop_snapshot", { snapshot_id: snapshot });
			}
			this.history = steps.map((/** @type {Step} */ step, /** @type {number} */ at) => playedOf({ ...step, observation: start?.steps[at]?.observation }));
			const saving = this.savingCard(); // What was typed is of the last episode.
			this.saving.replaceWith(saving);
			this.saving = saving;
			this.why = null;
			this.over = answer.done;
			this.first = start ? { observation: start.observation, reward: null, done: false } : answer;
			this.state = await session.ask("state");
			await this.listTools(session);
			this.showBegun(this.first ?? answer);
			if (this.tools.length) this.select(this.open?.name ?? "");
			this.showEpisode(answer);
			if (steps.length) this.showPlayed(steps.length - 1);
		}, (error) => {
			if (start) return this.refuse(start, error);
			this.fold.open = true;
			this.setup.refuse(error.message, error.body.errors);
		});
		if (begun) await this.showOwn();
		return begun;
	}

	/** Say why a record cannot be continued: the first difference, if the environment has changed. @type {StartRefuser} */
	refuse({ reset, steps }, error) {
		this.reset = reset;
		this.board.hidden = this.status.hidden = this.over = true;
		this.offer(error.message, steps.slice(0, error.body.errors?.[0]?.loc[1] ?? 0).map((step) => playedOf(step).call), refusalOf(error));
	}

	/** @param {Session} session */
	async listTools(session) {
		const listed = this.over ? null : await session.ask("step", { type: "list_tools" });
		if (!this.over || !this.tools.length) this.tools = [...listed?.observation.tools ?? [], ...this.actions];
		this.showTools();
	}

	/** @param {Observed} answer */
	showBegun(answer) {
		this.hint.hidden = true;
		this.board.hidden = false;
		if (this.models) this.models.hidden = false;
		const { metadata = {}, ...observation } = answer.observation;
		const { prompt = answer.metadata?.prompt, ...more } = metadata;
		fill(this.prompt, typeof prompt === "string" && prompt);
		this.prompt.hidden = !this.prompt.textContent;
		const seen = { ...observation, ...more };
		this.show("Start", Object.keys(seen).length > 0 && jsonOf(seen), el("h3", "State"), jsonOf(this.state));
		const { task, seed } = this.reset;
		fill(this.begun, "Begin another episode", el("span.muted", ` (this one: ${listText(
			task !== undefined && `task ${typeof task === "string" ? task : "of a record"}`, seed !== undefined && `seed ${written(seed)}`) || "no seed"})`));
	}

	async showOwn() {
		const uri = this.tools.map((tool) => tool.meta?.ui?.resourceUri).find((each) => typeof each === "string");
		this.showView(uri && this.mcpUrl ? await readView(this.mcpUrl, uri) : null);
	}

	/** @param {Call} call */
	call(call) {
		return this.alone(`calling ${call.name}`, async (session) => {
			const running = new AbortController();
			try {
				const snapshot = await this.snapshot(session);
				const started = performance.now();
				this.pending = call;
				this.list.used(call.name);
				this.keep();
				void showRunning(this.running, call.name, session.id, running.signal);
				const answer = await (call.by ? callBy(session.id, call) : session.ask("step", actionOf(call)));
				const took = (performance.now() - started) / 1000;
				const before = this.state;
				this.snapshots.push(snapshot);
				this.state = await session.ask("state");
				const played = { call, answer, took, before, after: this.state };
				this.history.push(played);
				this.showEpisode(answer);
				this.showPlayed(this.history.length - 1);
				this.tellView(played);
				const { error } = answer.observation;
				if (error?.error_type === "invalid_args" && this.open?.name === call.name) this.open.card.refuse(error);
			} finally {
				this.pending = null;
				running.abort();
			}
		}, (error) => fill(this.result, alertOf({ class: "card error" }, error.code === "CANCELLED"
			? `${call.name} was cancelled. The world may have changed: the tool had begun.` : `${error.code}: ${error.message}`)));
	}

	/** Return the id of a snapshot; null, with the reason in `why`, if there can be none. @param {Session} session */
	async snapshot(session) {
		if (this.why !== null || this.over) return null;
		try {
			const oldest = this.snapshots.length - UNDO_DEPTH;
			const dropped = this.snapshots[oldest];
			if (dropped) {
				await session.ask("drop_snapshot", { snapshot_id: dropped });
				this.snapshots[oldest] = null;
			}
			return /** @type {string} */ ((await session.ask("snapshot")).snapshot_id);
		} catch (error) {
			if (!(error instanceof ApiError) || error.code === "SESSION_LOST") throw error;
			this.why = error.message;
			return null;
		}
	}

	/** @type {ResultWriter} */
	show(title, ...children) {
		fill(this.result, el("div.card", el("h2", title), ...children));
	}

	/** Go back to a snapshot, so many calls ago. @type {Restorer} */
	async restore(session, snapshot_id, calls) {
		const answer = await session.ask("restore", { snapshot_id });
		const [undone] = this.history.splice(this.history.length - calls);
		this.snapshots.length -= calls;
		this.state = await session.ask("state");
		this.showEpisode(answer);
		this.showView(this.view?.html ?? null);
		return undone;
	}

	undo() {
		const snapshot = this.snapshots.at(-1);
		/** @param {Error} error */
		const refuse = ({ message }) => notify(`Not undone: ${message}`);
		if (!snapshot) return this.origin && void this.branch(this.origin.id, this.origin.step - 1, this.signal).catch(refuse);
		void this.alone("undoing a step", async (session) => {
			const undone = await this.restore(session, snapshot, 1);
			this.show(`Undone: ${undone?.call.name}`, el("h3", "State"), jsonOf(this.state));
		}, refuse);
	}

	/** Show what an end would earn: the episode ends, and goes on from where it was. */
	scoreNow() {
		void this.alone("scoring the episode", async (session) => {
			const snapshot = await this.snapshot(session);
			if (!snapshot) throw new ApiError(this.why ?? "the episode is over", "NOT_SUPPORTED", 0);
			const ended = await session.ask("end", { reason: "score now" });
			try {
				const trajectory = await session.ask("trajectory");
				await this.restore(session, snapshot, 0);
				const evidence = await evidenceOf(trajectory);
				this.show(`If it ended now: return ${returnText(trajectory)}`, evidence ?? muted("Nothing scores the end of this episode."));
			} catch (error) {
				this.showEpisode({ ...ended, done: true });
				throw error;
			}
			await session.ask("drop_snapshot", { snapshot_id: snapshot });
		}, (error) => notify(`Not scored: ${error.message}`));
	}

	end() {
		return this.alone("ending the episode", async (session) => {
			const answer = await session.ask("end", {});
			this.showEpisode({ ...answer, done: true });
			this.show("The episode is over", await evidenceOf(await session.ask("trajectory")), jsonOf(answer.info ?? {}));
		}, (error) => notify(`Not ended: ${error.message}`));
	}

	/** @param {Replay} replay */
	async replay({ reset, calls }) {
		if (!(await this.begin(reset))) return;
		for (const call of calls) if (this.over || !(await this.call(call))) break;
		notify(`${this.history.length} of ${countText(calls.length, "call")} were made again.`);
	}

	/** @type {Offer} */
	offer(why, calls, about) {
		const { reset } = this;
		fill(this.lost, el("div.card.bar", el("p.warn", why),
			button("Start again", () => this.begin(reset)),
			calls.length > 0 && button(`Play ${countText(calls.length, "call")} again`, () => this.replay({ reset, calls }), { class: "primary" }), about));
	}

	showTools() {
		this.list.show(this.tools, this.open?.name ?? "");
	}

	/** @type {ToolSelector} */
	select(name, values, chosen) {
		const tool = this.tools.find((each) => each.name === name) ?? this.tools[0];
		if (!tool) return;
		try {
			const card = this.cardOf(tool);
			if (values) card.write(values);
			card.end(this.over);
			this.open = { name: tool.name, card };
			fill(this.form, card.element);
		} catch (error) {
			// A schema that leads nowhere is the author's fault: the other tools can still be played.
			fill(this.form, alertOf({ class: "card error" }, `${tool.name}: ${messageOf(error)}`));
		}
		this.showTools();
		this.#keep();
		this.form.scrollTop = 0;
		if (chosen && matchMedia("(max-width: 40rem)").matches) this.form.scrollIntoView({ block: "start" });
	}

	/** Put the call that a model proposes into the form. @param {Call} call */
	propose(call) {
		this.select(call.name, call.arguments, true);
		this.proposed = call;
	}

	/** @param {Tool} tool */
	cardOf(tool) {
		const schema = written(tool.input_schema) ?? "";
		const known = this.cards.get(tool.name);
		if (known?.schema === schema) return known.card;
		const card = toolCard(tool, async (value) => {
			const { proposed } = this;
			const by = proposed?.name !== tool.name ? undefined : changes(proposed.arguments, value).length ? "person" : proposed.by;
			if (await this.call({ name: tool.name, arguments: value, own: tool.own, by })) this.proposed = null;
		});
		const draft = this.drafts[tool.name];
		if (draft && !known) card.write(draft.value, draft.json);
		this.cards.set(tool.name, { schema, card });
		return card;
	}

	/** Show how the episode stands after an answer. @param {Observed} answer */
	showEpisode(answer) {
		this.over = answer.done;
		this.fold.open = this.over;
		this.last = answer;
		this.open?.card.end(this.over);
		this.showHistory();
		const { info = {}, done } = answer;
		const status = info.episode_status?.code;
		this.status.hidden = false;
		refill(this.status,
			el("div.bar", { role: "status" }, el(!done ? "span.chip.good" : answer.truncated ? "span.chip.warn" : "span.chip", endText(answer, done ? "over" : "running")),
				el("span", "Return ", el("strong", numberText(info.return))),
				el("span", "Step ", el("strong", this.history.length)),
				status && status !== "completed" && el("span.warn", status), info.reason && el("span", info.reason),
				this.origin && link(`#/${recordPath(this.origin.id)}?step=${this.origin.step}`, `Branch of ${this.origin.id} after step ${this.origin.step}`),
				el("span.muted.wide", "Episode ", el("code", info.episode_id))),
			listOf(info.problems),
			el("div.bar.end", button("Undo", () => this.undo(), { disabled: !(this.snapshots.at(-1) ?? (!this.snapshots.length && this.origin?.step)), title: this.why }),
				button("Score now", () => this.scoreNow(), { disabled: this.over || this.why !== null, title: this.why }),
				button("End", () => this.end(), { disabled: this.over })),
			this.why !== null && muted(`No undo: ${this.why}`));
		const url = typeof info.mcp_url === "string" ? new URL(info.mcp_url, BASE).href : null;
		if (!url || url === this.mcpUrl) return;
		this.mcpUrl = url;
		this.agent.hidden = false;
		fill(this.agent, el("summary", "Let an MCP agent play this episode"),
			el("p", el("code", url), " ", copyButton(url, "the MCP address")), jsonOf({ mcpServers: { [this.name]: { type: "http", url } } }));
	}

	/** @param {string | null} html */
	showView(html) {
		this.own.hidden = !html;
		this.#viewed.abort();
		this.#viewed = new AbortController();
		this.view = html ? { html, app: new AppView(html, (call) => this.callFor(call), this.#viewed.signal) } : null;
		fill(this.own, this.view?.app.element);
		for (const played of this.history) this.tellView(played);
	}

	/** @param {Played} played */
	tellView({ call, answer: { observation } }) {
		if (observation.result) this.view?.app.show(call, observation.result);
	}

	/** @type {ViewCaller} */
	async callFor(call) {
		return (await this.call(call)) ? this.history.at(-1)?.answer.observation.result ?? null : null;
	}

	/** @param {number} index */
	showPlayed(index) {
		fill(this.result, playedCard(this.history, index, this.reset));
		this.result.querySelector("h2")?.scrollIntoView({ block: "nearest" });
	}

	showHistory() {
		refill(this.past, ...this.history.map(({ call, answer: { reward } }, index) => {
			const named = (/** @type {string} */ what) => ({ class: "quiet", aria: `${what}: step ${index + 1}, ${call.name}` });
			return el("li", button(`${index + 1}. ${call.name}${call.by ? ` by ${call.by}` : ""}${reward === null ? "" : `: ${numberText(reward)}`}`, () => this.showPlayed(index)),
				button("Call again", () => this.call(call), { ...named("Call again"), disabled: this.over }),
				button("Edit", () => this.select(call.name, call.arguments), named("Edit")));
		}), !this.history.length && el("li.muted", "No calls so far."));
	}
}
