/**
 * A text area that shows SQL in colours, and where it is wrong.
 *
 * The coloured text lies behind the area, whose own is see-through: so editing, selection, undo and
 * screen readers are the browser's. Tab leaves it, as it leaves any other field.
 */

import { fill, freshId, h } from "./dom.js";
import { tokens } from "./sql.js";

/**
 * @param {Object} options
 * @param {string} options.label
 * @param {string} [options.value]
 * @param {number} [options.rows]
 * @param {function(string)} [options.onChange] Called with the text.
 * @param {function()} [options.onRun] Called on Ctrl+Enter.
 */
export function editor(options) {
  const code = h("code");
  const behind = h("pre", { "aria-hidden": "true" }, code);
  const said = h("ul.findings", { id: freshId(), role: "status", "aria-live": "polite" });
  const area = textArea(options, said, behind, () => {
    show([]);
    options.onChange?.(area.value);
  });
  function show(marks) {
    // A last line that is empty has no height of its own.
    fill(code, coloured(area.value, marks), "\n");
  }

  /**
   * Say what is wrong.
   *
   * @param {Array<{problem: string, line: ?number, column: ?number, fragment: ?string, hint: ?string}>} errors
   *   Places are 1-based.
   * @param {string[]} [warnings]
   */
  function mark(errors, warnings = []) {
    show(errors.filter((error) => error.line).map((error) => placeOf(area.value, error)));
    area.setAttribute("aria-invalid", String(errors.length > 0));
    const found = errors.map((error) => finding(area, error));
    fill(
      said,
      found,
      warnings.map((warning) => h("li.warn", warning)),
    );
  }

  show([]);
  return {
    element: h("div.editor", h("div.layers", behind, area), said),
    area,
    mark,
    get value() {
      return area.value;
    },
    set value(text) {
      area.value = text;
      show([]);
    },
    /** Put text where the cursor is. */
    insert(text) {
      area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
      area.focus();
      area.dispatchEvent(new Event("input"));
    },
  };
}

/** The area that is written in; what lies behind it is scrolled with it. */
function textArea(options, said, behind, input) {
  const scroll = () => {
    behind.scrollTop = area.scrollTop;
    behind.scrollLeft = area.scrollLeft;
  };
  const keydown = (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    options.onRun?.();
  };
  const area = h("textarea", {
    id: freshId(),
    "aria-label": options.label,
    "aria-describedby": said.id,
    rows: options.rows ?? 8,
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    wrap: "soft",
    value: options.value ?? "",
    on: { input, scroll, keydown },
  });
  return area;
}

/** The pieces of a text with their colours; those in one of the marks are wrong. */
function coloured(text, marks) {
  let offset = 0;
  return tokens(text).map(([kind, piece]) => {
    const begin = offset;
    offset += piece.length;
    const isWrong = marks.some((one) => one.begin < offset && one.end > begin);
    if (kind === "" && !isWrong) return piece;
    return h("span", { class: isWrong ? `${kind} wrong` : kind }, piece);
  });
}

/** One error; the button before it leads to its place. */
function finding(area, error) {
  const click = () => {
    const { begin, end } = placeOf(area.value, error);
    area.focus();
    area.setSelectionRange(begin, end);
  };
  const place = `Line ${error.line}, column ${error.column}`;
  return h(
    "li.bad",
    error.line && [h("button.link", { type: "button", on: { click } }, place), ": "],
    error.problem,
    error.hint && h("span.hint", ` ${error.hint}`),
  );
}

function placeOf(text, { line, column, fragment }) {
  const lines = text.split("\n").slice(0, line - 1);
  const before = lines.reduce((sum, one) => sum + one.length + 1, 0);
  // Columns count characters, texts of JavaScript UTF-16 units.
  const head = [...(text.split("\n")[line - 1] ?? "")].slice(0, (column ?? 1) - 1).join("");
  const begin = Math.min(before + head.length, Math.max(text.length - 1, 0));
  const word =
    fragment && text.startsWith(fragment, begin)
      ? fragment
      : (/^\w+|^./su.exec(text.slice(begin))?.[0] ?? "");
  return { begin, end: begin + Math.max(word.length, 1) };
}
