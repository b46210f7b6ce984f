// One SQL pipeline: its runs, what was asked for, orders, and its document.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Sql } from "../parts/copy_button.js";
import { Confirmation } from "../parts/dialog.js";
import { clock, count, duration, isKnown, plural } from "../parts/format.js";
import { useAnswer, useAsked } from "../parts/hooks.js";
import { Known, Time } from "../parts/known.js";
import { carryOut } from "../parts/notices.js";
import { ProblemText, sentence } from "../parts/problem.js";
import { href } from "../parts/route.js";
import { Badge } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { get, pathOf, post, remove } from "../server/api.js";
import { PipelineEditor } from "./pipeline_editor.js";
import { NextTick } from "./pipelines.js";

const ASKED_EVERY_MS = 2000;
const LEFT = ["reading", "pausing", "paused", "interrupted", "failed"];

export function Pipeline({ name, server }) {
  const path = pathOf("pipelines", name);
  const { answer, problem, again } = useAnswer(() => get(path), name, ASKED_EVERY_MS);
  const { answer: runs } = useAnswer(() => get(`${path}/runs`), name, ASKED_EVERY_MS);
  if (!answer || problem?.status === 404) {
    return html`<h1 tabindex="-1">${name}</h1><${ProblemText} problem=${problem} />${problem ? null : html`<p>Loading…</p>`}`;
  }
  const { pipeline, document } = answer;
  return html`
    <h1 tabindex="-1">${name}</h1>
    <${ProblemText} problem=${problem} />
    ${pipeline.problem ? html`<${ProblemText} problem=${{ detail: pipeline.problem, remedy: pipeline.remedy }} />` : null}
    ${pipeline.group ? html`<${Facts} pipeline=${pipeline} ticks=${runs?.ticks} />
      <${Orders} path=${path} pipeline=${pipeline} server=${server} again=${again} />
      <${Runs} runs=${runs} />` : null}
    <${Text} path=${path} pipeline=${pipeline} document=${document} server=${server} again=${again} />`;
}

function Facts({ pipeline, ticks }) {
  const { mode, write, source, sink, target, group, schedule, has_checkpoint: has, is_paused: isPaused } = pipeline;
  return html`<dl class="values">
    <div><dt>Reads</dt><dd>${source || "the source of the run"}, ${mode}</dd></div>
    <div><dt>Fills</dt><dd>${target}${sink ? ` of ${sink}` : ""}, ${write}</dd></div>
    <div><dt>Group</dt><dd><a href=${href("groups", group)}>${group}</a></dd></div>
    <div><dt>Checkpoint</dt><dd>${mode === "incremental" ? (has ? "known" : "none yet: the next run reads all rows") : "none: each run reads all rows"}</dd></div>
    <div><dt>Schedule</dt><dd>${schedule || "none"}${ticks?.missed || ticks?.skipped ? html` <span class="soft">${plural(ticks.missed, "scheduled run")} missed, ${count(ticks.skipped)} skipped</span>` : null}</dd></div>
    <div><dt>Next scheduled run</dt><dd><${NextTick} ...${pipeline} />${isPaused ? ", paused: no run starts" : ""}</dd></div>
  </dl>`;
}

function Orders({ path, pipeline, server, again }) {
  const [asking, ask] = useState("");
  const { answer: plan, problem, busy, ask: look } = useAsked();
  const newest = pipeline.newest;
  if (server.role === "viewer") {
    return null;
  }
  const order = (verb, body, done) => async (reason) => {
    const went = await carryOut(() => post(`${path}/${verb}`, { ...body, reason }), done);
    again();
    return went;
  };
  const inHand = newest && LEFT.includes(newest.state) ? `runs/${newest.run}` : "";
  const dialogs = {
    run: { title: `Run ${pipeline.name} now?`, action: "Run", says: ["The run reads the rows since the checkpoint, or the rest of an unfinished run.", "It waits while the pipeline is paused or another run is active."], onConfirm: order("runs", { full: false }, "A run is requested") },
    full: { title: `Read all rows of ${pipeline.name}?`, action: "Run in full", says: ["The run reads all rows of the query, also those that were read before.", "The rest of an unfinished run is abandoned."], danger: true, wanted: pipeline.name, onConfirm: order("runs", { full: true }, "A full run is requested") },
    cancel: { title: `Cancel run ${newest?.run}?`, action: "Cancel the run", leave: "Continue the run", says: ["The run ends at its next message and cannot be resumed.", "Rows that it has published are still applied.", "The checkpoint does not change."], danger: true, onConfirm: order(`${inHand}/cancel`, {}, "The run ends at its next message") },
  };
  return html`
    <p class="buttons">
      <button class="main" disabled=${Boolean(pipeline.problem)} onClick=${() => ask("run")}>Run now</button>
      <button disabled=${Boolean(pipeline.problem)} onClick=${() => ask("full")}>Run in full</button>
      <button disabled=${busy || Boolean(pipeline.problem)} onClick=${() => look(() => post(`${path}/plan`, {}))}>Preview a run</button>
      ${pipeline.is_paused ? html`<button onClick=${() => order(`runs/${newest?.run}/resume`, {}, "Runs continue")("")}>Resume</button>`
        : inHand ? html`<button onClick=${() => order(`${inHand}/pause`, {}, "The run pauses at its next message")("")}>Pause</button>` : null}
      ${inHand ? html`<button onClick=${() => ask("cancel")}>Cancel run ${newest.run}</button>` : null}
    </p>
    <${ProblemText} problem=${problem} />
    ${plan ? html`<p role="status">${plan.is_resumed ? "The rest of an unfinished run would be read" : plan.is_full ? "A full run would read" : "A run would read"}: ${plural(plan.rows, "row")} in ${plural(plan.batches, "batch", "batches")}, with the columns ${plan.columns.map(({ name, type }) => `${name} (${type})`).join(", ")}.</p>` : null}
    ${asking ? html`<${Confirmation} ...${dialogs[asking]} onClose=${() => ask("")} />` : null}`;
}

