// Dead letters: changes that were set aside, by the reason they share; replayed or discarded as they are selected.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Confirmation, Dialog } from "../parts/dialog.js";
import { count, plural } from "../parts/format.js";
import { useAnswer } from "../parts/hooks.js";
import { Time } from "../parts/known.js";
import { carryOut } from "../parts/notices.js";
import { ProblemText, sentence } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { Badge } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { Change, Operation, tableOf } from "../parts/values.js";
import { get, getRows, pathOf, post } from "../server/api.js";

const ASKED_EVERY_MS = 2000;
const SHOWN = 100;

const keyOf = (letter) => `${letter.worker} ${letter.position}`;

function byReason(letters) {
  const found = new Map();
  letters.forEach((letter) => found.set(letter.reason, [...(found.get(letter.reason) ?? []), letter]));
  return [...found].sort(([, one], [, other]) => other.length - one.length);
}

export function Letters({ group, server }) {
  const path = `${pathOf("groups", group)}/dead`;
  const { answer, problem, again } = useAnswer(() => get(path), group, ASKED_EVERY_MS);
  const [selected, select] = useState(new Set());
  const [asked, ask] = useState("");
  const [opened, open] = useState(null);
  const letters = answer?.letters ?? [];
  const chosen = letters.filter((letter) => selected.has(keyOf(letter)));
  const toggle = (some, isOn) => {
    const next = new Set(selected);
    some.forEach((letter) => (isOn ? next.add(keyOf(letter)) : next.delete(keyOf(letter))));
    select(next);
  };
  const order = async (verb, reason) => {
    const workers = [...new Set(chosen.map((letter) => letter.worker))];
    const send = (worker) => post(`${path}/${verb}`, { worker, reason, positions: chosen.filter((each) => each.worker === worker).map((each) => each.position) });
    const isDone = await carryOut(() => Promise.all(workers.map(send)), `${plural(chosen.length, "dead letter")} ${verb === "replay" ? "sent to the worker again" : "discarded"}`);
    select(new Set());
    again();
    return isDone;
  };
  return html`
    <section aria-labelledby="letters">
      <div class="title"><h2 id="letters">Dead letters</h2><p class="soft">${answer ? plural(letters.length, "dead letter") : "Loading…"}</p></div>
      <${ProblemText} problem=${problem} />
      ${answer && !letters.length ? html`<p>No dead letters: every published change could be applied.</p>` : null}
      ${server.role === "viewer" || !letters.length ? null : html`<p class="buttons bar">
        <button class="main" disabled=${!chosen.length} onClick=${() => ask("replay")}>Replay ${chosen.length || "selected"}</button>
        ${server.role === "admin" ? html`<button class="danger" disabled=${!chosen.length} onClick=${() => ask("discard")}>Discard ${chosen.length || "selected"}</button>` : null}
        <span class="soft" role="status">${chosen.length ? `${chosen.length} selected` : "None selected"}</span></p>`}
      ${byReason(letters).map(([reason, some]) => html`<${Reason} key=${reason} group=${group} reason=${reason} letters=${some} selected=${selected} toggle=${toggle} server=${server} open=${open} />`)}
      ${asked ? html`<${Asked} verb=${asked} chosen=${chosen} group=${group} order=${order} onClose=${() => ask("")} />` : null}
      ${opened ? html`<${Opened} letter=${opened} path=${path} onClose=${() => open(null)} />` : null}
    </section>`;
}

function Reason({ group, reason, letters, selected, toggle, server, open }) {
  const [most, show] = useState(SHOWN);
  const [looked, look] = useState(null);
  const isAll = letters.every((letter) => selected.has(keyOf(letter)));
  const columns = [
    { title: "Select", cell: (letter) => html`<input type="checkbox" checked=${selected.has(keyOf(letter))} aria-label=${`Select ${letter.position} of ${letter.worker}`}
      onChange=${(event) => toggle([letter], event.target.checked)} />` },
    { title: "Position", cell: ({ position }) => html`<code>${position}</code>` },
    { title: "Table", cell: ({ table }) => table },
    { title: "Worker", cell: ({ worker }) => worker },
    { title: "State", cell: ({ state }) => html`<${Badge} state=${state} />` },
    { title: "Time", cell: ({ time }) => html`<${Time} at=${time} />` },
    { title: "Attempts", number: true, cell: ({ attempts }) => count(attempts) },
    { title: "Blocked changes", number: true, cell: (letter) => html`<${Behind} letter=${letter} look=${look} />` },
    { title: "Content", cell: (letter) => html`<span class="buttons">
      ${server.values ? html`<button class="small" aria-label=${`Show ${letter.position}`} onClick=${() => open(letter)}>Show</button>` : null}
      ${server.values && letter.sequence && !letter.copied ? html`<a href=${`${href("groups", group, "messages")}?start=${letter.sequence}`}>message ${letter.sequence}</a>` : null}</span>` },
  ];
  return html`
    <section class="reason" aria-label=${`Reason: ${reason}`}>
      <h3>${sentence(reason)}</h3>
      <p><label class="check"><input type="checkbox" checked=${isAll} onChange=${(event) => toggle(letters, event.target.checked)} />
        Select all with this reason, ${count(letters.length)} in total</label></p>
      <${Table} caption=${`Dead letters: ${reason}`} columns=${columns} rows=${letters.slice(0, most)} keyOf=${keyOf} />
      ${letters.length > most ? html`<p><button onClick=${() => show(most + SHOWN)}>Show more, ${count(letters.length)} in total</button></p>` : null}
      ${looked ? html`<${Waiting} letter=${looked} group=${group} onClose=${() => look(null)} />` : null}
    </section>`;
}

