// What a group is to be: its document, what it was before, and another text, planned before it is applied.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Sql } from "../parts/copy_button.js";
import { Confirmation } from "../parts/dialog.js";
import { clock, plural } from "../parts/format.js";
import { useAnswer } from "../parts/hooks.js";
import { Time } from "../parts/known.js";
import { carryOut } from "../parts/notices.js";
import { ProblemText, sentence } from "../parts/problem.js";
import { Table } from "../parts/table.js";
import { get, pathOf, remove } from "../server/api.js";
import { Changes, Editor } from "./editor.js";

export function Document({ group, view, server }) {
  const path = `${pathOf("groups", group)}/document`;
  const revision = view.document;
  const sign = `${group} ${revision}`;
  const { answer, problem } = useAnswer(() => (revision === null ? Promise.resolve(null) : get(path)), sign);
  const { answer: history } = useAnswer(() => get(`${path}/history`), sign);
  const [edited, edit] = useState(null);
  const [isLeaving, leave] = useState(false);
  const versions = history?.documents ?? [];
  return html`
    <section aria-labelledby="document">
      <div class="title"><h2 id="document">Configuration</h2>
        ${edited ? null : html`<p class="buttons"><button class="main" disabled=${revision !== null && !answer} onClick=${() => edit({ text: answer?.yaml ?? `group: ${group}\n`, base: revision })}>${revision === null ? "Create" : "Edit"}</button>
          ${server.role === "admin" && answer ? html`<button onClick=${() => leave(true)}>Delete</button>` : null}</p>`}</div>
      <${ProblemText} problem=${problem} />
      ${edited ? html`<${Editor} key=${edited.text} group=${group} begin=${edited.text} base=${edited.base} newest=${revision} server=${server} onDone=${() => edit(null)} onLeave=${() => edit(null)} />`
        : html`<${Current} answer=${revision === null ? null : answer} isKnown=${revision !== null} />`}
      ${versions.length ? html`<${History} versions=${versions} take=${edited ? null : (text) => edit({ text, base: revision })} />` : null}
      ${isLeaving ? html`<${Deletion} group=${group} path=${path} revision=${revision} server=${server} onClose=${() => leave(false)} />` : null}
    </section>`;
}

function Current({ answer, isKnown }) {
  if (!answer) {
    return html`<p>${isKnown ? "Loading…" : "This group has no stored configuration. So a server cannot run its processes, and does not know its source."}</p>`;
  }
  return html`<p class="soft">Revision ${answer.revision}, applied <${Time} at=${answer.applied_at} /> by ${answer.applied_by || "an unknown user"}</p>
    ${answer.problem ? html`<p class="problem" role="alert"><strong>This server does not use this configuration:</strong> ${sentence(answer.problem)}</p>` : null}
    <${Sql} text=${answer.yaml} what="the configuration" />`;
}

// One line for each setting, as the server writes them.
function settingsOf(yaml) {
  return new Map(yaml.split("\n").filter(Boolean).map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
}

function changesBetween(before, after) {
  const [old, now] = [settingsOf(before), settingsOf(after)];
  const names = [...new Set([...old.keys(), ...now.keys()])].sort();
  return names.filter((name) => old.get(name) !== now.get(name)).map((name) => ({ name, before: old.get(name) ?? "", after: now.get(name) ?? "" }));
}

function History({ versions, take }) {
  const rows = versions.map((version, at) => ({ ...version, changes: changesBetween(versions[at + 1]?.yaml ?? "", version.yaml), isFirst: at === versions.length - 1 }));
  const [opened, open] = useState(null);
  const columns = [
    { title: "Revision", cell: ({ revision }) => revision },
    { title: "Applied", cell: ({ applied_at: at }) => html`<time datetime=${at}>${clock(at)}</time>` },
    { title: "By", cell: ({ applied_by: by }) => by },
    { title: "Changed", wide: true, cell: ({ changes, isFirst }) => (isFirst ? html`<span class="soft">the oldest retained revision</span>` : changes.map((each) => each.name).join(", ") || "no setting") },
    { title: "Actions", cell: ({ revision, yaml }) => html`<span class="buttons">
      <button class="small" aria-expanded=${opened === revision} aria-label=${`Show revision ${revision}`} onClick=${() => open(opened === revision ? null : revision)}>${opened === revision ? "Hide" : "Show"}</button>
      ${take ? html`<button class="small" aria-label=${`Edit revision ${revision}`} onClick=${() => take(yaml)}>Edit</button>` : null}</span>` },
  ];
  return html`<h3 class="part">History</h3><p class="soft">${plural(versions.length, "revision")} retained</p>
    <${Table} caption="History" columns=${columns} rows=${rows} keyOf=${({ revision }) => revision}
      below=${(row) => (row.revision === opened ? html`${row.isFirst ? null : html`<${Changes} changes=${row.changes} caption=${`Changes of revision ${row.revision}`} />`}
        <${Sql} text=${row.yaml} what=${`revision ${row.revision}`} />` : null)} />`;
}

function Deletion({ group, path, revision, server, onClose }) {
  const says = ["The group stays: its replication slot, streams and targets do not change.", server.runs ? "This server no longer restarts the group's processes. Running processes continue." : "This server can no longer check the group or show the WAL that the source retains.", "The history of the configuration stays."];
  return html`<${Confirmation} title=${`Delete the configuration of ${group}?`} action="Delete" says=${says} danger=${true} wanted=${group}
    onConfirm=${() => carryOut(() => remove(path, revision), `The configuration of ${group} is deleted`)} onClose=${onClose} />`;
}
