// What all views stand in: the head, the way between them, and who one is. Without a session, how to get one.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { useAnswer, useGroups } from "../parts/hooks.js";
import { Notices, sayProblem } from "../parts/notices.js";
import { href, useRoute } from "../parts/route.js";
import { get, logOut, strangers } from "../server/api.js";
import { Audit } from "./audit.js";
import { Bench } from "./bench.js";
import { Document } from "./document.js";
import { Documents } from "./documents.js";
import { Group } from "./group.js";
import { Letters } from "./letters.js";
import { Login } from "./login.js";
import { Messages } from "./messages.js";
import { Overview } from "./overview.js";
import { Pipeline } from "./pipeline.js";
import { Pipelines } from "./pipelines.js";
import { Trace } from "./trace.js";
import { Worker } from "./worker.js";

const GROUP_VIEWS = [
  { name: "", title: "Group", view: Group },
  { name: "document", title: "Configuration", view: Document },
  { name: "letters", title: "Dead letters", view: Letters },
  { name: "messages", title: "Messages", view: Messages },
  { name: "trace", title: "Trace a row", view: Trace },
  { name: "rules", title: "Test rules", view: Bench },
  { name: "workers", title: "", view: Worker }, // of one of them, by a link
];

const CONNECTIONS = { connecting: "connecting", live: "live", lost: "connection lost, connecting again" };

function useStranger() {
  const [isStranger, tell] = useState(false);
  useEffect(() => {
    const told = () => tell(true);
    strangers.addEventListener("stranger", told);
    return () => strangers.removeEventListener("stranger", told);
  }, []);
  return isStranger;
}

export function Shell() {
  const route = useRoute();
  const isStranger = useStranger();
  const { answer: server } = useAnswer(() => get("/"), "", 60000);
  const main = useRef(null);
  const path = route.parts.join("/");
  useEffect(() => {
    const heading = main.current?.querySelector("h1");
    document.title = heading ? `${heading.textContent} · pgsluice` : "pgsluice";
    if (document.activeElement !== document.body || path) {
      heading?.focus({ preventScroll: true });
    }
    window.scrollTo(0, 0);
  }, [path, isStranger, server !== null]);
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  return html`
    <a class="skip" href="#content" onClick=${skip}>To the content</a>
    <${Head} server=${server} isStranger=${isStranger} place=${route.parts[0] ?? ""} />
    <main id="content" tabindex="-1" ref=${main}>
      ${isStranger ? html`<${Login} />` : server ? html`<${View} route=${route} server=${server} />` : null}
    </main>
    <${Notices} />`;
}

function Head({ server, isStranger, place }) {
  const { connection } = useGroups();
  const current = (name) => (place === name ? "page" : undefined);
  return html`
    <header class="head">
      <a class="name" href="#/">pgsluice</a>
      ${isStranger ? null : html`
        <nav aria-label="Main">
          <a href="#/" aria-current=${current("")}>Overview</a>
          <a href=${href("pipelines")} aria-current=${current("pipelines")}>Pipelines</a>
          <a href=${href("documents")} aria-current=${current("documents")}>Configurations</a>
          <a href=${href("audit")} aria-current=${current("audit")}>Audit</a>
        </nav>
        <p class="who"><span role="status" class="connection ${connection}">${CONNECTIONS[connection]}</span>
          ${server ? html`<span class="user">${server.who === server.role ? server.who : `${server.who}, ${server.role}`}</span>
            <button class="small" onClick=${leave}>Log out</button>` : null}</p>`}
    </header>`;
}

// The page is loaded again, so that nothing stays in it of what the session was shown.
function leave() {
  logOut().then(() => window.location.reload(), sayProblem);
}

function View({ route, server }) {
  const [place = "", group = "", name = "", item = ""] = route.parts;
  if (place === "audit") {
    return html`<${Audit} />`;
  }
  if (place === "documents") {
    return html`<${Documents} server=${server} />`;
  }
  if (place === "pipelines") {
    return group ? html`<${Pipeline} key=${group} name=${group} server=${server} />` : html`<${Pipelines} server=${server} />`;
  }
  const found = GROUP_VIEWS.find((each) => each.name === name);
  if (place !== "groups" || !group || !found) {
    return html`<${Overview} />`;
  }
  return html`<${OneGroup} key=${group} group=${group} found=${found} item=${item} server=${server} query=${route.query} />`;
}

function OneGroup({ group, found, item, server, query }) {
  const groups = useGroups();
  const view = groups.views.get(group);
  const letters = view?.status?.workers.reduce((sum, worker) => sum + worker.dead_letters, 0) ?? 0;
  return html`
    <h1 tabindex="-1">${group}</h1>
    <nav class="tabs" aria-label="Views of the group">${GROUP_VIEWS.filter(({ title }) => title).map(({ name, title }) => html`
      <a key=${name} href=${name ? href("groups", group, name) : href("groups", group)} aria-current=${name === found.name ? "page" : undefined}>
        ${title}${name === "letters" && letters ? html` <span class="count">${letters}</span>` : null}</a>`)}
    </nav>
    ${view ? html`<${found.view} key=${`${found.name} ${item}`} group=${group} item=${item} view=${view} server=${server} query=${query} />`
      : html`<p>${groups.isKnown ? "No group with this name is on this NATS server." : "Loading…"}</p>`}`;
}