function Runs({ runs }) {
  const columns = [
    { title: "Run", number: true, cell: ({ run }) => run },
    { title: "State", cell: ({ state }) => html`<${Badge} state=${state} />` },
    { title: "Kind", cell: ({ kind }) => kind },
    { title: "Start, end", cell: ({ started_at: begun, finished_at: ended }) => [begun, ended].filter(Boolean).map((at) => html`<div key=${at}><time datetime=${at}>${clock(at)}</time></div>`) },
    { title: "Read", number: true, cell: ({ kind, rows, rows_read: read }) => (kind === "reconcile" ? "" : `${count(read)} of ${count(rows)}`) },
    { title: "Dead letters", number: true, cell: ({ dead }) => count(dead) },
    { title: "Applied", number: true, cell: ({ rows_applied: applied }) => html`<${Known} value=${applied} as=${count} otherwise="–" />` },
    { title: "Unchanged", number: true, cell: ({ unchanged }) => html`<${Known} value=${unchanged} as=${count} otherwise="–" />` },
    { title: "Took", cell: (run) => html`<${Stages} ...${run} />` },
  ];
  const asked = [
    { title: "Requested", cell: ({ requested_at: at }) => html`<${Time} at=${at} />` },
    { title: "State", cell: ({ state }) => html`<${Badge} state=${state} />` },
    { title: "Request", cell: ({ full, by }) => `${full ? "full run" : "run"}, by ${by === "person" ? "a user" : "the schedule"}` },
    { title: "Reason", wide: true, cell: ({ reason, run }) => (reason ? sentence(reason) : run ? `Run ${run}` : "") },
  ];
  const open = (runs?.requests ?? []).filter(({ state }) => state !== "done");
  return html`
    <section aria-labelledby="runs"><h2 id="runs">Runs</h2>
      ${!runs ? html`<p>Loading…</p>` : runs.runs.length ? html`<${Table} caption="Runs" columns=${columns} rows=${runs.runs} keyOf=${({ run }) => run}
        below=${({ reason }) => (reason ? html`<p>${sentence(reason)}</p>` : null)} />` : html`<p>This pipeline has not run yet.</p>`}
      ${open.length ? html`<h3 class="part">Requests</h3><${Table} caption="Requests" columns=${asked} rows=${open} keyOf=${({ id }) => id} />` : null}
    </section>`;
}

// What a run that was killed, or is being read, took is not known.
function Stages({ finished_at: ended, attempts, plan_s: plan, read_s: read, apply_s: apply }) {
  const taken = Object.entries(ended ? { plan, read, apply } : {}).filter(([, seconds]) => isKnown(seconds));
  return html`<span class="soft">${taken.map(([stage, seconds]) => `${stage} ${duration(seconds)}`.replaceAll(" ", "\u00a0")).join(", ")}${attempts > 1 ? ` in ${attempts} attempts` : ""}</span>`;
}

function Text({ path, pipeline, document, server, again }) {
  const [edited, edit] = useState(null);
  const [isLeaving, leave] = useState(false);
  if (pipeline.document === null) {
    return html`<p class="soft">This pipeline is in the server's pipelines file. Edit it there.</p>`;
  }
  const done = () => {
    edit(null);
    again();
  };
  const says = ["Rows that were read stay in the stream and at the target.", "Its worker continues until you stop it. No new run starts.", "The history of the configuration stays."];
  return html`
    <section aria-labelledby="document">
      <div class="title"><h2 id="document">Configuration</h2>
        ${edited || server.role !== "admin" ? null : html`<p class="buttons">
          <button disabled=${!document} onClick=${() => edit({ text: document.yaml, base: document.revision })}>Edit</button>
          <button onClick=${() => leave(true)}>Delete</button></p>`}</div>
      ${edited ? html`<${PipelineEditor} name=${pipeline.name} begin=${edited.text} base=${edited.base} newest=${pipeline.document} onDone=${done} onLeave=${() => edit(null)} />`
        : document ? html`<p class="soft">Revision ${document.revision}, applied <${Time} at=${document.applied_at} /> by ${document.applied_by || "an unknown user"}</p>
          <${Sql} text=${document.yaml} what="the configuration" />` : html`<p>The configuration cannot be read.</p>`}
      ${isLeaving ? html`<${Confirmation} title=${`Delete the configuration of ${pipeline.name}?`} action="Delete" says=${says} danger=${true} wanted=${pipeline.name}
        onConfirm=${async () => {
          const went = await carryOut(() => remove(path, pipeline.document), `The configuration of ${pipeline.name} is deleted`);
          if (went) {
            location.hash = href("pipelines");
          }
          return went;
        }} onClose=${() => leave(false)} />` : null}
    </section>`;
}
