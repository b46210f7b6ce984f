// Copies a text as it stands; a screen reader hears that it did.

import { useState } from "../vendor/hooks.js";
import { html } from "./html.js";

const SHOWN_MS = 2000;

export function CopyButton({ text, what = "" }) {
  const [copied, tell] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      tell("Copied");
    } catch {
      tell("The browser does not allow this button. Select the text and copy it.");
    }
    setTimeout(() => tell(""), SHOWN_MS);
  };
  return html`<button type="button" class="small" onClick=${copy} aria-label=${what ? `Copy ${what}` : undefined}>
    <span role="status">${copied || "Copy"}</span></button>`;
}

export function Sql({ text, what }) {
  return html`<div class="sql"><pre tabindex="0" aria-label=${what}><code>${text}</code></pre><${CopyButton} text=${text} what=${what} /></div>`;
}
