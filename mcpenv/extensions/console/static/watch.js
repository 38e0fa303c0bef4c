/** One session as it runs: an event stream that is resumed, and steps drawn once a frame. */

import { ApiError, ask, stream } from "./api.js";
import { Charts } from "./chart.js";
import { button, el, fill, link, messageOf, tell } from "./dom.js";
import { evidenceOf } from "./evidence.js";
import { durationText, listText, momentText, numberText, taskText } from "./format.js";
import { after, onceAFrame } from "./frame.js";
import { finder } from "./record.js";
import { StepList, statusText } from "./step.js";
import { TakeOver } from "./take_over.js";

/** Milliseconds before the first and the later attempts to connect again. */
const FIRST = 500;
const MOST = 10_000;
/** Pixels from the end of the page up to which the newest step is followed. */
const NEAR = 60;
const OVER = "The session is over.";

export class Watcher {
	/** What has come since the last frame. @type {StreamEvent[]} */
	#news = [];
	#lastId = "";
	#episode = "";
	#closed = false;
	#scrolled = 0;
	/** @type {Trajectory | null} */
	#trajectory = null;
	/** The sum of the rewards, null before the first. @type {number | null} */
	#return = null;
	#paused = false;

	/** @param {string} id @param {HTMLElement} root @param {AbortSignal} signal */
	constructor(id, root, signal) {
		this.path = `sessions/${encodeURIComponent(id)}`;
		this.signal = signal;
		this.connection = el("p", { role: "status" }, "Connecting");
		this.facts = el("p");
		this.verification = el("div");
		this.charts = new Charts(false);
		this.pause = button("Pause", () => this.#pause(), { hidden: true });
		this.cancel = button("Cancel the session", () => this.#cancel());
		this.acting = new TakeOver(encodeURIComponent(id), (work) => this.#order(work));
		this.steps = new StepList("", signal);
		this.newest = button("Follow the newest step", () => {
			this.newest.hidden = true;
			this.#stay();
		}, { class: "primary follow", hidden: true });
		fill(root, el("h1", "Session ", el("code", id)), el("p", link("#/live", "All sessions")),
			el("section.card.watched.bar", { aria: "Episode" }, this.connection, this.facts, this.acting.holder,
				el("div.bar.end", this.acting.button, this.acting.cancel, this.pause, this.cancel)),
			this.verification, this.charts.element, finder(this.steps, signal), el("div.outlined", this.steps.outline, this.steps.element), this.acting.board, this.newest);
		this.draw = onceAFrame(() => this.#draw(), signal);
		addEventListener("scroll", () => this.#noticeScroll(), { signal, passive: true });
		// A row that gets its contents later makes the page longer.
		const sizes = new ResizeObserver(() => this.#stay());
		sizes.observe(this.steps.element);
		const clock = setInterval(() => {
			this.#showFacts();
			if (!this.#closed) void this.#lookAtPause();
		}, 1000);
		signal.addEventListener("abort", () => {
			sizes.disconnect();
			clearInterval(clock);
		});
	}

	async #cancel() {
		if (confirm("End this session? Its agent loses it.")) await this.#order(() => ask(this.path, { method: "DELETE" }));
	}

	async #pause() {
		await this.#order(() => ask(`${this.path}/${this.#paused ? "resume" : "pause"}`, { method: "POST", body: {} }));
		await this.#lookAtPause();
	}

	/** @type {Orderer} */
	async #order(work) {
		try {
			await work();
		} catch (error) {
			if (!this.signal.aborted) this.#say(`Not done: ${messageOf(error)}`);
		}
	}

	/** Show that nothing more will come. @param {string} why */
	#over(why) {
		this.#closed = true;
		this.#say(why);
		for (const each of [this.cancel, this.pause, this.acting.button, this.acting.cancel]) each.disabled = true;
		this.acting.board.hidden = true;
	}

	/** Show whether the session is paused, which others may do too. The stream tells if it is lost. */
	async #lookAtPause() {
		try {
			const { paused_until: until, held } = await this.acting.look();
			this.#paused = until !== null;
			this.pause.hidden = held !== null;
			const text = until ? `Resume (paused until ${momentText(until).slice(-8)})` : "Pause";
			tell(this.pause, text);
		} catch (error) {
			if (!(error instanceof ApiError) && !this.signal.aborted) throw error;
		}
	}

	async follow() {
		const { path, signal } = this;
		let pause = FIRST;
		let lost = false;
		for (;;) {
			let why = "The server ended the stream.";
			try {
				if (lost) {
					// A stream without news is silent: the session itself says that the server is there again.
					await ask(path, { signal });
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
				}, { signal, lastEventId: this.#lastId });
			} catch (error) {
				if (signal.aborted) return;
				if (!(error instanceof ApiError)) throw error;
				if (error.final) return this.#over(error.status === 404 ? OVER : error.message);
				why = error.message;
			}
			if (signal.aborted) return;
			if (this.#closed) return this.#over(OVER);
			lost = true;
			this.#say(`Connection lost: ${why} Connecting again in ${durationText(pause / 1000)}.`);
			await after(pause, signal);
			pause = Math.min(MOST, pause * 2);
		}
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
				const last = steps.at(-1) ?? this.steps.steps.at(-1);
				// A stream that was resumed may repeat a step.
				if (last?.position !== undefined && step.position !== undefined && step.position <= last.position) continue;
				steps.push(step);
				if (step.reward) this.#return = (this.#return ?? 0) + step.reward.value;
			} else if (event === "end" && episode === this.#episode) {
				this.#trajectory = trajectory;
				// The trajectory of the event has no steps.
				void this.#order(async () => {
					const evidence = await evidenceOf({ ...trajectory, steps: [...this.steps.steps, ...steps] });
					if (episode === this.#episode) fill(this.verification, evidence);
				});
			}
		}
		if (steps.length) this.steps.append(steps);
		this.#showFacts();
		if (this.#trajectory) this.charts.draw(this.steps.steps, this.#trajectory);
		this.#stay();
	}

	/** @type {EpisodeBeginner} */
	#begin(episode, trajectory) {
		this.#episode = episode;
		this.#trajectory = trajectory;
		const first = trajectory.observation?.reward;
		this.#return = typeof first === "number" ? first : null;
		this.steps.begin(trajectory);
		fill(this.verification);
	}

	#showFacts() {
		const trajectory = this.#trajectory;
		if (!trajectory) return;
		const { ended_at: ended, started_at: started, dropped, status } = trajectory;
		const task = taskText(trajectory.task);
		this.pause.disabled = this.#closed || (!!ended && !this.#paused);
		tell(this.facts, listText(task && `Task ${task}`, `episode ${trajectory.episode_id}`, `step ${this.#newestNumber()}`,
			ended ? `sum of rewards ${numberText(trajectory.total_reward)}`
				: dropped ? null : `return ${numberText(this.#return, "none")}`,
			status && `status ${statusText(status)}`, trajectory.reason,
			ended ? `over after ${durationText(Math.max(0, ended - started))}`
				: `running for ${durationText(Math.max(0, Math.round(Date.now() / 1000 - started)))}`));
	}

	/** @param {string} text */
	#say(text) {
		tell(this.connection, text);
	}

	#noticeScroll() {
		if (scrollY + innerHeight >= document.documentElement.scrollHeight - NEAR) this.newest.hidden = true;
		else if (scrollY < this.#scrolled) this.newest.hidden = false;
		this.#scrolled = scrollY;
	}

	/** Keep the newest step in view unless the reader has scrolled up, which shows the button that follows it again. */
	#stay() {
		if (this.newest.hidden) scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
	}
}
