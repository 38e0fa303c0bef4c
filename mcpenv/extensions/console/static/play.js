/** The page that plays an episode in a session of the visitor's own. */

import { ApiError, BASE, ask } from "./api.js";
import { actionOf, mcpConfig } from "./calls.js";
import { changes } from "./changes.js";
import { jsonOf } from "./content.js";
import { alertOf, button, cardOf, copyButton, el, fill, listOf, messageOf, muted, notify, refill, region } from "./dom.js";
import { countText, endText, numberText } from "./format.js";
import { playedCard, stepOf } from "./played.js";
import { recordedCalls } from "./record.js";
import { resolved, withoutProperties } from "./schema.js";
import { setupForm } from "./setup.js";
import { Session } from "./socket.js";
import { answerOf } from "./step.js";
import { toolCard } from "./tool.js";
import { AppView, readView } from "./view.js";

/** The number of snapshots that are held for undoing. */
const UNDO_DEPTH = 10;
const ABOUT = "About this environment";

/** The episode that goes on with new code. @type {Replay | null} */
let carried = null;

/** @type {Page} */
export async function page({ root, query, session }, signal) {
	const [metadata, schema] = await Promise.all([ask("metadata", { signal }), ask("schema", { signal })]);
	if (signal.aborted) return;
	const play = new Play(root, metadata, schema, signal, session.needs_token);
	if (carried) {
		const { reset, calls } = carried;
		carried = null;
		if (await play.begin(reset)) play.offer("The code was reloaded, and the episode began again.", calls);
	}
	const record = query.get("record");
	if (!record) return;
	await play.replay(await recordedCalls(record, Number(query.get("steps") ?? Infinity), signal));
}

class Play {
	/** @type {Session | null} */
	session = null;
	/** @type {Plain} */
	reset = {};
	/** @type {Played[]} */
	history = [];
	/** The snapshots before the last steps, null where there is none. @type {(string | null)[]} */
	snapshots = [];
	/** The reason why nothing can be undone. @type {string | null} */
	why = null;
	/** @type {unknown} */
	state = null;
	/** @type {string | null} */
	mcpUrl = null;
	/** @type {Tool[]} */
	tools = [];
	/** The environment's own view, if it has one. @type {{html: string, app: AppView} | null} */
	view = null;
	/** @type {{name: string, card: ToolCard} | null} */
	open = null;
	busy = false;
	over = false;

	/** @param {HTMLElement} root @param {any} metadata @param {any} schema @param {AbortSignal} signal @param {boolean} guarded */
	constructor(root, metadata, schema, signal, guarded) {
		this.guarded = guarded;
		this.name = metadata.name;
		this.actions = ownActions(schema.action ?? {});
		this.signal = signal;
		this.setup = setupForm(metadata, schema.reset ?? {}, async (reset) => { await this.begin(reset); }, signal);
		this.lost = el("div", { role: "alert" });
		this.prompt = region("div.card.prose", "Prompt");
		this.prompt.hidden = true;
		this.status = el("div.card.bar", { hidden: true });
		this.agent = el("details.card", { hidden: true });
		this.search = el("input", { type: "search", "aria-label": "Search tools", placeholder: "Search (/)",
			oninput: () => this.showTools() });
		this.list = el("ul.list");
		this.form = el("div");
		this.own = cardOf("View");
		this.own.hidden = true;
		this.result = el("section", { "aria-label": "Result", "aria-live": "polite" });
		this.past = el("ol.list");
		this.hint = el("p.empty", "Start an episode to see the tools and call them.");
		this.board = el("div.columns", { hidden: true },
			cardOf("Tools", el("h2", "Tools"), this.search, this.list), this.form,
			el("div", this.own, this.result, cardOf("History", el("h2", "History"), this.past)));
		const [lead = "", ...more] = String(metadata.description ?? "").split("\n\n");
		fill(root, el("h1", "Play ", el("code", metadata.name)), muted(lead),
			more.length > 0 && el("details.card", el("summary", ABOUT), region("pre.prose", ABOUT, more.join("\n\n"))),
			this.lost, this.setup.element, this.prompt, this.status, this.agent, this.hint, this.board);
		signal.addEventListener("abort", () => this.session?.close());
		for (const name of ["beforeunload", "page-left"]) {
			addEventListener(name, (event) => {
				if (this.session && !this.session.closed && !this.over) event.preventDefault();
			}, { signal });
		}
		addEventListener("code-reloaded", () => {
			if (this.session) carried = { reset: this.reset, calls: this.calls };
		}, { signal });
	}

