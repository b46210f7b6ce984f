// What is known of every group, live: the server tells each view that changes, and this keeps the newest.

import { get } from "./api.js";

const SHORTEST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 15000;
const RATE_WINDOW_MS = 12000;
export const RATE_WINDOW = `${RATE_WINDOW_MS / 1000} s avg`;
const SHORTEST_RATE_MS = 2000;
const LONG_LAG_S = 2;
const FRESH_S = 1.5;

class Groups extends EventTarget {
  constructor() {
    super();
    this.views = new Map();
    this.connection = "connecting"; // or "live", or "lost"
    this.isKnown = false; // whether the server has told what groups there are
    this.arrivals = new Map();
    this.samples = new Map();
    this.source = null;
    this.pause = SHORTEST_PAUSE_MS;
  }

  // Until the page ends. The browser itself comes again after a connection that broke; after a refusal we do.
  listen() {
    this.source = new EventSource("/api/v1/events");
    this.source.addEventListener("open", () => this.begin());
    this.source.addEventListener("group", (event) => this.take(JSON.parse(event.data)));
    this.source.addEventListener("gone", (event) => this.lose(JSON.parse(event.data).group));
    this.source.addEventListener("error", () => this.breakOff());
  }

  // Groups that went while nobody listened are told by nobody, so all that there are is asked for.
  async begin() {
    this.pause = SHORTEST_PAUSE_MS;
    try {
      const { groups } = await get("/groups");
      const names = new Set(groups.map((view) => view.group));
      [...this.views.keys()].filter((name) => !names.has(name)).forEach((name) => this.views.delete(name));
      groups.forEach((view) => this.keep(view));
      this.isKnown = true;
      this.connection = "live";
    } catch {
      this.connection = "lost";
    }
    this.tell();
  }

  breakOff() {
    this.connection = "lost";
    this.tell();
    if (this.source.readyState !== EventSource.CLOSED) {
      return;
    }
    // A refusal has no status here; an ordinary question says whether we are strangers.
    get("/").catch(() => null);
    setTimeout(() => this.listen(), this.pause);
    this.pause = Math.min(2 * this.pause, LONGEST_PAUSE_MS);
  }

  take(view) {
    this.keep(view);
    this.tell();
  }

  keep(view) {
    const known = this.views.get(view.group);
    if (known && known.number > view.number) {
      return;
    }
    this.views.set(view.group, view);
    this.arrivals.set(view.group, performance.now());
    this.sample(view);
  }

  lose(group) {
    this.views.delete(group);
    this.samples.delete(group);
    this.tell();
  }

  tell() {
    this.dispatchEvent(new Event("change"));
  }

  sample({ group, status }) {
    if (!status) {
      return;
    }
    const counts = { published: status.replicator?.changes ?? null };
    status.workers.forEach((worker) => { counts[`worker.${worker.name}`] = worker.changes; });
    const now = performance.now();
    const kept = (this.samples.get(group) ?? []).filter((each) => now - each.at < RATE_WINDOW_MS);
    this.samples.set(group, [...kept, { at: now, counts }]);
  }

  // Changes a second of the replicator ("published") or of a unit, over the last seconds; null while that is not known.
  rate(group, counter) {
    const samples = (this.samples.get(group) ?? []).filter((each) => typeof each.counts[counter] === "number");
    if (!samples.length) {
      return null;
    }
    const now = performance.now();
    const [first, last] = [samples[0], samples[samples.length - 1]];
    if (now - last.at > RATE_WINDOW_MS) {
      return 0;
    }
    const grown = last.counts[counter] - first.counts[counter];
    return now - first.at < SHORTEST_RATE_MS || grown < 0 ? null : grown / ((now - first.at) / 1000);
  }

  // A lag as it is now: one that waits grows between two looks of the server, which nobody needs to tell. One that is short and
  // was told a moment ago is over by now, most likely.
  lag(group, lag_s) {
    const age_s = (performance.now() - (this.arrivals.get(group) ?? performance.now())) / 1000;
    const isWaiting = lag_s >= LONG_LAG_S || (lag_s > 0 && age_s > FRESH_S);
    return isWaiting && this.connection === "live" ? lag_s + age_s : lag_s ?? null;
  }
}

export const groups = new Groups();
