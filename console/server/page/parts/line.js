// A group as a line: source, stream, workers, with what flows and how far behind it is.

import { html } from "./html.js";
import { bytes, duration, isKnown, rate } from "./format.js";
import { Known } from "./known.js";
import { Badge, NOT_KNOWN } from "./state.js";
import { RATE_WINDOW } from "../server/groups.js";

const LATE_S = 10;
const VERY_LATE_S = 60;

function lagTone(seconds) {
  if (!isKnown(seconds)) {
    return "unknown";
  }
  return seconds >= VERY_LATE_S ? "bad" : seconds >= LATE_S ? "warn" : "good";
}

function Lag({ seconds }) {
  return html`<b class="lag ${lagTone(seconds)}"><${Known} value=${seconds} as=${duration} otherwise="lag not known" /></b>${isKnown(seconds) ? html`<small>lag now</small>` : null}`;
}

const averaged = (perSecond) => `${rate(perSecond)}, ${RATE_WINDOW}`;

function stateOf(status, unit, isOld) {
  return isOld ? NOT_KNOWN : status.units.find((each) => each.unit === unit)?.state ?? null;
}

function Source({ status }) {
  const { slot, bound_to: bound } = status;
  return html`
    <div class="place source"><span class="kind">Source</span>
      <strong><${Known} value=${bound?.database} /></strong>
      <small>${slot ? html`slot lag <${Known} value=${slot.lag_bytes} as=${bytes} /> of WAL now` : "replication slot not known here"}</small>
    </div>`;
}

function Stream({ stream }) {
  const share = stream && stream.max_bytes > 0 ? Math.min(1, stream.bytes / stream.max_bytes) : null;
  return html`
    <div class="place stream"><span class="kind">Stream</span>
      <strong><${Known} value=${stream?.bytes} as=${bytes} otherwise="no stream" /></strong>
      ${share === null ? html`<small class="unknown">limit not known</small>`
        : html`<meter min="0" max="1" low="0.7" high="0.9" optimum="0" value=${share} aria-label="Stream filled">${Math.round(share * 100)} %</meter>
          <small>${Math.round(share * 100)} % of ${bytes(stream.max_bytes)} now</small>`}
    </div>`;
}

function Worker({ worker, status, isOld, groups }) {
  const state = stateOf(status, `worker.${worker.name}`, isOld);
  return html`
    <li><span class="arrow"><${Lag} seconds=${groups.lag(status.group, worker.lag_s)} /></span>
      <div class="place"><span class="kind">Worker</span> ${state ? html`<${Badge} state=${state} />` : null}
        <strong>${worker.name}</strong>
        <small><${Known} value=${groups.rate(status.group, `worker.${worker.name}`)} as=${averaged} otherwise="rate not known" /></small>
      </div></li>`;
}

// One that the group's document names, and nobody has started.
function Draft({ name }) {
  return html`
    <li><span class="arrow"><b class="unknown">never started</b></span>
      <div class="place"><span class="kind">Worker</span> <${Badge} state="draft" /><strong>${name}</strong></div></li>`;
}

// `isOld`: nobody has answered since, so what processes did then says nothing of now.
export function Line({ status, isOld, groups }) {
  const state = stateOf(status, "replicator", isOld);
  const drafts = status.units.filter((each) => each.state === "draft" && each.unit !== "replicator").map((each) => each.unit.replace("worker.", ""));
  return html`
    <div class="line">
      <${Source} status=${status} />
      <span class="arrow"><b><${Known} value=${groups.rate(status.group, "published")} as=${rate} otherwise="rate not known" /></b>
        ${state ? html`<${Badge} state=${state} />` : null}<small>replicator, ${RATE_WINDOW}</small></span>
      <${Stream} stream=${status.stream} />
      ${status.workers.length || drafts.length
        ? html`<ul class="workers" aria-label="Workers">${status.workers.map((worker) => html`<${Worker} key=${worker.name} worker=${worker} status=${status} isOld=${isOld} groups=${groups} />`)}
          ${drafts.map((name) => html`<${Draft} key=${name} name=${name} />`)}</ul>`
        : html`<p class="workers unknown">No worker yet</p>`}
    </div>`;
}
