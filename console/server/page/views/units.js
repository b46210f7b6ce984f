// A group's processes: their states, and what they are to do. What takes something away says so in numbers first.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Confirmation } from "../parts/dialog.js";
import { roomOf } from "../parts/filling.js";
import { bytes, isKnown, plural } from "../parts/format.js";
import { Time } from "../parts/known.js";
import { carryOut } from "../parts/notices.js";
import { sentence } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { Badge } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { pathOf, post, put } from "../server/api.js";

const VERBS = {
  pause: { state: "paused", title: "Pause", done: "will pause" },
  resume: { state: "running", instead_of: "paused", title: "Resume", done: "will resume" },
  stop: { state: "stopped", title: "Stop", done: "will stop" },
  start: { state: "running", instead_of: "stopped", title: "Start", done: "can be started" },
};

function verbsOf(state) {
  switch (state) {
    case "pausing":
    case "paused":
      return ["resume", "stop"];
    case "stopping":
    case "stopped":
      return ["start"];
    case "finished":
    case "draft":
      return [];
    default:
      return ["pause", "stop"];
  }
}

function nameOf(unit) {
  return unit === "replicator" ? "replicator" : unit.replace("worker.", "");
}

function spoken(unit) {
  return unit === "replicator" ? "the replicator" : `worker ${nameOf(unit)}`;
}

export function Units({ group, view, server }) {
  const { status } = view;
  const [asked, ask] = useState(null);
  const mayOrder = server.role !== "viewer";
  const order = async (units, verb, reason = "") => carryOut(
    () => put(`${pathOf("groups", group)}/desired`, { state: VERBS[verb].state, instead_of: VERBS[verb].instead_of, units, reason }),
    `${units.length === 1 ? spoken(units[0]) : plural(units.length, "worker")} ${VERBS[verb].done}`.replace(/^./, (first) => first.toUpperCase()),
  );
  const begin = (unit, verb) => (verb === "resume" || verb === "start" ? order([unit], verb) : ask({ units: [unit], verb }));
  const workers = status.units.filter((each) => each.unit !== "replicator");
  const pausable = workers.filter((each) => verbsOf(each.state).includes("pause")).map((each) => each.unit);
  const paused = workers.filter((each) => verbsOf(each.state).includes("resume")).map((each) => each.unit);
  const columns = [
    { title: "Process", cell: ({ unit }) => html`<strong>${unit === "replicator" ? unit
      : html`<a href=${href("groups", group, "workers", nameOf(unit))}>${nameOf(unit)}</a>`}</strong>` },
    { title: "State", cell: ({ state }) => html`<${Badge} state=${state} />` },
    { title: "Since", cell: ({ since }) => html`<${Time} at=${since} />` },
    { title: "Details", wide: true, cell: (unit) => html`<${Facts} unit=${unit} status=${status} />` },
    { title: "Actions", cell: ({ unit, state }) => html`<${Buttons} unit=${unit} state=${state} server=${server} begin=${begin} ask=${ask} />` },
  ];
  return html`
    <section aria-labelledby="processes">
      <div class="title"><h2 id="processes">Processes</h2>${mayOrder && workers.length > 1 ? html`<p class="buttons">
        ${pausable.length ? html`<button onClick=${() => ask({ units: pausable, verb: "pause" })}>Pause all workers</button>` : null}
        ${paused.length ? html`<button onClick=${() => order(paused, "resume")}>Resume all workers</button>` : null}</p>` : null}</div>
      <${Table} caption="Processes" columns=${columns} rows=${status.units} keyOf=${({ unit }) => unit} />
      ${asked ? html`<${Asked} asked=${asked} group=${group} status=${status} order=${order} onClose=${() => ask(null)} />` : null}
    </section>`;
}

function Buttons({ unit, state, server, begin, ask }) {
  if (server.role === "viewer") {
    return html`<span class="soft">None for a viewer</span>`;
  }
  const forgettable = server.role === "admin" && unit !== "replicator" && ["unknown", "stopped", "failed", "finished"].includes(state);
  return html`<span class="buttons">
    ${verbsOf(state).map((verb) => html`<button key=${verb} class="small" onClick=${() => begin(unit, verb)}
      aria-label=${`${VERBS[verb].title} ${spoken(unit)}`}>${VERBS[verb].title}</button>`)}
    ${forgettable ? html`<button class="small" aria-label=${`Forget ${spoken(unit)}`} onClick=${() => ask({ units: [unit], verb: "forget" })}>Forget</button>` : null}
  </span>`;
}

