// A group's tables: how far each copy is, why one is errored, and orders about them, which the replicator carries out.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Confirmation } from "../parts/dialog.js";
import { bytes, count, isKnown, plural, rate } from "../parts/format.js";
import { useAnswer } from "../parts/hooks.js";
import { Known, Time } from "../parts/known.js";
import { carryOut } from "../parts/notices.js";
import { ProblemText, sentence } from "../parts/problem.js";
import { Badge } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { get, pathOf, post, put } from "../server/api.js";

const ASKED_EVERY_MS = 5000;
const MANY = 12;
const SHOWN = 100;

const VERBS = {
  recopy: { title: "Resync", done: "will be resynced" },
  retry: { title: "Retry", done: "will be retried" },
  remove: { title: "Remove", done: "will be removed from the group" },
  forget: { title: "Forget", done: "will be forgotten" },
  pause: { title: "Pause", done: "will pause: its changes wait in the stream" },
  resume: { title: "Resume", done: "will resume" },
  add: { title: "Add", done: "will be added to the group" },
};

// What the list says of a table, and what the newest look said of its copy.
function joined(listed, looked, paused) {
  const held = new Map(paused.map((each) => [`${each.schema}.${each.table}`, each]));
  const byName = new Map(looked.map((each) => [each.table, each]));
  const names = new Set([...listed.map((each) => each.table), ...byName.keys()]);
  const known = new Map(listed.map((each) => [each.table, each]));
  return [...names].sort().map((table) => ({ origin: "", retry: "", retry_at: "", phase: "", ...known.get(table), ...byName.get(table), table, paused: held.get(table) }));
}

export function Tables({ group, view, server }) {
  const path = `${pathOf("groups", group)}/tables`;
  const { answer, problem, again } = useAnswer(() => get(path), group, ASKED_EVERY_MS);
  const [asked, ask] = useState(null);
  const [sought, seek] = useState("");
  const [most, show] = useState(SHOWN);
  const tables = joined(answer?.tables ?? [], view.status.tables, answer?.paused ?? []);
  const found = tables.filter((each) => each.table.includes(sought) || each.phase.startsWith(sought));
  const order = async (verb, table, reason = "") => {
    const isPause = verb === "pause" || verb === "resume";
    const send = isPause ? () => put(`${path}/desired`, { tables: [table], paused: verb === "pause", reason })
      : () => post(`${pathOf("groups", group)}/orders`, { verb, tables: [table], reason });
    const isDone = await carryOut(send, `${table} ${VERBS[verb].done}`);
    again();
    return isDone;
  };
  const columns = [
    { title: "Table", cell: ({ table }) => html`<strong>${table}</strong>` },
    { title: "Phase", cell: ({ phase, paused }) => html`${phase ? html`<${Badge} state=${phase} />` : html`<${Known} value=${null} />`}
      ${paused ? html` <${Badge} state="paused" />` : null}` },
    { title: "Progress", wide: true, cell: (table) => html`<${Progress} table=${table} />` },
    { title: "Rows", number: true, cell: ({ rows }) => html`<${Known} value=${rows} as=${count} />` },
    { title: "Since", cell: ({ since }) => html`<${Time} at=${since} />` },
    { title: "Origin", cell: ({ origin }) => html`<span class="soft">${origin}</span>` },
    { title: "Actions", cell: (table) => html`<${Buttons} table=${table} server=${server} order=${order} ask=${ask} />` },
  ];
  return html`
    <section aria-labelledby="tables">
      <div class="title"><h2 id="tables">Tables</h2><p class="soft">${plural(tables.length, "table")}</p>
        ${tables.length > MANY ? html`<label class="seek"><span>Name or phase</span>
          <input type="search" value=${sought} onInput=${(event) => seek(event.target.value.trim())} /></label>` : null}</div>
      <${ProblemText} problem=${problem} />
      ${answer?.orders.length ? html`<${OpenOrders} orders=${answer.orders} />` : null}
      <${Table} caption="Tables" columns=${columns} rows=${found.slice(0, most)} keyOf=${({ table }) => table}
        below=${(table) => (table.error || table.paused ? html`<${More} table=${table} />` : null)} />
      ${found.length > most ? html`<p><button onClick=${() => show(most + SHOWN)}>Show more of ${count(found.length)}</button></p>` : null}
      ${server.role === "viewer" ? null : html`<${Joining} order=${order} />`}
      ${asked ? html`<${Asked} asked=${asked} order=${order} onClose=${() => ask(null)} />` : null}
    </section>`;
}

