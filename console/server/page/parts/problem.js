// A problem that the server has told, in place of what was asked for.

import { html } from "./html.js";

export function ProblemText({ problem }) {
  if (!problem) {
    return null;
  }
  const { detail, remedy } = problem;
  return html`<p class="problem" role="alert"><strong>${detail || problem.message}</strong>${remedy ? ` ${sentence(remedy)}` : ""}</p>`;
}

// Facts and remedies come without a full stop. They may begin with a name, so their first letter stays as it is.
export function sentence(text) {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
