/** The result of a query, as a table and as a chart. */

import { chart } from "../core/chart.js";
import { fill, h, inTurn } from "../core/dom.js";
import { cell, count } from "../core/format.js";
import { check, field, select, table } from "../core/parts.js";

/** Rows put into the page at a time: all at once would hold it up. */
const ROWS_AT_ONCE = 200;
const MOST_CHART_ROWS = 5_000;
const HEIGHT = 320;
const NUMERIC = /^(?:tinyint|smallint|int|bigint|float|double|decimal.*)$/u;
const TEMPORAL = /^(?:timestamp.*|date)$/u;
const NO_NUMBERS =
  "A chart wants rows, and a column of numbers: CAST(… AS double) makes one of text.";

export function resultTable({ columns, rows }) {
  const shown = table("Result", columns.map(tableColumn), { empty: "No rows." });
  let next = Math.min(ROWS_AT_ONCE, rows.length);
  shown.show(rows.slice(0, next));
  const more = h("button", { type: "button", on: { click: grow } });
  function grow() {
    shown.add(rows.slice(next, next + ROWS_AT_ONCE));
    next += ROWS_AT_ONCE;
    tell();
  }
  function tell() {
    more.hidden = next >= rows.length;
    fill(more, `Show more (${count(rows.length - next)} left)`);
  }
  tell();
  return h("div.result", shown.element, more);
}

function tableColumn({ name, type }, index) {
  return {
    label: h("span", { title: type }, name),
    cell: (row) => (row[index] === null ? h("i.null", "null") : cell(row[index])),
    class: NUMERIC.test(type) ? "number" : TEMPORAL.test(type) ? "" : "wide",
  };
}

export function resultChart(found, signal) {
  const { columns, rows } = found;
  const lines = columns
    .map(({ name, type }, index) => ({ name, type, index }))
    .filter(({ type }) => NUMERIC.test(type));
  if (!lines.length || !rows.length) return h("p.empty", NO_NUMBERS);
  const place = h("div");
  const first = firstAcross(columns);
  const named = columns.map(({ name }, index) => [String(index), name]);
  const draw = inTurn(signal, (mine) => {
    const at = Number(across.value);
    const chosen = boxes.filter(({ box, index }) => box.checked && index !== at);
    const shown = chosen.length
      ? drawing(found, at, chosen, mine)
      : h("p.empty", "Choose a column of numbers.");
    fill(place, shown);
  });
  const on = { change: () => draw() };
  const across = select(named, { value: String(first), on });
  const boxes = lines.map(({ name, index }) => ({
    name,
    index,
    ...check(name, { checked: index !== first, on }),
  }));
  draw();
  const elements = boxes.map((one) => one.element);
  const fields = h("fieldset.fields", h("legend", "Lines"), elements);
  return h("div.result", h("div.row", field("Across", across), fields), place);
}

/** Return which column is across at first: a time, else one that is no number, else the first. */
function firstAcross(columns) {
  const time = columns.findIndex(({ type }) => TEMPORAL.test(type));
  const other = columns.findIndex(({ type }) => !NUMERIC.test(type));
  return time >= 0 ? time : Math.max(other, 0);
}

/** A chart of the chosen columns by the one at `at`. */
function drawing({ columns, rows }, at, chosen, signal) {
  const { name, type } = columns[at];
  const isTime = TEMPORAL.test(type);
  const isNumber = NUMERIC.test(type);
  const isOrdered = isTime || isNumber;
  const xOf = (row) => (isTime ? Date.parse(utc(row[at])) / 1000 : Number(row[at]));
  const hasX = (row) => row[at] !== null && (!isOrdered || Number.isFinite(xOf(row)));
  const found = rows.filter(hasX).slice(0, MOST_CHART_ROWS);
  if (isOrdered) found.sort((one, two) => xOf(one) - xOf(two));
  const names = chosen.map((one) => one.name);
  const shown = chart({
    label: `${names.join(", ")} by ${name}`,
    series: names,
    isTime,
    categories: isOrdered ? undefined : found.map((row) => cell(row[at])),
    hasBars: !isOrdered,
    hasPoints: true,
    format: cell,
    height: HEIGHT,
    signal,
  });
  // NaN and Infinity come as texts: no point of a chart.
  const isPoint = (one) => one !== null && Number.isFinite(Number(one));
  const value = (row, index) => (isPoint(row[index]) ? Number(row[index]) : null);
  const y = chosen.map(({ index }) => found.map((row) => value(row, index)));
  shown.show([found.map(isOrdered ? xOf : (_row, index) => index), ...y]);
  return shown.element;
}

/** Times come in UTC; a text without a zone would be read as one of this browser's. */
function utc(text) {
  return /(?:Z|[+-]\d\d:?\d\d)$/u.test(text) || !text.includes(":")
    ? text
    : `${text.replace(" ", "T")}Z`;
}