function Progress({ table }) {
  const { ranges, ranges_done: done, phase, bytes: size, rows_per_s: speed } = table;
  if (!ranges) {
    return html`<span class="soft">${phase === "ready" ? "streaming" : "no snapshot to take"}</span>`;
  }
  const share = done / ranges;
  return html`<progress max="1" value=${share} aria-label=${`Snapshot of ${table.table}`}>${Math.round(share * 100)} %</progress>
    <small>${Math.round(share * 100)} %, ${bytes(size)}${isKnown(speed) ? `, ${rate(speed).replace("/s", " rows/s")} avg of the snapshot` : ""}</small>`;
}

function More({ table }) {
  const { paused } = table;
  return html`${table.error ? html`<${Trouble} table=${table} />` : null}
    ${paused ? html`<p class="worst">Paused${paused.by ? ` by ${paused.by}` : ""}${paused.reason ? `: ${paused.reason}` : ""}, <${Time} at=${paused.at} />.
      Its changes wait in the stream.</p>` : null}`;
}

function Trouble({ table }) {
  const again = table.retry === "timed" && table.retry_at ? `The next attempt is at ${new Date(table.retry_at).toLocaleTimeString("en-GB")}.` : "";
  return html`<p class="worst error">${sentence(table.error)} <span class="remedy">${table.remedy ? sentence(table.remedy) : ""} ${again}</span></p>`;
}

function Buttons({ table, server, order, ask }) {
  if (server.role === "viewer") {
    return html`<span class="soft">None for a viewer</span>`;
  }
  const button = (verb, act) => html`<button class="small" aria-label=${`${VERBS[verb].title}: ${table.table}`} onClick=${act}>${VERBS[verb].title}</button>`;
  return html`<span class="buttons">
    ${table.phase === "errored" ? button("retry", () => order("retry", table.table)) : null}
    ${table.phase === "left" ? button("forget", () => ask({ verb: "forget", table })) : html`
      ${table.paused ? button("resume", () => order("resume", table.table)) : button("pause", () => ask({ verb: "pause", table }))}
      ${button("recopy", () => ask({ verb: "recopy", table }))}${button("remove", () => ask({ verb: "remove", table }))}`}
  </span>`;
}

function OpenOrders({ orders }) {
  return html`<ul class="orders">${orders.map((each) => html`<li key=${each.number}>
    Action ${each.number}, ${VERBS[each.verb]?.title ?? each.verb} ${each.tables.join(", ")}, <${Time} at=${each.ordered_at} />:
    ${each.taken_at ? " the replicator carries it out" : " waits for the replicator"}.</li>`)}</ul>`;
}

function Joining({ order }) {
  const [name, type] = useState("");
  const add = async (event) => {
    event.preventDefault();
    if (await order("add", name)) {
      type("");
    }
  };
  return html`<form class="row" onSubmit=${add}><label><span>Add a table, or a pattern like <code>sales.*</code></span>
    <input value=${name} spellcheck=${false} autocomplete="off" onInput=${(event) => type(event.target.value.trim())} /></label>
    <button type="submit" disabled=${!name}>Add</button></form>`;
}

function consequences(verb, { table, rows, bytes: size }) {
  const held = rows ? `${count(rows)} rows (${bytes(size ?? 0)}) at its last snapshot` : "the number of its rows is not known";
  switch (verb) {
    case "pause":
      return [`Changes of ${table} wait in the stream. Other tables continue.`, "None of them is removed before it is applied, so the stream can fill."];
    case "recopy":
      return [`Workers empty ${table} at their targets, in the transaction that starts the new snapshot: ${held}.`, "All rows are read from the source again. Changes of the table wait until then. Other tables continue."];
    case "remove":
      return [`${table} is no longer published: its future changes are in no stream.`, `Targets keep the rows of the table: ${held}.`, "If you add it again, it gets a new initial snapshot."];
    default:
      return [`The group forgets ${table} when every worker has applied its last changes.`, `Targets keep the rows of the table: ${held}.`];
  }
}

function Asked({ asked: { verb, table }, order, onClose }) {
  const { title } = VERBS[verb];
  return html`<${Confirmation} title=${`${title}: ${table.table}?`} action=${title} says=${consequences(verb, table)} danger=${verb !== "pause"} wanted=${verb === "pause" ? "" : table.table}
    onConfirm=${(reason) => order(verb, table.table, reason)} onClose=${onClose} />`;
}
