// What views have in common: they follow the groups, the clock, or an answer of the server that is asked for again.

import { useCallback, useEffect, useRef, useState } from "../vendor/hooks.js";
import { groups } from "../server/groups.js";

function useChanges(target, kind) {
  const [, renew] = useState(0);
  useEffect(() => {
    const changed = () => renew((count) => count + 1);
    target.addEventListener(kind, changed);
    changed(); // what came between the first drawing and now
    return () => target.removeEventListener(kind, changed);
  }, [target, kind]);
}

export function useGroups() {
  useChanges(groups, "change");
  return groups;
}

// Draws again each second: ages and lags grow by themselves.
export function useClock() {
  const [, renew] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => renew((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, []);
}

// The newest answer to a question, or the problem; asked again when `sign` changes, and every `everyMs` where that is given.
export function useAnswer(question, sign, everyMs = 0) {
  const [found, keep] = useState({ answer: null, problem: null });
  const newest = useRef(0);
  const latest = useRef(question);
  latest.current = question;
  const again = useCallback(async () => {
    const number = ++newest.current;
    const outcome = await latest.current().then((answer) => ({ answer, problem: null }), (problem) => ({ problem }));
    if (number === newest.current) {
      keep((before) => ({ ...before, ...outcome }));
    }
  }, []);
  useEffect(() => {
    again();
    const timer = everyMs ? setInterval(() => document.hidden || again(), everyMs) : 0;
    return () => {
      clearInterval(timer);
      newest.current += 1;
    };
  }, [sign, everyMs, again]);
  return { ...found, again };
}

// A question that a button asks: its answer, its problem, and whether it is under way.
export function useAsked() {
  const [state, keep] = useState({ answer: null, problem: null, busy: false });
  const newest = useRef(0);
  const ask = useCallback(async (question) => {
    const number = ++newest.current;
    keep((before) => ({ ...before, busy: true }));
    const outcome = await question().then((answer) => ({ answer, problem: null }), (problem) => ({ answer: null, problem }));
    if (number === newest.current) {
      keep({ ...outcome, busy: false });
    }
    return outcome;
  }, []);
  return { ...state, ask };
}
