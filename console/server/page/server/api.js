// The server's API, as a browser asks it: by its session's cookie, and with the proof that it is this page that writes.

import { parseExact } from "./exact.js";

const PREFIX = "/api/v1";
const CSRF_COOKIES = ["__Host-pgsluice-csrf", "pgsluice-csrf"]; // over https, and without
const CSRF_HEADER = "X-Pgsluice-Csrf";

// What the server answers when it does not do a thing, as RFC 9457 has it: a fact, a remedy, and the part of the request.
export class Problem extends Error {
  constructor({ status = 0, detail = "", remedy = "", where = "" }) {
    super(detail);
    this.status = status;
    this.detail = detail;
    this.remedy = remedy;
    this.where = where;
  }
}

// Hears when the server no longer knows who asks.
export const strangers = new EventTarget();

export function pathOf(...parts) {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join("");
}

export async function get(path, query = {}) {
  return ask("GET", path, { query });
}

// Answers with row values: their numbers keep every digit.
export async function getRows(path, query = {}) {
  return ask("GET", path, { query, parse: parseExact });
}

export async function postForRows(path, body) {
  return ask("POST", path, { body, parse: parseExact });
}

// A POST that may be sent again by whoever hears no answer: it is carried out once.
export async function post(path, body) {
  return ask("POST", path, { body, headers: { "Idempotency-Key": crypto.randomUUID() } });
}

// `revision` is the one that is replaced, null where there was none: whoever was faster is not overwritten.
export async function put(path, body, revision = null) {
  return ask("PUT", path, { body, headers: revision === null ? {} : { "If-Match": `"${revision}"` } });
}

export async function remove(path, revision) {
  return ask("DELETE", path, { headers: { "If-Match": `"${revision}"` } });
}

export async function logOut() {
  return ask("DELETE", "/session", {});
}

export const STALE = [412, 428]; // somebody was faster

async function ask(method, path, { query = {}, body, headers = {}, parse = JSON.parse }) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const parameters = new URLSearchParams(given).toString();
  const request = { method, headers: { Accept: "application/json", ...headers }, credentials: "same-origin", cache: "no-store" };
  if (method !== "GET") {
    request.headers[CSRF_HEADER] = CSRF_COOKIES.map(cookie).find(Boolean) ?? "";
  }
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  const response = await send(`${PREFIX}${path}${parameters ? `?${parameters}` : ""}`, request);
  if (!response.ok) {
    throw await problemOf(response);
  }
  return response.status === 204 ? null : parse(await response.text());
}

async function send(url, request) {
  try {
    return await fetch(url, request);
  } catch {
    throw new Problem({ detail: "the server does not answer", remedy: "check that it runs; groups continue without it" });
  }
}

async function problemOf(response) {
  const content = await response.json().catch(() => ({}));
  const problem = new Problem({ detail: `the server answers with ${response.status}`, ...content, status: response.status });
  if (response.status === 401) {
    strangers.dispatchEvent(new Event("stranger"));
  }
  return problem;
}

function cookie(name) {
  const found = document.cookie.split("; ").find((each) => each.startsWith(`${name}=`));
  return found ? found.slice(name.length + 1) : "";
}
