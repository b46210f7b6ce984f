// A problem that the server has told, in place of what was asked for.

import { html } from "./html.js";

export function ProblemText({ problem }) {
  if (!problem) {
    return null;
  }
  const { detail, remedy } = problem;
  return html`<p class="problem" role="alert"><strong>${sentence(detail || problem.message)}</strong>${remedy ? ` ${sentence(remedy)}` : ""}</p>`;
}

const PROGRAMS = ["pgsluice", "psql", "pip", "nats", "libpq", "kubectl", "systemctl", "docker", "gcloud"];

// Facts and remedies come without a capital and a full stop. A name at their beginning stays as it is written.
export function sentence(text) {
  const [word = ""] = /^[a-z]+(?=[ ,:;])/.exec(text) ?? [];
  const begun = word && !PROGRAMS.includes(word) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
