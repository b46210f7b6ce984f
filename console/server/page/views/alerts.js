// Alerts that a group's processes raise, what is set of them, and whether they arrive.

import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Dialog } from "../parts/dialog.js";
import { clock, duration, isKnown } from "../parts/format.js";
import { useAnswer } from "../parts/hooks.js";
import { Time } from "../parts/known.js";
import { carryOut, say, sayProblem } from "../parts/notices.js";
import { ProblemText, sentence } from "../parts/problem.js";
import { Badge } from "../parts/state.js";
import { STALE, get, pathOf, post, put } from "../server/api.js";

const ASKED_EVERY_MS = 5000;
const TEST_EVERY_MS = 1000;
const LIMITS = [
  ["for_s", "Delay before an alert is sent, in seconds"],
  ["lag_s", "Lag of a worker above which an alert is raised, in seconds"],
  ["repeat_s", "Time until an alert is sent again, in seconds"],
];
const HOURS = [[1, "1 hour"], [4, "4 hours"], [24, "1 day"], [168, "1 week"]];

const spoken = (alert) => (alert ?? "any alert").replaceAll("-", " ");
const lasts = (silence) => Date.parse(silence.until) > Date.now();

// What a PUT takes, out of what is set; silences that are over are left out.
function wishes({ webhook, token, lag_s: lag, for_s: least, repeat_s: repeat, silences }) {
  return {
    webhook, token, lag_s: lag, for_s: least, repeat_s: repeat,
    silences: silences.filter(lasts).map(({ until, alert, subject, reason }) => ({ until, alert, subject, reason })),
  };
}

export function Alerts({ group, server }) {
  const path = `${pathOf("groups", group)}/alerts`;
  const { answer, problem, again } = useAnswer(() => get(path), group, ASKED_EVERY_MS);
  const [opened, open] = useState("");
  const [silenced, silence] = useState(null);
  const mayOrder = server.role !== "viewer";
  // Whoever was faster is not overwritten: what they set is shown, and decided about anew.
  const set = async (changed, done) => {
    try {
      await put(path, { ...wishes(answer.settings), ...changed }, answer.revision);
      say(done);
      return true;
    } catch (refused) {
      sayProblem(refused);
      return STALE.includes(refused.status);
    } finally {
      again();
    }
  };
  return html`
    <section aria-labelledby="alerts">
      <div class="title"><h2 id="alerts">Alerts</h2>
        ${mayOrder && answer ? html`<p class="buttons"><button onClick=${() => open("settings")}>Change alerts</button>
          <button onClick=${() => silence({ alert: null, subject: "" })}>Silence all</button><${Trial} path=${path} /></p>` : null}</div>
      <${ProblemText} problem=${answer ? null : problem} />
      ${answer ? html`<${Shown} list=${answer} mayOrder=${mayOrder} silence=${silence}
        end=${(ended) => set({ silences: wishes(answer.settings).silences.filter((each) => !isSame(each, ended)) }, "The silence is ended")} />` : null}
      ${opened ? html`<${Settings} settings=${answer.settings} server=${server} onSet=${(changed) => set(changed, "Alert settings are saved. Processes apply them at their next check")} onClose=${() => open("")} />` : null}
      ${silenced ? html`<${Silencing} about=${silenced} onSet=${(wish) => set({ silences: [...wishes(answer.settings).silences, wish] }, `No messages about ${spoken(wish.alert)} until ${clock(wish.until)}`)}
        onClose=${() => silence(null)} />` : null}
    </section>`;
}

function isSame(one, other) {
  return one.until === other.until && one.alert === other.alert && one.subject === other.subject;
}

function Shown({ list: { alerts, settings, holder, problem, is_watched: isWatched }, mayOrder, silence, end }) {
  const firing = alerts.filter((each) => !each.resolved_at);
  const silences = settings.silences.filter(lasts);
  const limits = LIMITS.filter(([name]) => isKnown(settings[name])).map(([name, title]) => `${title.replace(", in seconds", "").toLowerCase()}: ${duration(settings[name])}`);
  return html`
    <p class="soft">${isWatched ? `Alerts are sent by ${holder}.` : html`Alerts are off. No running process has <code>alert-webhook</code> or <code>alert-command</code> set.`}
      ${settings.webhook ? ` Sent to ${settings.webhook}.` : ""}${limits.length ? ` Settings: ${limits.join("; ")}.` : ""}</p>
    ${problem ? html`<p class="worst warning">${sentence(problem)}</p>` : null}
    ${isWatched && !firing.length ? html`<p>No alert is active.</p>` : null}
    <ul class="troubles" aria-label="Alerts">${isWatched ? firing.map((each) => html`
      <li key=${each.alert + each.subject} class="worst ${each.severity === "critical" ? "error" : each.severity}"><strong>${spoken(each.alert)}, ${each.subject}:</strong> ${sentence(each.fact)}
        <span class="remedy"> ${each.remedy ? sentence(each.remedy) : ""}</span> <span class="soft">Since <${Time} at=${each.since} />${each.told_at ? "" : ", not sent yet"}.</span>
        ${mayOrder ? html` <button class="small" aria-label=${`Silence ${spoken(each.alert)}, ${each.subject}`} onClick=${() => silence(each)}>Silence</button>` : null}</li>`) : null}</ul>
    ${silences.length ? html`<ul class="orders" aria-label="Silences">${silences.map((each) => html`<li key=${each.until + each.alert + each.subject}>
      <${Badge} state="paused" says="silenced" /> ${spoken(each.alert)}${each.subject ? `, ${each.subject}` : ""} until ${clock(each.until)}, by ${each.by}${each.reason ? `: ${each.reason}` : ""}
      ${mayOrder ? html` <button class="small" aria-label=${`End the silence of ${spoken(each.alert)}`} onClick=${() => end(each)}>End</button>` : null}</li>`)}</ul>` : null}`;
}

