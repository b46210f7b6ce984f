// Figures over time: a chart for eyes, and its newest figures as text for everybody.

import uPlot from "../vendor/uplot.js";
import { useEffect, useId, useRef, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { bytes, clock, isKnown } from "./format.js";

const HEIGHT = 170; // as .plot in page.css
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power); // steps of a scale in bytes
const DARK = window.matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// `lines`: {label, tone, values}; a tone is a colour's name in page.css. `as` formats a figure.
function optionsOf(lines, as, width, point) {
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width,
    height: HEIGHT,
    padding: [null, 28, null, null], // half of a label with seconds
    legend: { show: false },
    cursor: { y: false, drag: { setScale: false, x: false } },
    hooks: { setCursor: [(plot) => point(plot.cursor.idx ?? null)] },
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [
      { ...axis, size: 26, space: 70, values: [[3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
      { ...axis, size: 74, space: 36, ...(as === bytes ? { incrs: POWERS } : {}), values: (_, splits) => distinct(splits.map(as)) },
    ],
    series: [
      {},
      ...lines.map(({ tone, dashed }) => ({
        stroke: colour(tone),
        width: 1.75,
        dash: dashed ? [5, 4] : undefined,
        fill: dashed || lines.length > 1 ? undefined : `${colour(tone)}22`,
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}

// A label that says the same as the one below it says nothing.
function distinct(labels) {
  return labels.map((label, at) => (label === labels[at - 1] ? "" : label));
}

function newest(values) {
  return values.findLast(isKnown) ?? null;
}

// `of` is the time that each figure covers, such as an average.
export function Chart({ title, of, times, lines, as, says = "" }) {
  const place = useRef(null);
  const plot = useRef(null);
  const id = useId();
  const [pointed, point] = useState(null);
  const [theme, turn] = useState(0);
  const data = [times, ...lines.map((line) => line.values)];
  useEffect(() => {
    const turned = () => turn((count) => count + 1);
    DARK.addEventListener("change", turned);
    return () => DARK.removeEventListener("change", turned);
  }, []);
  useEffect(() => {
    plot.current = new uPlot(optionsOf(lines, as, place.current.clientWidth || 320, point), data, place.current);
    const sized = new ResizeObserver(([entry]) => plot.current.setSize({ width: entry.contentRect.width, height: HEIGHT }));
    sized.observe(place.current);
    return () => {
      sized.disconnect();
      plot.current.destroy();
    };
  }, [theme, lines.map((line) => line.label).join()]);
  useEffect(() => plot.current.setData(data), [times, ...lines.map((line) => line.values)]);
  const shown = (values) => (pointed === null || pointed >= values.length ? newest(values) : values[pointed]);
  return html`
    <figure class="chart" aria-labelledby=${id}>
      <figcaption id=${id}><strong>${title}</strong> <span class="soft">${of}</span>
        ${lines.map(({ label, tone, values }) => html`<span key=${label} class="figure">
          <i class="swatch ${tone.slice(2)}"></i>${label} <b>${isKnown(shown(values)) ? as(shown(values)) : "not known"}</b></span>`)}
        ${pointed === null ? (says ? html`<span class="soft">${says}</span>` : null) : html`<span class="soft">${clock(times[pointed] * 1000)}</span>`}
      </figcaption>
      <div class="plot" ref=${place} aria-hidden="true"></div>
    </figure>`;
}

// A line without axes, as long as a word: how it was of late.
export function Sparkline({ values, says }) {
  const known = values.filter(isKnown);
  if (known.length < 2) {
    return html`<span class="spark unknown">${says}</span>`;
  }
  const most = Math.max(...known, 1e-9);
  const points = values.map((value, at) => (isKnown(value) ? `${((at / (values.length - 1)) * 120).toFixed(1)},${(27 - (value / most) * 24).toFixed(1)}` : null));
  return html`<svg class="spark" viewBox="0 0 120 28" role="img" aria-label=${says} preserveAspectRatio="none">
    <polyline points=${points.filter(Boolean).join(" ")} /></svg>`;
}
