// What is shown instead of row values to those who may not see them.

import { html } from "../parts/html.js";

export function Blind({ what }) {
  return html`<p class="problem">${what}, and this session may not see them. <code>pgsluice token create NAME --values</code> makes a token that may;
    <code>pgsluice token link NAME</code> lets a browser in with it.</p>`;
}