// Asks for a test, and waits for the result from the process that sends alerts.
function Trial({ path }) {
  const [asked, wait] = useState("");
  const [told, tell] = useState("");
  useEffect(() => {
    if (!asked) {
      return undefined;
    }
    const timer = setInterval(async () => {
      const test = await get(`${path}/test`).catch(() => null);
      if (test?.id === asked && test.done_at) {
        tell(outcome(test.outcomes));
        wait("");
      }
    }, TEST_EVERY_MS);
    return () => clearInterval(timer);
  }, [asked, path]);
  const send = () => carryOut(async () => {
    tell("");
    wait((await post(`${path}/test`, {})).id);
  }, "A test alert is requested");
  return html`<button onClick=${send} disabled=${Boolean(asked)}>Send a test</button>
    <span class="soft" role="status">${asked ? "Waiting for the process that sends alerts…" : told}</span>`;
}

function outcome(outcomes) {
  return Object.entries(outcomes).map(([channel, reason]) => (reason ? `${channel}: ${sentence(reason)}` : `The ${channel} accepted the test.`)).join(" ");
}

function Settings({ settings, server, onSet, onClose }) {
  const [wish, change] = useState(wishes(settings));
  const [busy, begin] = useState(false);
  const isAdmin = server.role === "admin";
  const text = (name) => ({ value: wish[name] ?? "", onInput: (event) => change({ ...wish, [name]: event.target.value.trim() }) });
  const seconds = (name) => ({ value: wish[name] ?? "", onInput: (event) => change({ ...wish, [name]: event.target.value === "" ? null : Number(event.target.value) }) });
  const send = async (event) => {
    event.preventDefault();
    begin(true);
    const { silences, ...others } = wish;
    if (await onSet(others)) {
      onClose();
    } else {
      begin(false);
    }
  };
  return html`<${Dialog} title="Change alerts" onClose=${onClose}>
    <form onSubmit=${send}>
      <p class="soft">If a field is empty, the option that the process was started with applies.</p>
      ${LIMITS.map(([name, title]) => html`<label key=${name}><span>${title}</span><input type="number" min=${name === "repeat_s" ? 1 : 0} ...${seconds(name)} /></label>`)}
      ${isAdmin ? html`<label><span>Webhook, as a reference to a variable of the processes</span><input placeholder="\${ALERT_URL}" spellcheck=${false} autocomplete="off" ...${text("webhook")} /></label>
        <label><span>Bearer token of the webhook, as a reference to a variable</span><input placeholder="\${ALERT_TOKEN}" spellcheck=${false} autocomplete="off" ...${text("token")} /></label>`
        : html`<p class="soft">Only an admin can set where alerts are sent.</p>`}
      <p class="buttons"><button type="submit" class="main" disabled=${busy}>Save</button><button type="button" onClick=${onClose}>Cancel</button></p>
    </form>
  <//>`;
}

function Silencing({ about: { alert, subject }, onSet, onClose }) {
  const [hours, last] = useState(1);
  const [reason, explain] = useState("");
  const send = async (event) => {
    event.preventDefault();
    const until = new Date(Date.now() + hours * 3600000).toISOString();
    if (await onSet({ until, alert, subject, reason })) {
      onClose();
    }
  };
  return html`<${Dialog} title=${alert ? `Silence ${spoken(alert)}, ${subject}?` : "Silence all alerts?"} onClose=${onClose}>
    <form onSubmit=${send}>
      <ul class="says"><li>No messages about ${alert ? `${spoken(alert)} of ${subject}` : "this group"} are sent during that time. The page still shows the alerts.</li>
        <li>If a problem still exists when the silence ends, its alert is sent immediately.</li></ul>
      <label><span>For</span><select value=${hours} onChange=${(event) => last(Number(event.target.value))}>
        ${HOURS.map(([number, title]) => html`<option key=${number} value=${number}>${title}</option>`)}</select></label>
      <label><span>Reason</span><input value=${reason} maxlength="200" onInput=${(event) => explain(event.target.value)} /></label>
      <p class="buttons"><button type="submit" class="main">Silence</button><button type="button" onClick=${onClose}>Cancel</button></p>
    </form>
  <//>`;
}
