// A pipeline's document as a user writes it. The server reports what its connections do not allow; a newer revision is never overwritten unseen.

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
      refuse(STALE.includes(refused.status) && known === "" ? { detail: `a pipeline ${name} exists already`, remedy: "edit it" } : refused);
      return;
    }
    say(`Pipeline ${name} is saved`);
    onDone(name);
  };
  return html`
    <form onSubmit=${send}>
      ${known ? null : html`<label>Name <input value=${name} required autocomplete="off" spellcheck=${false} onInput=${(event) => call(event.target.value.trim())} /></label>`}
      <label><span>YAML, the keys of this pipeline as in a pipelines file</span><textarea rows=${Math.min(40, Math.max(10, begin.split("\n").length + 2))} spellcheck=${false} value=${text} onInput=${(event) => write(event.target.value)} /></label>
      <label>Reason, for the audit <span class="soft">(optional)</span> <input value=${reason} maxlength="500" onInput=${(event) => explain(event.target.value)} /></label>
      ${isStale ? html`<p class="problem" role="alert"><strong>Another user was faster: you edit revision ${base}, and ${newest === null ? "the configuration was deleted" : `revision ${newest} is current`}.</strong>
        <button type="button" class="small" onClick=${() => follow(newest)}>Overwrite it</button></p>` : null}
      <${ProblemText} problem=${problem} />
      <p class="buttons"><button type="submit" class="main" disabled=${isStale || !name}>Save</button>
        <button type="button" onClick=${onLeave}>Cancel</button></p>
    </form>`;
}
