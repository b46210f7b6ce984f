// A table of records: on a narrow screen each row becomes a card, whose cells say what they are. The roles stay a table's.

import { html } from "./html.js";

// `columns`: {title, cell(row), number?, wide?}; `below(row)` is a further line of a row, null for none.
export function Table({ caption, columns, rows, keyOf, below = () => null }) {
  return html`
    <table class="records" role="table" aria-label=${caption}>
      <thead role="rowgroup"><tr role="row">
        ${columns.map(({ title, number }) => html`<th key=${title} role="columnheader" scope="col" class=${number ? "number" : ""}>${title}</th>`)}
      </tr></thead>
      <tbody role="rowgroup">${rows.map((row) => html`<${Row} key=${keyOf(row)} row=${row} columns=${columns} more=${below(row)} />`)}</tbody>
    </table>`;
}

function Row({ row, columns, more }) {
  const cells = columns.map(({ title, cell, number, wide }) => {
    const kind = `${number ? "number" : ""} ${wide ? "wide" : ""}`;
    return html`<td key=${title} role="cell" data-title=${title} class=${kind}><div>${cell(row)}</div></td>`;
  });
  return html`
    <tr role="row" class=${more ? "followed" : ""}>${cells}</tr>
    ${more ? html`<tr role="row" class="more"><td role="cell" colspan=${columns.length}><div>${more}</div></td></tr>` : null}`;
}
