// A question that has to be answered before anything else: the browser's own dialog, so focus stays in it and Escape leaves it.

import { useEffect, useId, useRef, useState } from "../vendor/hooks.js";
import { html } from "./html.js";

export function Dialog({ title, onClose, children, wide = false }) {
  const place = useRef(null);
  const id = useId();
  useEffect(() => {
    const opener = document.activeElement;
    place.current.showModal();
    return () => opener?.isConnected && opener.focus();
  }, []);
  return html`
    <dialog ref=${place} class=${wide ? "wide" : ""} aria-labelledby=${id} onClose=${onClose}>
      <header><h2 id=${id}>${title}</h2>
        <button class="quiet" type="button" aria-label="Close" onClick=${() => place.current.close()}>×</button></header>
      ${children}
    </dialog>`;
}

// Says in sentences what will happen. `leave` is the button that does nothing. `wanted` is the name that has to be typed first, "" where a click is enough.
// `onConfirm` gets the reason, and the dialog closes when it returns true.
export function Confirmation({ title, says, wanted = "", action, leave = "Cancel", danger = false, onConfirm, onClose }) {
  const [typed, type] = useState("");
  const [reason, explain] = useState("");
  const [busy, begin] = useState(false);
  const confirm = async (event) => {
    event.preventDefault();
    begin(true);
    if (await onConfirm(reason)) {
      onClose();
    } else {
      begin(false);
    }
  };
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      <form onSubmit=${confirm}>
        <ul class="says">${says.map((each) => html`<li key=${each}>${each}</li>`)}</ul>
        <label>Reason, for the audit <span class="soft">(optional)</span>
          <input value=${reason} maxlength="500" onInput=${(event) => explain(event.target.value)} /></label>
        ${wanted ? html`<label><span>Type <code>${wanted}</code> to confirm</span>
          <input value=${typed} autocomplete="off" spellcheck=${false} onInput=${(event) => type(event.target.value)} /></label>` : null}
        <p class="buttons">
          <button type="submit" class=${danger ? "danger" : "main"} disabled=${busy || (wanted && typed !== wanted)}>${action}</button>
          <button type="button" onClick=${onClose}>${leave}</button>
        </p>
      </form>
    <//>`;
}
