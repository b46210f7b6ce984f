// All query pipelines: what each reads and fills, its newest run, and a new one.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { count, plural } from "../parts/format.js";
import { useAnswer } from "../parts/hooks.js";
import { Time } from "../parts/known.js";
import { ProblemText } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { Badge } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { get } from "../server/api.js";
import { PipelineEditor } from "./pipeline_editor.js";

const ASKED_EVERY_MS = 3000;
const LATE_TICK_MS = 120_000;
const BEGIN = `query: |
  SELECT id, title, updated_at FROM film
target: analytics.films
key: [id]
mode: incremental
incremental-key: updated_at
source: shop
sink: warehouse
`;

export function Pipelines({ server }) {
  const { answer, problem, again } = useAnswer(() => get("/pipelines"), "", ASKED_EVERY_MS);
  const [isNew, begin] = useState(false);
  const pipelines = answer?.pipelines ?? [];
  const done = (name) => {
    again();
    begin(false);
    location.hash = href("pipelines", name);
  };
  return html`
    <div class="title"><h1 tabindex="-1">Pipelines</h1><p class="soft">${answer ? plural(pipelines.length, "pipeline") : problem ? "not known" : "Loading…"}</p>
      ${isNew || server.role !== "admin" ? null : html`<p class="buttons"><button class="main" onClick=${() => begin(true)}>New pipeline</button></p>`}</div>
    <${ProblemText} problem=${problem} />
    ${isNew ? html`<${PipelineEditor} name="" begin=${BEGIN} base=${null} newest=${null} onDone=${done} onLeave=${() => begin(false)} />` : null}
    ${answer && !pipelines.length && !isNew ? html`<p>There is no query pipeline yet, neither in the server's pipelines file nor as a stored configuration.</p>` : null}
    ${pipelines.length ? html`<${Table} caption="Pipelines" columns=${COLUMNS} rows=${pipelines} keyOf=${({ name, document }) => `${name} ${document}`}
      below=${({ problem: why, remedy }) => (why ? html`<${ProblemText} problem=${{ detail: why, remedy }} />` : null)} />` : null}`;
}

const COLUMNS = [
  { title: "Pipeline", cell: ({ name }) => html`<a href=${href("pipelines", name)}>${name}</a>` },
  { title: "Mode", cell: ({ mode, write }) => (mode ? `${mode}, ${write}` : "") },
  { title: "Into", cell: ({ sink, target }) => (sink ? html`${target} <span class="soft">of ${sink}</span>` : target) },
  { title: "Checkpoint", cell: ({ mode, has_checkpoint: has }) => (mode === "incremental" ? (has ? "known" : html`<span class="unknown">none yet</span>`) : "") },
  { title: "Next scheduled run", cell: (each) => html`<${NextTick} ...${each} />` },
  { title: "Newest run", cell: (each) => html`<${Newest} ...${each} />` },
  { title: "Rows", number: true, cell: ({ newest }) => (newest ? count(newest.rows) : "") },
];

export function NextTick({ schedule, next_tick: at }) {
  if (!schedule) {
    return html`<span class="soft">no schedule</span>`;
  }
  const date = new Date(at);
  const isLate = !at || Date.now() - date > LATE_TICK_MS;
  return html`${at ? html`<time datetime=${at}>${date.toLocaleString()}</time> ` : null}
    ${isLate ? html`<${Badge} state="failing" says="no scheduler runs it" />` : null}`;
}

function Newest({ problem, is_paused: isPaused, waiting, newest }) {
  return html`${problem ? html`<${Badge} state="error" says="cannot run" /> ` : null}
    ${isPaused && newest?.state !== "paused" ? html`<${Badge} state="pausing" says="paused" /> ` : null}
    ${newest ? html`<${Badge} state=${newest.state} /> <span class="soft"><${Time} at=${newest.finished_at || newest.started_at} /></span>` : html`<span class="soft">never ran</span>`}
    ${waiting ? html` <span class="soft">${plural(waiting, "request")} open</span>` : null}`;
}
