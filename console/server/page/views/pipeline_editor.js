// A pipeline's document as somebody writes it. The server says what its places do not allow; nobody who was faster is overwritten.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { ProblemText } from "../parts/problem.js";
import { STALE, pathOf, put } from "../server/api.js";
import { say } from "../parts/notices.js";

// `name` is "" for one that there is not yet. `base` is the revision that the text was made of, null for none.
export function PipelineEditor({ name: known, begin, base: first, newest, onDone, onLeave }) {
  const [text, write] = useState(begin);
  const [name, call] = useState(known);
  const [base, follow] = useState(first);
  const [reason, explain] = useState("");
  const [problem, refuse] = useState(null);
  const isStale = known !== "" && newest !== base;
  const send = async (event) => {
    event.preventDefault();
    try {
      await put(pathOf("pipelines", name), { yaml: text, reason }, base);
    } catch (refused) {
      refuse(STALE.includes(refused.status) && known === "" ? { detail: `there is a pipeline ${name} already`, remedy: "edit that one" } : refused);
      return;
    }
    say(`Pipeline ${name} is written`);
    onDone(name);
  };
  return html`
    <form onSubmit=${send}>
      ${known ? null : html`<label>Name <input value=${name} required autocomplete="off" spellcheck=${false} onInput=${(event) => call(event.target.value.trim())} /></label>`}
      <label><span>YAML, as a pipelines file has it under the name</span><textarea rows=${Math.min(40, Math.max(10, begin.split("\n").length + 2))} spellcheck=${false} value=${text} onInput=${(event) => write(event.target.value)} /></label>
      <label>Reason, for the audit <span class="soft">(may be empty)</span> <input value=${reason} maxlength="500" onInput=${(event) => explain(event.target.value)} /></label>
      ${isStale ? html`<p class="problem" role="alert"><strong>Somebody was faster: this text was made of revision ${base}, and there is ${newest === null ? "no document any more" : `revision ${newest}`}.</strong>
        <button type="button" class="small" onClick=${() => follow(newest)}>Write over it</button></p>` : null}
      <${ProblemText} problem=${problem} />
      <p class="buttons"><button type="submit" class="main" disabled=${isStale || !name}>Write it</button>
        <button type="button" onClick=${onLeave}>Leave it</button></p>
    </form>`;
}