function Behind({ letter, look }) {
  return letter.behind ? html`<button class="small" aria-label=${`${plural(letter.behind, "change")} blocked by ${letter.position}`} onClick=${() => look(letter)}>${count(letter.behind)}</button>`
    : html`<span class="soft">none</span>`;
}

// What waits for a letter: later changes of its rows, of which the target may show nothing before this one is applied or discarded.
function Waiting({ letter, group, onClose }) {
  const { answer, problem } = useAnswer(() => get(`${pathOf("groups", group)}/dead/behind`, { position: letter.position, worker: letter.worker }), keyOf(letter));
  const columns = [
    { title: "Position", cell: ({ position }) => html`<code>${position}</code>` },
    { title: "Table", cell: ({ table }) => table },
    { title: "State", cell: ({ state }) => html`<${Badge} state=${state} />` },
    { title: "Time", cell: ({ time }) => html`<${Time} at=${time} />` },
    { title: "Reason", wide: true, cell: ({ reason }) => sentence(reason) },
  ];
  const tables = Object.entries(answer?.tables ?? {}).map(([table, number]) => `${count(number)} of ${table}`).join(", ");
  return html`<${Dialog} title=${`Blocked by dead letter ${letter.position}`} onClose=${onClose} wide=${true}>
    <p>Later changes of the same rows are dead letters too. The reason: the changes of a row are applied only in their order.</p>
    <${ProblemText} problem=${problem} />
    ${answer ? html`<p role="status">${plural(answer.behind.length, "blocked change")}${tables ? `: ${tables}` : ""}.</p>
      <${Table} caption=${`Changes blocked by ${letter.position}`} columns=${columns} rows=${answer.behind.slice(0, SHOWN)} keyOf=${keyOf} />
      ${answer.behind.length > SHOWN ? html`<p class="soft">and ${plural(answer.behind.length - SHOWN, "more change")}</p>` : null}` : null}
  <//>`;
}

// What the selection leaves behind. Chains may share letters, so a sum would count some twice: the longest is said.
function stays(chosen) {
  const longest = Math.max(...chosen.map((letter) => letter.behind), 0);
  return longest ? [`${chosen.length === 1 ? "It blocks" : "One of them blocks"} ${plural(longest, "later change")}. Those that are not selected stay dead letters, and their rows stay blocked.`] : [];
}

function Asked({ verb, chosen, group, order, onClose }) {
  const tables = [...new Set(chosen.map((letter) => letter.table))];
  const where = `${plural(chosen.length, "change")} of ${tables.slice(0, 5).join(", ")}${tables.length > 5 ? ` and ${tables.length - 5} more tables` : ""}`;
  const left = stays(chosen);
  const says = verb === "replay"
    ? [`${where}: the worker applies ${chosen.length === 1 ? "it" : "them"}, after earlier dead letters of the same rows.`, "A change that the target refuses again becomes a dead letter again.", ...left]
    : [`${where} ${chosen.length === 1 ? "is" : "are"} removed permanently and never applied. The target keeps the current values of those rows.`, ...left, "You cannot undo this."];
  return html`<${Confirmation} title=${verb === "replay" ? "Replay dead letters?" : "Discard dead letters?"} action=${verb === "replay" ? "Replay" : "Discard"} says=${says}
    danger=${verb === "discard"} wanted=${verb === "discard" ? group : ""} onConfirm=${(reason) => order(verb, reason)} onClose=${onClose} />`;
}

function Opened({ letter, path, onClose }) {
  const { answer, problem } = useAnswer(() => getRows(`${path}/letter`, { position: letter.position, worker: letter.worker }), keyOf(letter));
  return html`<${Dialog} title=${`Dead letter ${letter.position}`} onClose=${onClose} wide=${true}>
    <p>${sentence(letter.reason)}</p>
    <${ProblemText} problem=${problem} />
    ${(answer?.changes ?? []).map((change, at) => html`<div key=${at}><p><${Operation} name=${change.operation} /> ${tableOf(change)}</p><${Change} change=${change} /></div>`)}
  <//>`;
}
