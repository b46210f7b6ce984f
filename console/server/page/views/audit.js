// Who did what to what, the newest first.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { clock } from "../parts/format.js";
import { useAnswer } from "../parts/hooks.js";
import { ProblemText } from "../parts/problem.js";
import { Badge } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { get } from "../server/api.js";

const LIMIT = 100;

// "post_groups_group_dead_replay" is the API's name of it; people read "dead replay".
function spoken(action) {
  return action.replace(/^(get|post|put|delete)_/, (verb) => (verb === "delete_" ? "delete " : "")).replace("groups_group_", "").replaceAll("_", " ");
}

export function Audit() {
  const [before, turn] = useState(null);
  const [isRefused, choose] = useState(false);
  const { answer, problem, again } = useAnswer(() => get("/audit", { limit: LIMIT, before, refused: isRefused }), `${isRefused} ${before}`);
  const columns = [
    { title: "Time", cell: ({ entry }) => html`<time datetime=${entry.at}>${clock(entry.at)}</time>` },
    { title: "User", cell: ({ entry }) => html`${entry.who} <span class="soft">${entry.role}${entry.client ? `, ${entry.client}` : ""}</span>` },
    { title: "Action", cell: ({ entry }) => html`<span title=${entry.action}>${spoken(entry.action)}</span>` },
    { title: "Target", wide: true, cell: ({ entry }) => entry.target },
    { title: "Revision", number: true, cell: ({ entry }) => revisions(entry) },
    { title: "Outcome", cell: ({ entry }) => html`<${Badge} state=${entry.outcome === "done" ? "done" : "error"} says=${entry.times > 1 ? `${entry.outcome}, ${entry.times} times within a minute` : entry.outcome} />` },
    { title: "Reason", cell: ({ entry }) => entry.reason },
  ];
  return html`
    <div class="title"><h1 tabindex="-1">Audit</h1><p class="soft">Every write, retained for 90 days</p></div>
    <p><label class="check"><input type="checkbox" checked=${isRefused} onChange=${(event) => { turn(null); choose(event.target.checked); }} />
      Refused writes: the first of each minute, and their number</label></p>
    <p class="buttons"><button onClick=${() => (before === null ? again() : turn(null))}>Newest</button>
      <button disabled=${!answer?.next_before} onClick=${() => turn(answer.next_before)}>Earlier</button></p>
    <${ProblemText} problem=${problem} />
    ${answer && !answer.entries.length ? html`<p>${isRefused ? "No write was refused." : "No entries that you may see."}</p>` : null}
    ${answer?.entries.length ? html`<${Table} caption="Audit" columns=${columns} rows=${answer.entries} keyOf=${({ sequence }) => sequence} />` : null}
    ${(answer?.missing ?? []).map(({ first, last }) => html`<p key=${first} class="soft">${missing(first, last)}</p>`)}`;
}

function missing(first, last) {
  const entries = first === last ? `Entry ${first} is` : `Entries ${first} to ${last} are`;
  return `${entries} missing: deleted because of their age, or by an administrator of NATS.`;
}

function revisions({ revision_before: before, revision_after: after }) {
  const known = [before, after].filter((each) => each !== null);
  return known.length === 2 ? `${before} → ${after}` : known.join("");
}
