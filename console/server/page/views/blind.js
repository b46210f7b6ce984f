// What is shown instead of row values to those who may not see them.

import { html } from "../parts/html.js";

export function Blind({ what }) {
  return html`<p class="problem">${what}, and this session may not see them. To see them, create a token with <code>pgsluice token create NAME --values</code>, then log in
    with the link that <code>pgsluice token link NAME</code> prints.</p>`;
}
