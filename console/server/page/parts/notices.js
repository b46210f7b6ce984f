// What came of an order, said where every view and every screen reader finds it.

import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { ProblemText } from "./problem.js";

const SHOWN_MS = 8000;
const said = new EventTarget();

export function say(text) {
  said.dispatchEvent(new CustomEvent("said", { detail: { text } }));
}

export function sayProblem(problem) {
  said.dispatchEvent(new CustomEvent("said", { detail: { problem } }));
}

// Carries something out and says how it went; returns whether it went well.
export async function carryOut(what, done) {
  try {
    await what();
    say(done);
    return true;
  } catch (problem) {
    sayProblem(problem);
    return false;
  }
}

export function Notices() {
  const [notice, show] = useState(null);
  useEffect(() => {
    const hear = (event) => show(event.detail);
    said.addEventListener("said", hear);
    return () => said.removeEventListener("said", hear);
  }, []);
  useEffect(() => {
    const timer = notice?.text ? setTimeout(() => show(null), SHOWN_MS) : 0;
    return () => clearTimeout(timer);
  }, [notice]);
  return html`
    <div class="notices ${notice ? "shown" : ""}">
      <div role="status">${notice?.text ? html`<p>${notice.text}</p>` : null}</div>
      <${ProblemText} problem=${notice?.problem} />
      ${notice ? html`<button class="quiet" onClick=${() => show(null)} aria-label="Close this message">×</button>` : null}
    </div>`;
}
