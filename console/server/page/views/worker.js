// One worker: its newest batches, how long each took and what held it up.

import { html } from "../parts/html.js";
import { clock, count, duration, plural, rate } from "../parts/format.js";
import { useAnswer, useClock, useGroups } from "../parts/hooks.js";
import { Known, Time } from "../parts/known.js";
import { ProblemText, sentence } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { Badge } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { get, pathOf } from "../server/api.js";

const ASKED_EVERY_MS = 2000;
const LANES = { copied: "snapshot rows", changes: "changes", "catch-up": "changes of tables in catch-up" };

export function Worker({ group, item: name }) {
  const groups = useGroups();
  useClock();
  const { answer, problem } = useAnswer(() => get(pathOf("groups", group, "workers", name)), `${group} ${name}`, ASKED_EVERY_MS);
  return html`
    <section aria-labelledby="worker">
      <div class="title"><h2 id="worker">Worker ${name}</h2>${answer ? html`<${Badge} state=${answer.state.state} />` : null}
        <a href=${href("groups", group)}>Back to the group</a></div>
      <${ProblemText} problem=${answer ? null : problem} />
      ${answer ? html`<${Shown} answer=${answer} lag=${answer.worker ? groups.lag(group, answer.worker.lag_s) : null} />` : null}
    </section>`;
}

function Shown({ answer: { state, worker, batches, batches_since: since }, lag }) {
  return html`
    ${state.fact ? html`<p class="worst">${sentence(state.fact)}${state.remedy ? html` <span class="remedy">${sentence(state.remedy)}</span>` : null}</p>` : null}
    ${worker ? html`<dl class="values">
      <div><dt>Lag, now</dt><dd><${Known} value=${lag} as=${duration} /></dd></div>
      <div><dt>Applied up to message</dt><dd>${count(worker.sequence)}</dd></div>
      <div><dt>Applied up to commit</dt><dd><code>${worker.commit_lsn}</code></dd></div>
      <div><dt>Latency, p50 and p99 over 1 min</dt><dd><${Known} value=${worker.latency_p50_s} as=${duration} />, <${Known} value=${worker.latency_p99_s} as=${duration} /></dd></div>
      <div><dt>Runs on</dt><dd><${Known} value=${worker.host} /></dd></div></dl>` : null}
    <h3 class="part">Newest batches</h3>
    ${batches.length ? html`<${Batches} batches=${batches} since=${since} />` : html`<p class="unknown">This worker has reported no batch yet.</p>`}`;
}

function Batches({ batches, since }) {
  const columns = [
    { title: "Applied", cell: ({ at }) => html`<${Time} at=${at} />` },
    { title: "Content", cell: ({ lane }) => LANES[lane] ?? lane },
    { title: "Changes", number: true, cell: ({ changes }) => count(changes) },
    { title: "Took", number: true, cell: ({ seconds }) => duration(seconds) },
    { title: "Batch rate", number: true, cell: ({ changes, seconds }) => (seconds > 0 ? rate(changes / seconds) : "") },
    { title: "Plan, write, commit", cell: (each) => html`<span class="soft">${[each.plan_s, each.write_s, each.commit_s].map(duration).join(", ")}</span>` },
    { title: "Waited for", wide: true, cell: (batch) => html`<${Waited} batch=${batch} />` },
  ];
  const held = batches.filter((each) => each.attempts > 1).length;
  return html`
    <p class="soft">${plural(batches.length, "batch", "batches")} of the process that started <${Time} at=${since} />.
      ${held ? ` ${plural(held, "batch", "batches")} had failed attempts.` : " None had failed attempts."}</p>
    <${Strip} batches=${batches} />
    <${Table} caption="Newest batches" columns=${columns} rows=${batches} keyOf=${({ at, lane }) => `${at} ${lane}`} />`;
}

function Waited({ batch }) {
  const { attempts, waited_s: waited, waited_for: cause, reason } = batch;
  if (attempts === 1) {
    return html`<span class="soft">nothing</span>`;
  }
  const why = cause ? html`<${Badge} state="failing" says=${cause.replaceAll("_", " ")} /> ${sentence(reason)}` : "changes became dead letters.";
  return html`${duration(waited)}, ${plural(attempts - 1, "failed attempt")}: ${why}`;
}

// A bar for each batch, the oldest first: as high as it was long, with what held it up on top.
function Strip({ batches }) {
  const bars = [...batches].reverse();
  const most = Math.max(...bars.map((each) => each.seconds + each.waited_s), 1e-3);
  const wide = 600 / bars.length;
  const says = `How long each of ${plural(bars.length, "batch", "batches")} took, the longest ${duration(most)}, from ${clock(bars[0].at)} to ${clock(bars[bars.length - 1].at)}`;
  return html`<svg class="strip" viewBox="0 0 600 60" role="img" aria-label=${says} preserveAspectRatio="none">
    ${bars.map((each, at) => {
      const [took, waited] = [(each.seconds / most) * 58, (each.waited_s / most) * 58];
      return html`<g key=${each.at}><rect class="took" x=${at * wide} y=${60 - took} width=${wide * 0.8} height=${took} />
        <rect class="waited" x=${at * wide} y=${60 - took - waited} width=${wide * 0.8} height=${waited} /></g>`;
    })}</svg>`;
}
