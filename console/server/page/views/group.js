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
    return html`<p class="unknown">${view.problem || "This group was not looked at yet."}</p>`;
  }
  const isDraft = view.status.units.every((unit) => unit.state === "draft");
  return html`
    ${isDraft ? html`<p class="worst">Nothing of this group was started yet: there is its <a href=${href("groups", group, "document")}>document</a> alone.
      ${server.runs ? "This server starts its processes." : html`Start <code>pgsluice replicator</code> and its workers, or a server with <code>--run</code>.`}</p>` : null}
    <${Line} status=${view.status} isOld=${Boolean(view.problem)} groups=${groups} />
    ${troubles.length ? html`<section aria-label="What is wrong"><ul class="troubles">${troubles.map((each) => html`
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
