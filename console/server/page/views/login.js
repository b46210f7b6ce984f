// What a browser sees that has no session: how to get one.

import { html } from "../parts/html.js";
import { Sql } from "../parts/copy_button.js";

export function Login() {
  return html`
    <section class="alone">
      <h1 tabindex="-1">Log in with a link</h1>
      <p>Run this command on the machine of the server, as the server's user. It prints a link that works once, within ten minutes:</p>
      <${Sql} text="pgsluice token link" what="the command" />
      <p class="soft">To log in with the rights of another token, run <code>pgsluice token link NAME</code>. A session lasts twelve hours, or until
        its token is revoked.</p>
    </section>`;
}
