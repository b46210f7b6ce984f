// What a browser sees that has no session: how to get one.

import { html } from "../parts/html.js";
import { Sql } from "../parts/copy_button.js";

export function Login() {
  return html`
    <section class="alone">
      <h1 tabindex="-1">A link lets you in</h1>
      <p>On the machine where the server runs, as its user, this command prints a link. It works once, within ten minutes:</p>
      <${Sql} text="pgsluice token link" what="the command" />
      <p class="soft">With a name, as in <code>pgsluice token link NAME</code>, the session has the rights of that token. It lasts twelve hours, or
        until the token is revoked.</p>
    </section>`;
}
