// Which view is shown: the part of the address after the #, so that a link leads back and the server needs to know nothing of it.

import { useEffect, useState } from "../vendor/hooks.js";

export function href(...parts) {
  return `#${parts.map((part) => `/${encodeURIComponent(part)}`).join("") || "/"}`;
}

// `parts` of the path, and what follows a question mark.
export function readRoute() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function useRoute() {
  const [route, follow] = useState(readRoute);
  useEffect(() => {
    const moved = () => follow(readRoute());
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  return route;
}
