// One place for what is not known, so that it looks the same everywhere and is never taken for a zero.

import { html } from "./html.js";
import { ago, clock, isKnown } from "./format.js";

export function Known({ value, as = String, otherwise = "not known" }) {
  return isKnown(value) && value !== "" ? html`<span>${as(value)}</span>` : html`<span class="unknown">${otherwise}</span>`;
}

export function Time({ at }) {
  return at ? html`<time datetime=${at} title=${clock(at)}>${ago(at)}</time>` : html`<${Known} value=${null} />`;
}
