// What `pgsluice check` finds of a group, each finding with the SQL that cures it.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Sql } from "../parts/copy_button.js";
import { useAsked } from "../parts/hooks.js";
import { plural } from "../parts/format.js";
import { ProblemText, sentence } from "../parts/problem.js";
import { Badge } from "../parts/state.js";
import { pathOf, post } from "../server/api.js";

const SUBJECTS = { source: "source", target: "target", nats: "NATS", sink: "sink", rules: "rules and routes", machine: "this machine" };
const RANK = { error: 0, warning: 1, info: 2 };

export function Health({ group, server }) {
  const { answer, problem, busy, ask } = useAsked();
  const [dismissed, dismiss] = useState([]);
  const check = () => ask(() => post(`${pathOf("groups", group)}/check`));
  const findings = (answer?.report.findings ?? []).filter((each) => !dismissed.includes(each.fact)).sort((one, other) => RANK[one.severity] - RANK[other.severity]);
  return html`
    <section aria-labelledby="health">
      <div class="title"><h2 id="health">Health</h2>
        ${server.role === "viewer" ? null : html`<button onClick=${check} disabled=${busy}>${busy ? "Checking…" : answer ? "Check again" : "Check"}</button>`}
        <span role="status" class="soft">${answer ? counted(answer.report) : ""}</span></div>
      <${ProblemText} problem=${problem} />
      ${answer ? null : problem ? null : html`<p class="soft">A check examines source, target, NATS and rules, and changes nothing. It lists each problem of the
        group, with the SQL that fixes it.</p>`}
      <ul class="findings">${findings.map((each) => html`<${Finding} key=${each.subject + each.check + each.fact} finding=${each}
        onDismiss=${() => dismiss([...dismissed, each.fact])} />`)}</ul>
      ${answer?.script ? html`<details><summary>All of the SQL as one script</summary><${Sql} text=${answer.script} what="the script" /></details>` : null}
    </section>`;
}

function counted({ counts, looked_at: subjects }) {
  const { errors, warnings, infos } = counts;
  const said = errors || warnings ? `${plural(errors, "error")}, ${plural(warnings, "warning")}` : "No problems found";
  return `${said}, ${infos} for information. Checked: ${subjects.map((each) => SUBJECTS[each] ?? each).join(", ")}.`;
}

function Finding({ finding, onDismiss }) {
  const { severity, subject, fact, remedy, statements, choices, restart } = finding;
  return html`<li class="finding ${severity}">
    <p><${Badge} state=${severity} /> <strong>${SUBJECTS[subject] ?? subject}:</strong> ${sentence(fact)}
      ${severity === "info" ? html` <button class="small" onClick=${onDismiss}>Dismiss</button>` : null}</p>
    ${remedy ? html`<p class="remedy">${sentence(remedy)}</p>` : null}
    ${statements.length ? html`<${Sql} text=${statements.map((each) => `${each};`).join("\n")} what="the SQL that fixes it" />` : null}
    ${choices.map((each) => html`<div key=${each} class="either"><p class="soft">Optional:</p><${Sql} text=${`${each};`} what="the optional SQL" /></div>`)}
    ${restart ? html`<p class="soft">It takes effect after a restart of that server.</p>` : null}
  </li>`;
}
