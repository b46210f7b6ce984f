// Begins the page: what there is of groups is listened to from here on, and shown by the shell.

import { render } from "./vendor/preact.js";
import { html } from "./parts/html.js";
import { groups } from "./server/groups.js";
import { Shell } from "./views/shell.js";

const place = document.getElementById("page");
place.replaceChildren();
render(html`<${Shell} />`, place);
groups.listen();
