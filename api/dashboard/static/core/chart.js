/** Charts by uPlot, in the colours of the style sheet; loaded when the first one is shown. */

import { h, perFrame } from "./dom.js";
import { colour, watchTheme } from "./theme.js";

const COLOURS = [
  "--series-1",
  "--series-2",
  "--series-3",
  "--series-4",
  "--series-5",
  "--series-6",
  "--series-7",
  "--series-8",
];
const NARROW = 480;
const LEAST_WIDTH = 120;
const HEIGHT = 220;

let loading = null;
function library() {
  loading ??= import("../vendor/uplot/uPlot.esm.js").then((module) => module.default);
  return loading;
}

/**
 * A chart.
 *
 * @param {Object} options
 * @param {string} options.label What it shows, for those who do not see it.
 * @param {string[]} options.series Names of the lines.
 * @param {AbortSignal} options.signal Ends it.
 * @param {boolean} [options.isTime] Whether x are seconds since 1970; true without.
 * @param {string[]} [options.categories] Names of x = 0, 1, 2 … in place of numbers.
 * @param {number} [options.span] Least width of x, so that the first points do not fill the chart.
 * @param {number} [options.unit] Room on both sides of what is only one x; 1 without.
 * @param {boolean} [options.hasBars] Bars in place of lines.
 * @param {function(number): string} [options.format] Of y values.
 * @param {boolean} [options.hasPoints] Whether points are drawn where there is room.
 * @param {number} [options.height] In pixels.
 * @returns {{element: HTMLElement, show: function(Array<Array<number>>)}} `show` takes uPlot's
 *   columns: x, then one for each line; null where there is nothing.
 */
export function chart(options) {
  const { label, series, signal, height = HEIGHT } = options;
  const format = options.format ?? String;
  const element = h("div.chart", { role: "img", "aria-label": label });
  let data = [[], ...series.map(() => [])];
  let plot = null;

  const draw = perFrame(() => {
    plot?.setData(data);
    const last = series.map((name, index) => {
      const value = data[index + 1]?.at(-1);
      return `${name} ${value === null || value === undefined ? "none" : format(value)}`;
    });
    element.setAttribute("aria-label", `${label}; last: ${last.join(", ")}`);
  });
  async function make() {
    const UPlot = await library();
    if (signal.aborted) return;
    plot?.destroy();
    const width = element.clientWidth;
    plot = new UPlot(plotOptions(UPlot, { ...options, format, height, width }), data, element);
    draw();
  }
  const sizes = new ResizeObserver(() => {
    if (plot && element.clientWidth) plot.setSize({ width: element.clientWidth, height });
  });
  sizes.observe(element);
  watchTheme(make, signal);
  signal.addEventListener("abort", () => {
    sizes.disconnect();
    plot?.destroy();
    plot = null;
  });
  // After the page is in the document: before that there is no width and no colour.
  requestAnimationFrame(make);
  function show(columns) {
    data = columns;
    draw();
  }
  return { element, show };
}

/** What uPlot wants to know. */
function plotOptions(UPlot, options) {
  const { categories, series, width } = options;
  const x = categories ? { label: "", value: (_plot, value) => categories[value] ?? "–" } : {};
  return {
    width: Math.max(width, LEAST_WIDTH),
    height: options.height,
    legend: { live: width >= NARROW },
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: {
        time: !categories && options.isTime !== false,
        range: (_plot, low, high) => breadth(low, high, options),
      },
      y: { range: (_plot, low, high) => range(low, high, options.hasBars) },
    },
    series: [x, ...series.map((name, index) => line(UPlot, name, index, options))],
    axes: axes(options),
  };
}

function line(UPlot, label, index, { format, hasPoints, hasBars }) {
  const stroke = colour(COLOURS[index % COLOURS.length]);
  return {
    label,
    stroke,
    width: 1.75,
    points: { show: hasPoints ? undefined : false },
    value: (_plot, value) => (value === null ? "–" : format(value)),
    ...(hasBars && { fill: stroke, width: 0, paths: UPlot.paths.bars({ size: [0.7, 60] }) }),
  };
}

function axes({ categories, format }) {
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1, size: 4 },
    font: "12px system-ui, sans-serif",
  };
  const names = (_plot, places) => places.map((one) => shorten(categories[one] ?? ""));
  const ofNames = { values: names, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] };
  const across = { ...axis, ...(categories && ofNames) };
  return [across, { ...axis, size: 56, values: (_plot, values) => values.map(format) }];
}

function breadth(low, high, { categories, span, unit = 1 }) {
  if (low === null || high === null) return [0, 1];
  if (categories) return [-0.5, categories.length - 0.5];
  if (span) return [Math.min(low, high - span), high];
  return low === high ? [low - unit, high + unit] : [low, high];
}

/** Bars and counts stand on zero; a temperature need not. */
function range(low, high, isFromZero) {
  if (low === null || high === null || low === undefined || high === undefined) return [0, 1];
  if (low === 0 && high === 0) return [0, 1];
  const bottom = isFromZero || (low >= 0 && low < high / 2) ? Math.min(0, low) : low;
  const room = (high - bottom || Math.abs(high) || 1) * 0.08;
  return [bottom === 0 ? 0 : bottom - room, high + room];
}

function shorten(text) {
  return text.length > 14 ? `${text.slice(0, 13)}…` : text;
}
