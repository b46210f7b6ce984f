// Who is posted a group's changes, and how each receiver fares. A group to which nobody subscribed shows nothing of this.

import { html } from "../parts/html.js";
import { clock, count, isKnown } from "../parts/format.js";
import { useAnswer } from "../parts/hooks.js";
import { carryOut } from "../parts/notices.js";
import { sentence } from "../parts/problem.js";
import { Badge } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { get, pathOf, post } from "../server/api.js";

const ASKED_EVERY_MS = 5000;

export function Subscriptions({ group, server }) {
  const path = `${pathOf("groups", group)}/webhooks`;
  const { answer, again } = useAnswer(() => get(path), group, ASKED_EVERY_MS);
  if (!answer?.subscriptions.length) {
    return null;
  }
  const order = async (verb, { id }, done) => {
    await carryOut(() => post(`${path}/${verb}`, { id }), done);
    again();
  };
  const columns = [
    { title: "Receiver", cell: ({ receiver, id }) => html`<span title=${id}>${receiver}</span>` },
    { title: "Owner", cell: ({ owner }) => owner },
    { title: "Events", cell: what },
    { title: "State", cell: ({ state }) => html`<${Badge} state=${state} />` },
    { title: "Lag now, messages", number: true, cell: (each) => (isKnown(each.behind_messages) ? count(each.behind_messages) : "not known") },
    { title: "Reason", wide: true, cell: (each) => why(each) },
  ];
  if (server.role !== "viewer") {
    columns.push({ title: "", cell: (each) => (each.state === "paused"
      ? html`<button onClick=${() => order("resume", each, "Delivery continues from the receiver's position")}>Resume</button>`
      : html`<button onClick=${() => order("pause", each, "Delivery is paused until you resume it")}>Pause</button>`) });
  }
  return html`
    <section aria-labelledby="subscriptions">
      <h2 id="subscriptions">Subscriptions</h2>
      <${Table} caption="Subscriptions" columns=${columns} rows=${answer.subscriptions} keyOf=${({ id }) => id} />
    </section>`;
}

function what({ schema, table, events, rules }) {
  return html`
    ${schema || "*"}.${table || "*"} <span class="soft">${events.join(", ")}</span>
    ${rules ? html`<details><summary>rules</summary><pre>${rules}</pre></details>` : null}`;
}

function why({ reason, failing_since: since, missed }) {
  if (reason) {
    return `${sentence(reason)}${since ? ` Since ${clock(since)}.` : ""}`;
  }
  return missed ? `Messages up to ${missed} were removed from the stream before delivery.` : "";
}
