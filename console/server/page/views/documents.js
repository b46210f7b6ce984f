// All documents, and one for a group that there is not yet.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { clock, plural } from "../parts/format.js";
import { useAnswer } from "../parts/hooks.js";
import { ProblemText } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { Table } from "../parts/table.js";
import { get } from "../server/api.js";
import { Editor } from "./editor.js";

const ASKED_EVERY_MS = 5000;
const BEGIN = `group: orders
host: db.internal
dbname: shop
user: pgsluice
password: \${SOURCE_PASSWORD}
tables: [public.*]
workers: [postgres]
`;

export function Documents({ server }) {
  const { answer, problem, again } = useAnswer(() => get("/documents"), "", ASKED_EVERY_MS);
  const [isNew, begin] = useState(false);
  const documents = answer?.documents ?? [];
  const columns = [
    { title: "Group", cell: ({ group }) => html`<a href=${href("groups", group, "document")}>${group}</a>` },
    { title: "Revision", cell: ({ revision }) => revision },
    { title: "Applied", cell: ({ applied_at: at }) => (at ? html`<time datetime=${at}>${clock(at)}</time>` : "") },
    { title: "By", cell: ({ applied_by: by }) => by },
  ];
  const done = (group) => {
    again();
    begin(false);
    location.hash = href("groups", group, "document");
  };
  return html`
    <div class="title"><h1 tabindex="-1">Configurations</h1><p class="soft">${answer ? plural(documents.length, "configuration") : "Loading…"}</p>
      ${isNew ? null : html`<p class="buttons"><button class="main" onClick=${() => begin(true)}>New configuration</button></p>`}</div>
    <${ProblemText} problem=${answer ? null : problem} />
    ${isNew ? html`<${Editor} group="" begin=${BEGIN} base=${null} newest=${null} server=${server} onDone=${done} onLeave=${() => begin(false)} />` : null}
    ${answer && !documents.length && !isNew ? html`<p>No group has a stored configuration yet. To create one, use the button or <code>pgsluice apply -f pgsluice.yaml</code>.</p>` : null}
    ${documents.length ? html`<${Table} caption="Configurations" columns=${columns} rows=${documents} keyOf=${({ group }) => group} />` : null}`;
}
