// Figures and times for people. What is not known has no figure: callers show it as such.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function bytes(count) {
  let size = count;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? size.toFixed(1) : Math.round(size)} ${UNITS[unit]}`;
}

export function count(number) {
  return Math.round(number).toLocaleString("en");
}

export function plural(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}

export function rate(perSecond) {
  return `${perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : count(perSecond)}/s`;
}

export function duration(seconds) {
  if (seconds < 1) {
    return seconds < 0.0005 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  }
  if (seconds < 10) {
    return `${seconds.toFixed(1)} s`;
  }
  if (seconds < 120) {
    return `${Math.round(seconds)} s`;
  }
  if (seconds < 7200) {
    return `${Math.round(seconds / 60)} min`;
  }
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export function ago(time) {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  return seconds < 1 ? "just now" : `${duration(Math.floor(seconds)).replace(".0", "")} ago`;
}

// In the reader's own time zone.
export function clock(time) {
  const date = new Date(time);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
