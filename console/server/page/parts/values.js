// Row values: a change as what it did to which row, each value as text and nothing else.

import { html } from "./html.js";
import { ExactNumber } from "../server/exact.js";

const OPERATION_TONES = { INSERT: "good", UPDATE: "busy", DELETE: "bad", TRUNCATE: "bad", READ: "calm" };

export function valueText(value) {
  if (value === null || value === undefined) {
    return "NULL";
  }
  return typeof value === "object" && !(value instanceof ExactNumber) ? JSON.stringify(value) : String(value);
}

export function Value({ value }) {
  return value === null || value === undefined ? html`<span class="null">NULL</span>` : html`<code class="value">${valueText(value)}</code>`;
}

export function Operation({ name }) {
  return html`<span class="badge ${OPERATION_TONES[name] ?? "calm"}">${name}</span>`;
}

export function tableOf(change) {
  return `${change.schema}.${change.table}`;
}

// Of an update what it changed, where the old row is known; of anything else its row.
export function Change({ change }) {
  const row = change.after ?? change.before ?? {};
  const before = change.after && change.before ? change.before : {};
  return html`
    <dl class="values">${Object.entries(row).map(([column, value]) => {
      const isChanged = column in before && valueText(before[column]) !== valueText(value);
      const isKey = change.key && column in change.key;
      return html`<div key=${column} class=${isChanged ? "changed" : ""}>
        <dt>${column}${isKey ? html`<span class="soft"> key</span>` : null}</dt>
        <dd>${isChanged ? html`<del><${Value} value=${before[column]} /></del> <span aria-label="became">→</span> ` : null}<${Value} value=${value} /></dd>
      </div>`;
    })}${(change.unchanged ?? []).map((column) => html`<div key=${column}><dt>${column}</dt><dd class="soft">not touched, and not sent</dd></div>`)}
    </dl>`;
}
