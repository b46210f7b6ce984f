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
    <section aria-labelledby="metrics">
      <div class="title"><h2 id="metrics">Metrics</h2>
        <div class="choice" role="group" aria-label="Time shown">${SPANS.map(([seconds, title]) => html`
          <button key=${seconds} aria-pressed=${span === seconds} onClick=${() => choose(seconds)}>${title}</button>`)}</div></div>
      <${ProblemText} problem=${problem} />
      ${grid ? html`<p class="soft">Each number is the newest point of its chart, up to 10 s old. Point at a chart to read earlier values.</p>
          <${Figures} grid=${grid} stream=${view.status.stream} slotProblem=${view.status.source_problem} />`
        : html`<p class="soft">The server records metrics from its start. The first values appear within 10 seconds.</p>`}
    </section>`;
}

function Figures({ grid: { times, values }, stream, slotProblem }) {
  const line = (label, tone, name, dashed = false) => ({ label, tone, dashed, values: values[name] });
  const filling = stream ? sayFilling(fillsIn(values.stream_bytes, STEP_S, stream.max_bytes)) : "";
  const unknownSlot = values.slot_retained_bytes.some((value) => value !== null) ? "" : slotProblem || "This server does not know the source.";
  return html`<div class="charts">
    <${Chart} title="Changes" of="10 s avg" times=${times} as=${rate}
      lines=${[line("published", "--one", "published_per_s"), line("applied", "--two", "applied_per_s", true)]} />
    <${Chart} title="Lag" of="every 10 s" times=${times} as=${duration} lines=${[line("slowest worker", "--three", "lag_s")]} />
    <${Chart} title="Latency, commit to applied" of="over 1 min" times=${times} as=${duration}
      lines=${[line("p50", "--one", "latency_p50_s"), line("p99", "--two", "latency_p99_s")]} />
    <${Chart} title="Slot lag" of="every 10 s" times=${times} as=${bytes} lines=${[line("WAL not confirmed", "--one", "slot_retained_bytes")]} says=${unknownSlot} />
    <${Chart} title="Stream" of="every 10 s" times=${times} as=${bytes} lines=${[line("stored", "--two", "stream_bytes")]}
      says=${stream && stream.max_bytes > 0 ? `of ${bytes(stream.max_bytes)}: ${filling}` : ""} />
    <${Chart} title="Dead letters" of="every 10 s" times=${times} as=${count} lines=${[line("stored", "--three", "dead_letters")]} />
  </div>`;
}