function Facts({ unit, status }) {
  const worker = status.workers.find((each) => `worker.${each.name}` === unit.unit);
  const replicator = unit.unit === "replicator" ? status.replicator : null;
  return html`
    ${unit.fact ? html`<p>${sentence(unit.fact)}${unit.remedy ? html` <span class="remedy">${sentence(unit.remedy)}</span>` : null}</p>` : null}
    ${unit.next_attempt_at ? html`<p class="soft">Next attempt at ${new Date(unit.next_attempt_at).toLocaleTimeString("en-GB")}.</p>` : null}
    ${worker ? html`<p class="soft">${applied(worker)}</p>` : null}
    ${replicator ? html`<p class="soft">${published(replicator)}</p>` : null}`;
}

function applied(worker) {
  const waiting = isKnown(worker.lag_messages) ? `${plural(worker.lag_messages, "message")} (${bytes(worker.lag_bytes)}) to apply now` : "lag not known";
  return [waiting, `${plural(worker.changes, "change")} applied since its start (with snapshot rows)`, ...(worker.host ? [`on ${worker.host}`] : [])].join(", ");
}

function published(replicator) {
  return [`${plural(replicator.changes, "change")} published since its start (without snapshot rows)`, `stored in NATS up to ${replicator.flushed_lsn}`, ...(replicator.host ? [`on ${replicator.host}`] : [])].join(", ");
}

// What will happen, in numbers as far as they are known.
function consequences(verb, units, { slot, stream, workers, tables }) {
  const concerned = workers.filter((worker) => units.includes(`worker.${worker.name}`));
  const waiting = concerned.map((worker) => `worker ${worker.name}: ${isKnown(worker.lag_messages)
    ? `${plural(worker.lag_messages, "message")} (${bytes(worker.lag_bytes)}) wait for it now` : "the number of waiting messages is not known"}`);
  const room = roomOf(stream) || "The free space of the stream is not known";
  if (units.includes("replicator")) {
    const kept = isKnown(slot?.lag_bytes) ? `it retains ${bytes(slot.lag_bytes)} now` : "the amount that it retains now is not known here";
    const most = isKnown(slot?.safe_wal_bytes) ? `after another ${bytes(slot.safe_wal_bytes)} the slot can be lost, and then the group cannot continue` : "its limit is not known here, so its disk can fill";
    const copying = tables.filter((table) => table.phase === "data_sync").length;
    return [
      verb === "pause" ? "The replicator pauses and publishes no changes." : "The replicator's process ends and publishes no changes.",
      `The source retains its WAL from now on: ${kept}; ${most}.`,
      ...(copying ? [`${plural(copying, "table")} in the initial snapshot now will start from scratch.`] : []),
    ];
  }
  if (verb === "forget") {
    const letters = concerned.reduce((sum, worker) => sum + worker.dead_letters, 0);
    return [
      "Messages are no longer retained for it. It can never apply the changes that it has not applied yet.",
      ...waiting,
      `${plural(letters, "dead letter")} of this worker ${letters === 1 ? "stays" : "stay"} stored.`,
      "You cannot undo this. The target keeps its rows.",
    ];
  }
  return [
    verb === "pause" ? "It finishes the current batch, then pauses. It keeps its lease and its Spark session." : "Its process ends after the current batch. If a supervisor restarts it, it ends again, until you start it here.",
    "The source is not delayed. Changes wait in the stream, and none is removed before it is applied.",
    ...waiting,
    `${room}.`,
  ];
}

function Asked({ asked: { units, verb }, group, status, order, onClose }) {
  const isForget = verb === "forget";
  const isDangerous = isForget || verb === "stop" || units.includes("replicator");
  const what = units.length === 1 ? spoken(units[0]) : `all ${units.length} workers`;
  const name = units.length === 1 ? nameOf(units[0]) : group;
  const forget = (reason) => carryOut(
    () => post(`${pathOf("groups", group, "workers", name)}/forget`, { name, reason }),
    `Worker ${name} is forgotten`,
  );
  const title = isForget ? "Forget" : VERBS[verb].title;
  return html`<${Confirmation} title=${`${title} ${what}?`} action=${title} says=${consequences(verb, units, status)} danger=${isDangerous}
    wanted=${isDangerous ? name : ""} onConfirm=${isForget ? forget : (reason) => order(units, verb, reason)} onClose=${onClose} />`;
}