	get calls() {
		return this.history.map(({ call }) => call);
	}

	/**
	 * Do something with the session unless something else is being done.
	 * @param {(session: Session) => Promise<void>} work
	 * @param {(error: ApiError) => void} refuse
	 * @returns {Promise<boolean>} false if it was not done
	 */
	async alone(work, refuse) {
		if (this.busy) return false;
		this.busy = true;
		try {
			if (!this.session || this.session.closed) {
				const session = await Session.open((error) => {
					if (!this.signal.aborted) this.offer(`${error.message} Your calls are still here.`, this.calls);
				});
				if (this.signal.aborted) {
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
			this.busy = false;
		}
	}

	/** @param {Plain} reset */
	begin(reset) {
		return this.alone(async (session) => {
			const answer = await session.ask("reset", reset);
			fill(this.lost);
			this.reset = reset;
			for (const snapshot of this.snapshots.splice(0)) {
				if (snapshot) await session.ask("drop_snapshot", { snapshot_id: snapshot });
			}
			this.history = [];
			this.why = null;
			this.over = answer.done;
			this.state = await session.ask("state");
			const listed = answer.done ? null : await session.ask("step", { type: "list_tools" });
			this.tools = [...listed?.observation.tools ?? [], ...this.actions];
			this.hint.hidden = true;
			this.board.hidden = false;
			this.showTools();
			if (this.tools.length) this.select(this.open?.name ?? "");
			this.showEpisode(answer);
			const { metadata = {}, ...observation } = answer.observation;
			const { prompt = answer.metadata?.prompt, ...more } = metadata;
			fill(this.prompt, typeof prompt === "string" && prompt);
			this.prompt.hidden = !this.prompt.textContent;
			const seen = { ...observation, ...more };
			this.show("Start", Object.keys(seen).length > 0 && jsonOf(seen), el("h3", "State"), jsonOf(this.state));
			const uri = this.tools.map((tool) => tool.meta?.ui?.resourceUri).find((each) => typeof each === "string");
			const html = uri && this.mcpUrl ? await readView(this.mcpUrl, uri) : null;
			this.showView(html);
		}, (error) => this.setup.refuse(error.message, error.body.errors));
	}

	/** @param {Call} call */
	call(call) {
		return this.alone(async (session) => {
			const snapshot = await this.snapshot(session);
			const started = performance.now();
			const answer = await session.ask("step", actionOf(call));
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
		}, (error) => fill(this.result, alertOf({ class: "card error" }, `${error.code}: ${error.message}`)));
	}

	/** Return the id of a snapshot of the episode as it stands; null, with the reason in `why`, if there can be none. @param {Session} session */
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

	/** Show a card as the result. @param {string} title @param {...Child} children */
	show(title, ...children) {
		fill(this.result, el("div.card", el("h2", title), ...children));
	}

	undo() {
		const snapshot = this.snapshots.at(-1);
		if (!snapshot) return;
		void this.alone(async (session) => {
			const answer = await session.ask("restore", { snapshot_id: snapshot });
			this.snapshots.pop();
			const undone = this.history.pop();
			this.showView(this.view?.html ?? null);
			this.state = await session.ask("state");
			this.showEpisode(answer);
			this.show(`Undone: ${undone?.call.name}`, el("h3", "State"), jsonOf(this.state));
		}, (error) => notify(`Not undone: ${error.message}`));
	}

	end() {
		void this.alone(async (session) => {
			const answer = await session.ask("end", {});
			this.showEpisode({ ...answer, done: true });
			this.show("The episode is over", jsonOf(answer.info ?? {}));
		}, (error) => notify(`Not ended: ${error.message}`));
	}

	/** Begin an episode and make calls. @param {Replay} replay */
	async replay({ reset, calls }) {
		if (!(await this.begin(reset))) return;
		for (const { expected, ...call } of calls) {
			if (this.over || !(await this.call(call))) break;
			const played = this.history.at(-1);
			if (played && expected !== undefined && changes(expected, answerOf(stepOf(played, 0))).length) {
				notify(`Call ${this.history.length} came out differently than before. The calls after it were not made.`);
				return;
			}
		}
		notify(`${this.history.length} of ${countText(calls.length, "call")} were made again.`);
	}

	/** Say why the episode is another one, and offer its calls. @param {string} why @param {Call[]} calls */
	offer(why, calls) {
		const { reset } = this;
		fill(this.lost, el("div.card.bar", el("p.warn", why),
			button("Start again", () => this.begin(reset)),
			calls.length > 0 && button(`Play ${countText(calls.length, "call")} again`, () => this.replay({ reset, calls }), { class: "primary" })));
	}

	showTools() {
		const wanted = this.search.value.toLowerCase();
		const shown = this.tools.filter((tool) =>
			`${tool.name} ${tool.title ?? ""} ${tool.description ?? ""}`.toLowerCase().includes(wanted));
		refill(this.list, ...shown.map((tool) => el("li", button(tool.own ? `${tool.name} (action)` : tool.name, () => this.select(tool.name),
			{ "aria-pressed": String(this.open?.name === tool.name), title: tool.description }))),
		!shown.length && el("li.muted", this.tools.length ? "No tool has this text." : "No tools."));
	}

	/** Show the form of a tool, the first one if there is none of that name. @param {string} name @param {Plain} [values] */
	select(name, values) {
		const tool = this.tools.find((each) => each.name === name) ?? this.tools[0];
		if (!tool) return;
		try {
			const card = toolCard(tool, async (value) => {
				await this.call({ name: tool.name, arguments: value, own: tool.own });
			});
			if (values) card.write(values);
			card.end(this.over);
			this.open = { name: tool.name, card };
			fill(this.form, card.element);
		} catch (error) {
			// A schema that leads nowhere is the author's fault: the other tools can still be played.
			fill(this.form, alertOf({ class: "card error" }, `${tool.name}: ${messageOf(error)}`));
		}
		this.showTools();
	}

	/** Show how the episode stands after an answer. @param {Observed} answer */
	showEpisode(answer) {
		this.over = answer.done;
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
				el("span.muted.wide", "Episode ", el("code", info.episode_id))),
			listOf(info.problems),
			el("div.bar.end", button("Undo", () => this.undo(), { disabled: !this.snapshots.at(-1), title: this.why }),
				button("End", () => this.end(), { disabled: this.over })),
			this.why !== null && muted(`No undo: ${this.why}`));
		const url = typeof info.mcp_url === "string" ? new URL(info.mcp_url, BASE).href : null;
		if (!url || url === this.mcpUrl) return;
		this.mcpUrl = url;
		this.agent.hidden = false;
		fill(this.agent, el("summary", "Let an MCP agent play this episode"),
			el("p", el("code", url), " ", copyButton(url, "the MCP address")), jsonOf(mcpConfig(this.name, url)));
	}

