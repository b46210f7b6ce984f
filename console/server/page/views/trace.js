// Where a row is: each change of it that the stream holds, and what each worker made of that.

import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { clock, count, plural } from "../parts/format.js";
import { useAsked } from "../parts/hooks.js";
import { ProblemText } from "../parts/problem.js";
import { Badge } from "../parts/state.js";
import { Change, Operation } from "../parts/values.js";
import { pathOf, postForRows } from "../server/api.js";
import { Blind } from "./blind.js";

export function Trace({ group, server, query }) {
  return server.values ? html`<${Tracing} group=${group} table=${query.get("table") ?? ""} keys=${query.getAll("key")} />` : html`<${Blind} what="A trace shows row values" />`;
}

function columnsOf(keys) {
  const given = keys.map((each) => {
    const [column, ...value] = each.split("=");
    return { column, value: value.join("=") };
  });
  return given.length ? given : [{ column: "id", value: "" }];
}

function Tracing({ group, table: begin, keys }) {
  const [table, of] = useState(begin);
  const [key, change] = useState(columnsOf(keys));
  const [rules, rule] = useState("");
  const [routing, route] = useState("");
  const { answer, problem, busy, ask } = useAsked();
  const trace = (name, columns) => ask(() => postForRows(`${pathOf("groups", group)}/trace`, {
    table: name, rules, routing, key: Object.fromEntries(columns.filter((each) => each.column).map(({ column, value }) => [column, value])),
  }));
  useEffect(() => {
    of(begin);
    change(columnsOf(keys));
    if (begin && keys.length) {
      trace(begin, columnsOf(keys));
    }
  }, [group, begin, keys.join("&")]);
  const set = (at, part) => change(key.map((each, other) => (other === at ? { ...each, ...part } : each)));
  return html`
    <section aria-labelledby="trace">
      <h2 id="trace">Trace a row by its key</h2>
      <form onSubmit=${(event) => { event.preventDefault(); trace(table, key); }}>
        <div class="row"><label><span>Table</span>
          <input value=${table} placeholder="public.orders" spellcheck=${false} onInput=${(event) => of(event.target.value.trim())} /></label>
        ${key.map((each, at) => html`<fieldset key=${at} class="pair"><legend>${key.length > 1 ? `Key column ${at + 1}` : "Key"}</legend>
          <input aria-label="Column" value=${each.column} spellcheck=${false} onInput=${(event) => set(at, { column: event.target.value.trim() })} />
          <span aria-hidden="true">=</span>
          <input aria-label="Value" value=${each.value} spellcheck=${false} onInput=${(event) => set(at, { value: event.target.value })} /></fieldset>`)}
        <button type="button" onClick=${() => change([...key, { column: "", value: "" }])}>Another column</button>
        <button type="submit" class="main" disabled=${busy || !table}>${busy ? "Searching…" : "Trace"}</button></div>
        <details><summary>Rules and routes of the workers, to show which changes they dropped</summary>
          <div class="two"><label><span>Rules (YAML)</span><textarea rows="6" spellcheck=${false} value=${rules} onInput=${(event) => rule(event.target.value)} /></label>
          <label><span>Routes (YAML)</span><textarea rows="6" spellcheck=${false} value=${routing} onInput=${(event) => route(event.target.value)} /></label></div></details>
      </form>
      <${ProblemText} problem=${problem} />
      ${answer ? html`<${Found} trace=${answer} />` : null}
    </section>`;
}

function told({ xid, committed_at: committed, published_at: published, sequence }) {
  return `transaction ${xid}, committed ${clock(committed)}, published ${clock(published)} in message ${count(sequence)}`;
}

function Found({ trace }) {
  const { changes, searched_from: from, searched_to: to, is_whole: isWhole, more, copied, copy_lsn: lsn } = trace;
  const found = changes.length ? `${plural(changes.length, "change")} of the row of ${trace.table}` : `No change of this row of ${trace.table}`;
  const searched = `in messages ${count(from)} to ${count(to)}${isWhole ? ", the whole stream" : "; earlier messages were not searched"}`;
  const copy = copied ? ` Initial snapshot of the table: ${copied.replaceAll("_", " ")}${lsn ? `; changes apply from ${lsn}` : ""}.` : "";
  return html`
    <p role="status">${`${found} ${searched}${more ? "; earlier changes exist too" : ""}.${copy}`}</p>
    <ol class="trace">${changes.map((each) => html`<li key=${each.position}>
      <p><${Operation} name=${each.operation} /> <code>${each.position}</code> <span class="soft">${told(each)}</span></p>
      <ul class="outcomes">${each.workers.map((worker) => html`<li key=${worker.worker}>${worker.worker} <${Badge} state=${worker.outcome} />
        ${worker.detail ? html` <span class="soft">${worker.detail}</span>` : null}</li>`)}</ul>
      <${Change} change=${each.change} /></li>`)}</ol>`;
}
