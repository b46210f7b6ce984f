// One group: what is wrong with it, its processes, its figures, its tables, its health, and its logs where they are here.

import { html } from "../parts/html.js";
import { useClock, useGroups } from "../parts/hooks.js";
import { Line } from "../parts/line.js";
import { sentence } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { troublesOf } from "../parts/troubles.js";
import { Alerts } from "./alerts.js";
import { Charts } from "./charts.js";
import { Health } from "./health.js";
import { Logs } from "./logs.js";
import { Subscriptions } from "./subscriptions.js";
import { Tables } from "./tables.js";
import { Units } from "./units.js";

export function Group({ group, view, server }) {
  const groups = useGroups();
  useClock();
  const troubles = troublesOf(view);
  if (!view.status) {
    return html`<p class="unknown">${view.problem || "The server has not read this group's state yet."}</p>`;
  }
  const isDraft = view.status.units.every((unit) => unit.state === "draft");
  return html`
    ${isDraft ? html`<p class="worst">No process of this group was started yet. The group has only its <a href=${href("groups", group, "document")}>configuration</a>.
      ${server.runs ? "This server starts the processes." : html`Start <code>pgsluice replicator</code> and the workers, or a server with <code>--run</code>.`}</p>` : null}
    <${Line} status=${view.status} isOld=${Boolean(view.problem)} groups=${groups} />
    ${troubles.length ? html`<section aria-label="Problems"><ul class="troubles">${troubles.map((each) => html`
      <li key=${each.subject + each.fact} class="worst ${each.severity}"><strong>${each.subject}:</strong> ${sentence(each.fact)}
        ${each.remedy ? html`<span class="remedy"> ${sentence(each.remedy)}</span>` : null}</li>`)}</ul></section>` : null}
    <${Units} group=${group} view=${view} server=${server} />
    <${Charts} group=${group} view=${view} />
    <${Tables} group=${group} view=${view} server=${server} />
    <${Subscriptions} group=${group} server=${server} />
    <${Health} group=${group} server=${server} />
    <${Alerts} group=${group} server=${server} />
    ${server.runs && server.role !== "viewer" ? html`<${Logs} group=${group} units=${view.status.units} />` : null}`;
}
