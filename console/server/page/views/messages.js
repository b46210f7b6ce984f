// What is in a group's stream, message by message; reading does not affect the group.

import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { bytes, clock, count, plural } from "../parts/format.js";
import { useAsked } from "../parts/hooks.js";
import { ProblemText } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { Change, Operation, tableOf, valueText } from "../parts/values.js";
import { getRows, pathOf } from "../server/api.js";
import { Blind } from "./blind.js";

const LIMIT = 50;

export function Messages({ group, server, query }) {
  return server.values ? html`<${Inspector} group=${group} begin=${query.get("start") ?? ""} />` : html`<${Blind} what="Messages hold row values" />`;
}

function Inspector({ group, begin }) {
  const [start, from] = useState(begin);
  const [table, of] = useState("");
  const { answer, problem, busy, ask } = useAsked();
  const read = (place) => ask(() => getRows(`${pathOf("groups", group)}/messages`, { start: place, table, limit: LIMIT }));
  useEffect(() => {
    from(begin);
    read(begin);
  }, [group, begin]);
  const go = (place) => {
    from(place);
    read(place);
  };
  return html`
    <section aria-labelledby="messages">
      <h2 id="messages">Messages</h2>
      <form class="row" onSubmit=${(event) => { event.preventDefault(); read(start); }}>
        <label><span>From a sequence number or a time</span>
          <input value=${start} placeholder="newest" spellcheck=${false} onInput=${(event) => from(event.target.value.trim())} /></label>
        <label><span>Table or pattern</span>
          <input value=${table} placeholder="any" spellcheck=${false} onInput=${(event) => of(event.target.value.trim())} /></label>
        <button type="submit" class="main" disabled=${busy}>Read</button>
      </form>
      <${ProblemText} problem=${problem} />
      ${answer ? html`<${Page} group=${group} page=${answer} go=${go} />` : null}
    </section>`;
}

function Page({ group, page, go }) {
  const { messages, next_sequence: next, first_sequence: first, last_sequence: last } = page;
  const earlier = messages.length ? Math.max(first, messages[0].sequence - LIMIT) : first;
  const shown = messages.length ? `messages ${count(messages[0].sequence)} to ${count(messages[messages.length - 1].sequence)}` : "no message";
  return html`
    <p class="buttons"><button disabled=${!messages.length || messages[0].sequence <= first} onClick=${() => go(String(earlier))}>Earlier</button>
      <button disabled=${next === null} onClick=${() => go(String(next))}>Later</button>
      <button onClick=${() => go("")}>Newest</button>
      <span class="soft" role="status">${shown}; the stream contains ${last >= first ? `${count(first)} to ${count(last)}` : "no messages"}</span></p>
    <ol class="messages">${messages.map((each) => html`<${Message} key=${each.sequence} group=${group} message=${each} />`)}</ol>`;
}

function Message({ group, message }) {
  const { sequence, stored_at: stored, stored_bytes: size, chunks, changes, left_out: left, first } = message;
  return html`<li><details>
    <summary><b>${count(sequence)}</b> <span class="soft">${clock(stored)}, ${first}, ${bytes(size)}${chunks > 1 ? ` in ${chunks} chunks` : ""}</span>
      ${message.tables.map(({ table, changes: number }) => html` <span key=${table} class="chip">${table || "no table"} ${number}</span>`)}</summary>
    ${changes.map((change, at) => html`<div class="change" key=${at}>
      <p><${Operation} name=${change.operation} /> ${tableOf(change)} ${change.key ? html`<a href=${traceOf(group, change)}>Trace this row</a>` : null}</p>
      <${Change} change=${change} /></div>`)}
    ${left ? html`<p class="soft">and ${plural(left, "more change")}</p>` : null}
  </details></li>`;
}

function traceOf(group, change) {
  const key = new URLSearchParams({ table: tableOf(change) });
  Object.entries(change.key).forEach(([column, value]) => key.append("key", `${column}=${valueText(value)}`));
  return `${href("groups", group, "trace")}?${key}`;
}
