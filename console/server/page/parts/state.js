// States of processes and tables as badges: a word and a colour, never a colour alone.

import { html } from "./html.js";

const TONES = {
  running: "good", ready: "good", finished: "good", applied: "good", done: "good", passed: "good", copied: "good", kept: "good", live: "good",
  failing: "warn", pausing: "warn", stopping: "warn", unknown: "warn", errored: "bad", warning: "warn", replay: "warn",
  dead: "bad", replaying: "warn", dropped: "calm", waiting: "warn", "not known": "warn", rejected: "bad", "not processed": "bad",
  failed: "bad", halted: "bad", error: "bad",
  starting: "busy", copying: "busy", init: "busy", data_sync: "busy", finished_copy: "busy", sync_wait: "busy", catchup: "busy",
  reading: "busy", interrupted: "warn", cancelling: "warn", refused: "bad", requested: "busy", taken: "busy",
  "in the copy": "good", changed: "busy", turned: "busy", info: "calm",
};

// From the worst on: what a group as a whole is called by.
const RANKS = [
  "failed", "unknown", "failing", "stopped", "stopping", "paused", "pausing", "starting", "copying", "running", "finished", "draft",
];

export const NOT_KNOWN = "not known";

export function toneOf(state) {
  return TONES[state] ?? "calm";
}

export function Badge({ state, says = state.replaceAll("_", " ") }) {
  return html`<span class="badge ${toneOf(state)}">${says}</span>`;
}

// null while nothing is known of the group. What was the case before nobody answered is no state.
export function worstState({ status, problem }) {
  if (!status || problem) {
    return problem ? NOT_KNOWN : null;
  }
  if (status.halt) {
    return "halted";
  }
  const states = status.units.map((unit) => unit.state);
  return RANKS.find((state) => states.includes(state)) ?? "draft";
}
