/** One session as it runs: an event stream, which is resumed where it was lost, and steps drawn once a frame. */

import { ApiError, ask, stream } from "./api.js";
import { Charts } from "./chart.js";
import { jsonOf } from "./content.js";
import { button, el, fill, link, messageOf, muted } from "./dom.js";
import { durationText, momentText, numberText, taskText } from "./format.js";
import { after, onceAFrame } from "./frame.js";
import { finder } from "./record.js";
import { StepList, statusText } from "./step.js";

/** Milliseconds before the first and the later attempts to connect again. */
const FIRST = 500;
const MOST = 10_000;
/** The number of pixels from the end of the page up to which the newest step is followed. */
const NEAR = 60;
const OVER = "The session is over.";

/** Show a session until the page is left. @param {string} id @param {{root: HTMLElement}} context @param {AbortSignal} signal */
export async function watch(id, { root }, signal) {
	await new Watcher(id, root, signal).follow();
}

class Watcher {
	/** What has come since the last frame. @type {StreamEvent[]} */
	#news = [];
	#lastId = "";
	#episode = "";
	#closed = false;
	#pinned = true;
	#scrolled = 0;
	/** @type {Trajectory | null} */
	#trajectory = null;
	#return = 0;
	#scored = false;
	#paused = false;

	/** @param {string} id @param {HTMLElement} root @param {AbortSignal} signal */
	constructor(id, root, signal) {
		this.path = `sessions/${encodeURIComponent(id)}`;
		this.signal = signal;
		this.connection = el("p", { role: "status" }, "Connecting");
		this.facts = el("p", {});
		this.reset = el("div", {});
		this.charts = new Charts(false);
		this.pause = button("Pause", () => this.#pause(), { hidden: true });
		this.cancel = button("Cancel", () => this.#cancel());
		this.steps = new StepList("", signal);
		this.newest = button("Follow the newest step", () => this.#pin(), { class: "primary follow", hidden: true });
		fill(root, el("h1", "Session ", el("code", id)), el("p", link("#/live", "All sessions")),
			el("section", { class: "card watched bar", "aria-label": "Episode" }, this.connection, this.facts, el("div", { class: "bar end" }, this.pause, this.cancel)),
			this.charts.element, finder(this.steps, signal), this.reset, this.steps.element, this.newest);
		this.draw = onceAFrame(() => this.#draw(), signal);
		addEventListener("scroll", () => this.#noticeScroll(), { signal, passive: true });
		// A row that gets its contents later makes the page longer.
		const sizes = new ResizeObserver(() => this.#stay());
		sizes.observe(this.steps.element);
		signal.addEventListener("abort", () => sizes.disconnect());
		const clock = setInterval(() => {
			this.#showFacts();
			if (!this.#closed) void this.#lookAtPause();
		}, 1000);
		signal.addEventListener("abort", () => clearInterval(clock));
	}

	/** End the session if the visitor means it. */
	async #cancel() {
		if (confirm("End this session? Its agent loses it.")) await this.#order("", { method: "DELETE" });
	}

	/** Pause the session, or resume it. */
	async #pause() {
		await this.#order(this.#paused ? "/resume" : "/pause", { method: "POST", body: {} });
		await this.#lookAtPause();
	}

	/** Ask something of the session, and say why if it is not done. @param {string} what @param {AskOptions} options */
	async #order(what, options) {
		try {
			await ask(this.path + what, { ...options, signal: this.signal });
		} catch (error) {
			if (!this.signal.aborted) this.#say(`Not done: ${messageOf(error)}`);
		}
	}

	/** Show that nothing more will come. @param {string} why */
	#over(why) {
		this.#closed = true;
		this.#say(why);
		this.cancel.disabled = this.pause.disabled = true;
	}

	/** Show whether the session is paused, which others may do too. The stream tells if it is lost. */
	async #lookAtPause() {
		try {
			/** @type {SessionInfo} */
			const { paused_until: until } = await ask(this.path, { signal: this.signal });
			this.#paused = until !== null;
			this.pause.hidden = until === undefined;
			const text = until ? `Resume (paused until ${momentText(until).slice(-8)})` : "Pause";
			if (this.pause.textContent !== text) fill(this.pause, text);
		} catch (error) {
			if (!(error instanceof ApiError) && !this.signal.aborted) throw error;
		}
	}

	/** Read the stream until the session is closed or the page is left. */
	async follow() {
		const { path } = this;
		let pause = FIRST;
		let lost = false;
		while (!this.signal.aborted && !this.#closed) {
			let why = "The server ended the stream.";
			try {
				if (lost) {
					// A stream without news is silent: the session itself says that the server is there again.
					await ask(path, { signal: this.signal });
					this.#say(`Connected again. The steps go on after step ${this.#newestNumber()}.`);
					lost = false;
				}
				await stream(`${path}/events`, (event) => {
					if (this.#lastId === "") this.#say("Live");
					if (event.id) this.#lastId = event.id;
					if (event.event === "closed") this.#closed = true;
					pause = FIRST;
					this.#news.push(event);
					this.draw();
				}, { signal: this.signal, lastEventId: this.#lastId });
			} catch (error) {
				if (this.signal.aborted) return;
				if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
					this.#over(error.status === 404 ? OVER : error.message);
					return;
				}
				// A connection that breaks while it is read is a TypeError of the browser.
				if (!(error instanceof ApiError) && !(error instanceof TypeError)) throw error;
				why = error.message;
			}
			if (this.#closed || this.signal.aborted) break;
			lost = true;
			this.#say(`Connection lost: ${why} Connecting again in ${durationText(pause / 1000)}.`);
			await after(pause, this.signal);
			pause = Math.min(MOST, pause * 2);
		}
		if (!this.signal.aborted) this.#over(OVER);
	}

	#newestNumber() {
		const count = this.steps.steps.length;
		return count ? this.steps.number(count - 1) : this.steps.dropped;
	}

	#draw() {
		/** @type {Step[]} */
		let steps = [];
		for (const { event, data } of this.#news.splice(0)) {
			const { episode, trajectory, step } = /** @type {{episode: string, trajectory: Trajectory, step: Step}} */ (data);
			if (event === "episode") {
				steps = [];
				this.#begin(episode, trajectory);
			} else if (event === "step" && episode === this.#episode) {
				const last = steps[steps.length - 1] ?? this.steps.steps[this.steps.steps.length - 1];
				// A stream that was resumed may repeat a step.
				if (last?.position !== undefined && step.position !== undefined && step.position <= last.position) continue;
				steps.push(step);
				if (step.reward) {
					this.#scored = true;
					this.#return += step.reward.value;
				}
			} else if (event === "end" && episode === this.#episode) {
				this.#trajectory = trajectory;
			}
		}
		if (steps.length) this.steps.append(steps);
		this.#showFacts();
		if (this.#trajectory) this.charts.draw(this.steps.steps, this.#trajectory);
		this.#stay();
	}

	/** @param {string} episode @param {Trajectory} trajectory */
	#begin(episode, trajectory) {
		this.#episode = episode;
		this.#trajectory = trajectory;
		const { observation, dropped } = trajectory;
		const first = observation?.reward;
		this.#scored = typeof first === "number";
		this.#return = typeof first === "number" ? first : 0;
		this.steps.begin({ observation, dropped });
		fill(this.reset, dropped > 0 && muted(`The first ${dropped} steps are no longer at the server.`),
			observation && el("details", { class: "card" }, el("summary", "Reset"), jsonOf(observation)));
	}

	#showFacts() {
		const trajectory = this.#trajectory;
		if (!trajectory) return;
		const until = trajectory.ended_at ?? Date.now() / 1000;
		const said = [taskText(trajectory.task) && `Task ${taskText(trajectory.task)}`, `episode ${trajectory.episode_id}`,
			`step ${this.#newestNumber()}`,
			trajectory.ended_at ? `sum of rewards ${numberText(trajectory.total_reward)}`
				: trajectory.dropped ? null : `return ${this.#scored ? numberText(this.#return) : "none"}`,
			trajectory.status && `status ${statusText(trajectory.status)}`, trajectory.reason,
			trajectory.ended_at ? `over after ${durationText(Math.max(0, until - trajectory.started_at))}`
				: `running for ${durationText(Math.max(0, Math.round(until - trajectory.started_at)))}`].filter(Boolean).join(", ");
		if (this.facts.textContent !== said) fill(this.facts, said);
	}

	/** @param {string} text */
	#say(text) {
		if (this.connection.textContent !== text) fill(this.connection, text);
	}

	#noticeScroll() {
		const page = document.documentElement;
		const atEnd = scrollY + innerHeight >= page.scrollHeight - NEAR;
		if (atEnd) this.#pinned = true;
		else if (scrollY < this.#scrolled) this.#pinned = false;
		this.#scrolled = scrollY;
		this.newest.hidden = this.#pinned;
	}

	#pin() {
		this.#pinned = true;
		this.newest.hidden = true;
		this.#stay();
	}

	/** Keep the newest step in view if the reader has not scrolled up. */
	#stay() {
		if (!this.#pinned) return;
		scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
	}
}
