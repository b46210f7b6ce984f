// When a stream is full, from how it grew of late.

import { bytes, duration, isKnown } from "./format.js";

const SHORTEST_S = 60;
const WINDOW_S = 1800;
const FAR_S = 30 * 86400;

// `start_s` and `step_s` are those of the series; seconds until `most` is reached. Infinity when it does not grow, null while
// that is not known.
export function fillsIn(values, step_s, most) {
  const recent = values.slice(-Math.ceil(WINDOW_S / step_s));
  const first = recent.findIndex(isKnown);
  const last = recent.findLastIndex(isKnown);
  if (first < 0 || (last - first) * step_s < SHORTEST_S || most <= 0) {
    return null;
  }
  const grown = (recent[last] - recent[first]) / ((last - first) * step_s);
  return grown > 0 ? Math.max(0, most - recent[last]) / grown : Infinity;
}

export function sayFilling(seconds) {
  if (seconds === null) {
    return "fill rate not known yet";
  }
  if (seconds === Infinity) {
    return "not growing";
  }
  return seconds > FAR_S ? "room for more than a month" : `full in ${duration(seconds)} at the average rate of the last 30 min`;
}

export function roomOf(stream) {
  return stream && stream.max_bytes > 0 ? `${bytes(Math.max(0, stream.max_bytes - stream.bytes))} are free in the stream` : "";
}
