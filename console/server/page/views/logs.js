// The logs of processes that this server runs, as they grow.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { ProblemText } from "../parts/problem.js";
import { get, pathOf } from "../server/api.js";

const ASKED_EVERY_MS = 1500;
const MOST_LINES = 2000;

function useLog(group, unit) {
  const [state, keep] = useState({ lines: [], problem: null });
  useEffect(() => {
    let after = -1;
    let timer = 0;
    let isOver = false;
    const ask = async () => {
      try {
        const part = await get(`${pathOf("groups", group)}/logs`, { unit, after });
        after = part.next_after;
        if (!isOver) {
          keep((before) => ({ lines: part.lines.length ? [...before.lines, ...part.lines].slice(-MOST_LINES) : before.lines, problem: null }));
        }
      } catch (problem) {
        if (!isOver) {
          keep((before) => ({ ...before, problem }));
        }
      }
      timer = isOver ? 0 : setTimeout(ask, ASKED_EVERY_MS);
    };
    keep({ lines: [], problem: null });
    ask();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [group, unit]);
  return state;
}

export function Logs({ group, units }) {
  const [unit, choose] = useState(units[0]?.unit ?? "replicator");
  const { lines, problem } = useLog(group, unit);
  const place = useRef(null);
  const isAtEnd = useRef(true);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = place.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 40;
  };
  useEffect(() => {
    if (isAtEnd.current && place.current) {
      place.current.scrollTop = place.current.scrollHeight;
    }
  }, [lines]);
  return html`
    <section aria-labelledby="logs">
      <div class="title"><h2 id="logs">Logs</h2>
        <label class="row"><span>Process</span> <select value=${unit} onChange=${(event) => choose(event.target.value)}>
          ${units.map((each) => html`<option key=${each.unit} value=${each.unit}>${each.unit}</option>`)}</select></label></div>
      <${ProblemText} problem=${problem} />
      <pre class="log" tabindex="0" aria-label=${`Log of ${unit}`} ref=${place} onScroll=${scrolled}>${lines.join("\n") || "No log lines yet."}</pre>
    </section>`;
}
