// Rules and routes, tried on rows of the stream or on lines that are given: each step, before and after. Nothing is changed by it.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { useAsked } from "../parts/hooks.js";
import { plural } from "../parts/format.js";
import { ProblemText } from "../parts/problem.js";
import { Badge } from "../parts/state.js";
import { Change, Operation, Value, tableOf } from "../parts/values.js";
import { Problem, postForRows } from "../server/api.js";
import { parseExact } from "../server/exact.js";
import { Blind } from "./blind.js";

const EXAMPLE = `tables:
  public.*:
    - type: transform
      column: email
      parameters: {type: mask, mask_char: "*"}
`;

export function Bench({ group, server }) {
  return server.values ? html`<${Trying} group=${group} />` : html`<${Blind} what="A test of rules shows row values" />`;
}

function linesOf(text) {
  try {
    return text.split("\n").filter((line) => line.trim()).map((line) => parseExact(line));
  } catch {
    throw new Problem({ detail: "the lines are not JSON", remedy: "enter one change per line, in the format of the page Messages or of a sink" });
  }
}

function Trying({ group }) {
  const [rules, rule] = useState("");
  const [routing, route] = useState("");
  const [lines, give] = useState("");
  const [table, of] = useState("");
  const [sample, many] = useState(20);
  const { answer, problem, busy, ask } = useAsked();
  const test = (event) => {
    event.preventDefault();
    ask(async () => postForRows("/rules/test", { rules, routing, group, table, sample: Number(sample), lines: linesOf(lines) }));
  };
  return html`
    <section aria-labelledby="bench">
      <h2 id="bench">Test rules and routes</h2>
      <form onSubmit=${test}>
        <div class="two"><label><span>Rules (YAML)</span><textarea rows="10" spellcheck=${false} placeholder=${EXAMPLE} value=${rules} onInput=${(event) => rule(event.target.value)} /></label>
          <label><span>Routes (YAML)</span><textarea rows="10" spellcheck=${false} value=${routing} onInput=${(event) => route(event.target.value)} /></label></div>
        <div class="row"><label><span>Number of newest changes</span><input type="number" min="1" max="200" value=${sample} onInput=${(event) => many(event.target.value)} /></label>
          <label><span>Table or pattern</span><input value=${table} placeholder="any" spellcheck=${false} onInput=${(event) => of(event.target.value.trim())} /></label>
          <button type="submit" class="main" disabled=${busy}>Test</button></div>
        <details><summary>Or use your changes</summary><label><span>JSON lines</span>
          <textarea rows="5" spellcheck=${false} value=${lines} onInput=${(event) => give(event.target.value)} /></label></details>
      </form>
      <${ProblemText} problem=${problem} />
      ${answer ? html`<${Outcome} result=${answer} />` : null}
    </section>`;
}

function Outcome({ result }) {
  return html`
    <p role="status">${plural(result.changes.length, "change")} tested.</p>
    ${result.warnings.map((each) => html`<p key=${each} class="worst warning">${each}</p>`)}
    <ol class="trace">${result.changes.map((each, at) => html`<li key=${at}>
      <p><${Operation} name=${each.before.operation} /> ${tableOf(each.before)} <${Badge} state=${each.outcome} /></p>
      <${Steps} steps=${each.steps} />
      <div class="two"><div><h3>Before</h3><${Change} change=${each.before} /></div>
        <div><h3>After</h3>${each.after.length ? each.after.map((after, number) => html`<div key=${number}><p><${Operation} name=${after.operation} /> ${tableOf(after)}</p><${Change} change=${after} /></div>`)
          : html`<p class="soft">Dropped: no change is applied.</p>`}</div></div></li>`)}</ol>`;
}

function Steps({ steps }) {
  return html`<ul class="outcomes">${steps.map((step, at) => html`<li key=${at}><code>${step.place}</code> <${Badge} state=${step.outcome} />
    ${step.detail ? html` <span class="soft">${step.detail}</span>` : null}
    ${step.values.map((each) => html`<span key=${each.column} class="step">${each.column}${each.old_row ? " (old row)" : ""}:
      ${each.was_sent ? html`<${Value} value=${each.before} />` : html`<span class="soft">not sent</span>`} → <${Value} value=${each.after} /></span>`)}</li>`)}</ul>`;
}
