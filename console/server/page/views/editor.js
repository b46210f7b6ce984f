// A document's text as a user writes it: its changes are shown first, and a newer revision is never overwritten unseen.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Confirmation } from "../parts/dialog.js";
import { plural } from "../parts/format.js";
import { useAsked } from "../parts/hooks.js";
import { say, sayProblem } from "../parts/notices.js";
import { ProblemText } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { Table } from "../parts/table.js";
import { Problem, STALE, pathOf, post, put } from "../server/api.js";

export function Changes({ changes, caption }) {
  const value = (text) => (text ? html`<code>${text}</code>` : html`<span class="soft">not set</span>`);
  const columns = [
    { title: "Setting", cell: ({ name }) => html`<strong>${name}</strong>` },
    { title: "Before", wide: true, cell: ({ before }) => value(before) },
    { title: "After", wide: true, cell: ({ after }) => value(after) },
  ];
  return html`<${Table} caption=${caption} columns=${columns} rows=${changes} keyOf=${({ name }) => name} />`;
}

// `group` is "" for one that the text names. `base` is the revision that the text was made of, null for none; `newest` is the one
// that there is now. A text that was not planned as it stands, against the newest revision, cannot be applied.
export function Editor({ group, begin, base: first, newest, server, onDone, onLeave }) {
  const [text, write] = useState(begin);
  const [base, follow] = useState(first);
  const [planned, keep] = useState("");
  const [isApplying, apply] = useState(false);
  const { answer: plan, problem, busy, ask } = useAsked();
  const isStale = group !== "" && newest !== base;
  const isPlanned = plan !== null && planned === text && !isStale && plan.revision === base;
  const look = (event) => {
    event.preventDefault();
    keep(text);
    ask(async () => only(await post("/plan", { documents: [text] }), group));
  };
  const send = async (reason) => {
    try {
      await put(`${pathOf("groups", plan.group)}/document`, { yaml: text, reason }, base);
      say(`The configuration of ${plan.group} is applied`);
      onDone(plan.group);
      return true;
    } catch (refused) {
      sayProblem(refused);
      keep("");
      return STALE.includes(refused.status); // the text stays, and what became of the document is said beside it
    }
  };
  return html`
    <form onSubmit=${look}>
      <label><span>YAML, with secrets as references</span><textarea rows=${Math.min(40, Math.max(10, begin.split("\n").length + 2))} spellcheck=${false} value=${text} onInput=${(event) => write(event.target.value)} /></label>
      ${isStale ? html`<p class="problem" role="alert"><strong>Another user was faster: you edit ${base === null ? "a new configuration" : `revision ${base}`}, and ${newest === null ? "the configuration was deleted" : `revision ${newest} is current`}.</strong>
        The history shows the changes. <button type="button" class="small" onClick=${() => follow(newest)}>Continue from the current revision</button></p>` : null}
      <p class="buttons"><button type="submit" class=${isPlanned ? "" : "main"} disabled=${busy}>Plan</button>
        ${server.role === "admin" ? html`<button type="button" class="main" disabled=${!isPlanned || plan.action === "none"} onClick=${() => apply(true)}>Apply</button>` : html`<span class="soft">Only an admin can apply</span>`}
        <button type="button" onClick=${onLeave}>Cancel</button></p>
    </form>
    <${ProblemText} problem=${problem} />
    ${plan && planned === text ? html`<${Planned} plan=${plan} group=${group} />` : null}
    ${isApplying ? html`<${Confirmation} title=${`Apply the configuration of ${plan.group}?`} action="Apply" says=${consequences(plan, server)} onConfirm=${send} onClose=${() => apply(false)} />` : null}`;
}

// Of one document, and of this group.
function only({ documents }, group) {
  if (documents.length !== 1 || (group && documents[0].group !== group)) {
    throw new Problem({ detail: group ? `the text is not one configuration of group ${group}` : "the text is not one configuration", remedy: group ? `write group: ${group}, and no ---` : "write one configuration, and no ---" });
  }
  return documents[0];
}

function Planned({ plan, group }) {
  if (!group && plan.revision !== null) {
    return html`<p class="problem" role="alert"><strong>Group ${plan.group} already has a configuration.</strong> <a href=${href("groups", plan.group, "document")}>Edit it</a></p>`;
  }
  if (plan.action === "none") {
    return html`<p role="status">Nothing would change.</p>`;
  }
  return html`<p role="status">${plan.action === "create" ? `The configuration of ${plan.group} would be created` : `${plural(plan.changes.length, "setting")} would change`}:</p>
    <${Changes} changes=${plan.changes} caption="Planned changes" />`;
}

function consequences(plan, server) {
  const changed = plan.action === "create" ? `A configuration of group ${plan.group} is created, with ${plural(plan.changes.length, "setting")}.` : `${plural(plan.changes.length, "setting")} of group ${plan.group} ${plan.changes.length === 1 ? "changes" : "change"}: ${plan.changes.map((each) => each.name).join(", ")}.`;
  return [changed, server.runs ? "Processes that this server runs finish the current batch, and restart with the new configuration." : "Processes use the new configuration after you restart them.", "The previous revision stays in the history."];
}
