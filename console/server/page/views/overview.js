// All groups of one NATS, each as a line with its lag, its rate and what is worst about it.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Sparkline } from "../parts/chart.js";
import { plural, rate } from "../parts/format.js";
import { useAnswer, useClock, useGroups } from "../parts/hooks.js";
import { Line } from "../parts/line.js";
import { sentence } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { Badge, worstState } from "../parts/state.js";
import { troublesOf } from "../parts/troubles.js";
import { get, pathOf } from "../server/api.js";

const MANY = 6;
const SPARK_INTERVAL_MS = 20000;

export function Overview() {
  const groups = useGroups();
  const [sought, seek] = useState("");
  useClock();
  const views = [...groups.views.values()].sort((one, other) => one.group.localeCompare(other.group));
  const shown = views.filter((view) => view.group.includes(sought) || (worstState(view) ?? "").startsWith(sought));
  return html`
    <div class="title"><h1 tabindex="-1">Groups</h1><${Summary} views=${views} isKnown=${groups.isKnown} /></div>
    ${views.length > MANY ? html`<label class="seek"><span>Name or state</span>
      <input type="search" value=${sought} onInput=${(event) => seek(event.target.value.trim())} /></label>` : null}
    ${groups.isKnown && !views.length ? html`<p>There is no group on this NATS server yet. To create one, start <code>pgsluice replicator</code>, or apply
      a <a href=${href("documents")}>configuration</a> if a server runs the processes.</p>` : null}
    <div class="cards">${shown.map((view) => html`<${Card} key=${view.group} view=${view} groups=${groups} />`)}</div>`;
}

function Summary({ views, isKnown }) {
  const states = new Map();
  views.forEach((view) => states.set(worstState(view) ?? "not known", (states.get(worstState(view) ?? "not known") ?? 0) + 1));
  return html`<p class="soft">${isKnown ? plural(views.length, "group") : "Loading…"}
    ${[...states].map(([state, number]) => html` <${Badge} key=${state} state=${state} says=${`${number} ${state}`} />`)}</p>`;
}

function Card({ view, groups }) {
  const { group, status } = view;
  const state = worstState(view);
  const troubles = troublesOf(view);
  return html`
    <article class="card" aria-label=${`Group ${group}`}>
      <header><h2><a href=${href("groups", group)}>${group}</a></h2>
        ${state ? html`<${Badge} state=${state} />` : null}<${LastHour} group=${group} /></header>
      ${status ? html`<${Line} status=${status} isOld=${Boolean(view.problem)} groups=${groups} />` : html`<p class="unknown">${view.problem || "The server has not read this group's state yet."}</p>`}
      ${troubles.length ? html`<${Worst} group=${group} troubles=${troubles} />` : null}
    </article>`;
}

function Worst({ group, troubles: [worst, ...others] }) {
  return html`<p class="worst ${worst.severity}"><strong>${worst.subject}:</strong> ${sentence(worst.fact)}
    ${others.length ? html` <a href=${href("groups", group)}>and ${others.length} more</a>` : null}</p>`;
}

// Asked for when the card is seen: there may be hundreds.
function LastHour({ group }) {
  const place = useRef(null);
  const [isSeen, see] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => see(entry.isIntersecting));
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return html`<span class="hour" ref=${place}>${isSeen ? html`<${HourLine} group=${group} />` : null}</span>`;
}

function HourLine({ group }) {
  const { answer } = useAnswer(() => get(`${pathOf("groups", group)}/series`, { name: "applied_per_s" }), group, SPARK_INTERVAL_MS);
  const values = answer?.series[0].values ?? [];
  const newest = values[values.length - 1];
  const says = typeof newest === "number" ? `Changes applied in the last hour, newest 10 s avg ${rate(newest)}` : "No metrics of the last hour yet";
  return html`<${Sparkline} values=${values} says=${says} />`;
}