	/** Show the environment's own view of the calls so far. @param {string | null} html */
	showView(html) {
		this.own.hidden = !html;
		this.view = html ? { html, app: new AppView(html, (call) => this.callFor(call), this.signal) } : null;
		fill(this.own, this.view?.app.element);
		for (const played of this.history) this.tellView(played);
	}

	/** Tell the environment's own view of a call. @param {Played} played */
	tellView({ call, answer: { observation } }) {
		if (observation.result) this.view?.app.show(call, observation.result);
	}

	/** Make a call for the view. @param {Call} call @returns {Promise<Result | null>} */
	async callFor(call) {
		return (await this.call(call)) ? this.history.at(-1)?.answer.observation.result ?? null : null;
	}

	/** @param {number} index */
	showPlayed(index) {
		fill(this.result, playedCard(this.history, index, this.reset, this.guarded));
		this.result.querySelector("h2")?.scrollIntoView({ block: "nearest" });
	}

	showHistory() {
		refill(this.past, ...this.history.map(({ call, answer: { reward } }, index) => {
			const named = (/** @type {string} */ what) => ({ class: "quiet", "aria-label": `${what}: step ${index + 1}, ${call.name}` });
			return el("li", button(`${index + 1}. ${call.name}${reward === null ? "" : `: ${numberText(reward)}`}`, () => this.showPlayed(index)),
				button("Call again", () => this.call(call), { ...named("Call again"), disabled: this.over }),
				button("Edit", () => this.select(call.name, call.arguments), named("Edit")));
		}), !this.history.length && el("li.muted", "No calls so far."));
	}
}

/** Return the environment's own actions as tools are described. @param {Schema} schema of all actions @returns {Tool[]} */
function ownActions(schema) {
	return (schema.anyOf ?? schema.oneOf ?? [schema]).flatMap((each) => {
		const member = resolved(each, schema);
		const name = member.properties?.type?.const;
		if (name === undefined || name === "call_tool" || name === "list_tools") return [];
		return [{ name, description: member.description, own: true,
			input_schema: { ...withoutProperties(member, ["type", "metadata"]), $defs: schema.$defs } }];
	});
}
