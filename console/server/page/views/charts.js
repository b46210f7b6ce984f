// A group's last hours in figures, as the server keeps them since it began.

import { useMemo, useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Chart } from "../parts/chart.js";
import { fillsIn, sayFilling } from "../parts/filling.js";
import { bytes, count, duration, rate } from "../parts/format.js";
import { useAnswer } from "../parts/hooks.js";
import { ProblemText } from "../parts/problem.js";
import { get, pathOf } from "../server/api.js";

const STEP_S = 10;
const SPANS = [[900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"]];

// All series on one grid of times: one that was not kept yet then is not known.
function onGrid(series) {
  const kept = series.filter((each) => each.values.length);
  if (!kept.length) {
    return null;
  }
  const first = Math.min(...kept.map((each) => each.start_s));
  const last = Math.max(...kept.map((each) => each.start_s + STEP_S * (each.values.length - 1)));
  const times = Array.from({ length: (last - first) / STEP_S + 1 }, (_, at) => first + at * STEP_S);
  const values = Object.fromEntries(series.map(({ name, start_s, values: own }) => {
    const skipped = (start_s - first) / STEP_S;
    return [name, times.map((__, at) => own[at - skipped] ?? null)];
  }));
  return { times, values };
}

export function Charts({ group, view }) {
  const [span, choose] = useState(3600);
  const ask = () => get(`${pathOf("groups", group)}/series`, { since_s: Math.floor(Date.now() / 1000) - span });
  const { answer, problem } = useAnswer(ask, `${group} ${span}`, STEP_S * 1000);
  const grid = useMemo(() => (answer ? onGrid(answer.series) : null), [answer]);
  return html`
    <section aria-labelledby="figures">
      <div class="title"><h2 id="figures">Figures</h2>
        <div class="choice" role="group" aria-label="Time shown">${SPANS.map(([seconds, title]) => html`
          <button key=${seconds} aria-pressed=${span === seconds} onClick=${() => choose(seconds)}>${title}</button>`)}</div></div>
      <${ProblemText} problem=${problem} />
      ${grid ? html`<${Figures} grid=${grid} stream=${view.status.stream} slotProblem=${view.status.source_problem} />`
        : html`<p class="soft">Figures are kept from the server's start on; the first comes within ten seconds.</p>`}
    </section>`;
}

function Figures({ grid: { times, values }, stream, slotProblem }) {
  const line = (label, tone, name, dashed = false) => ({ label, tone, dashed, values: values[name] });
  const filling = stream ? sayFilling(fillsIn(values.stream_bytes, STEP_S, stream.max_bytes)) : "";
  const retained = values.slot_retained_bytes.some((value) => value !== null) ? "" : slotProblem || "the source is not known to this server";
  return html`<div class="charts">
    <${Chart} title="Changes" times=${times} as=${rate}
      lines=${[line("published", "--one", "published_per_s"), line("applied", "--two", "applied_per_s", true)]} />
    <${Chart} title="Lag" times=${times} as=${duration} lines=${[line("slowest worker", "--three", "lag_s")]} />
    <${Chart} title="From commit to applied" times=${times} as=${duration}
      lines=${[line("half within", "--one", "latency_p50_s"), line("99 % within", "--two", "latency_p99_s")]} />
    <${Chart} title="WAL that the source keeps" times=${times} as=${bytes} lines=${[line("kept", "--one", "slot_retained_bytes")]} says=${retained} />
    <${Chart} title="Stream" times=${times} as=${bytes} lines=${[line("stored", "--two", "stream_bytes")]}
      says=${stream && stream.max_bytes > 0 ? `of ${bytes(stream.max_bytes)}: ${filling}` : ""} />
    <${Chart} title="Dead letters" times=${times} as=${count} lines=${[line("set aside", "--three", "dead_letters")]} />
  </div>`;
}
