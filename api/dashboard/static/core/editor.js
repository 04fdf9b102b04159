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
  const id = freshId();
  const said = h("ul.findings", { id: `${id}-findings`, role: "status", "aria-live": "polite" });
  const area = h("textarea", {
    id,
    "aria-label": options.label,
    "aria-describedby": said.id,
    rows: options.rows ?? 8,
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    wrap: "soft",
    value: options.value ?? "",
    on: {
      input: () => {
        marks = [];
        paint();
        options.onChange?.(area.value);
      },
      scroll: () => {
        behind.scrollTop = area.scrollTop;
        behind.scrollLeft = area.scrollLeft;
      },
      keydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          options.onRun?.();
        }
      },
    },
  });
  let marks = [];

  function paint() {
    let offset = 0;
    const pieces = tokens(area.value).map(([kind, text]) => {
      const begin = offset;
      offset += text.length;
      const isWrong = marks.some((one) => one.begin < offset && one.end > begin);
      if (kind === "" && !isWrong) return text;
      return h("span", { class: isWrong ? `${kind} wrong` : kind }, text);
    });
    // A last line that is empty has no height of its own.
    fill(code, pieces, "\n");
  }

  /**
   * Say what is wrong.
   *
   * @param {Array<{problem: string, line: ?number, column: ?number, fragment: ?string, hint: ?string}>} errors
   *   Places are 1-based.
   * @param {string[]} [warnings]
   */
  function mark(errors, warnings = []) {
    marks = errors.filter((error) => error.line).map((error) => placeOf(area.value, error));
    paint();
    area.setAttribute("aria-invalid", String(errors.length > 0));
    fill(
      said,
      errors.map((error) =>
        h(
          "li.bad",
          error.line
            ? h(
                "button.link",
                { type: "button", on: { click: () => goTo(error) } },
                `Line ${error.line}, column ${error.column}`,
              )
            : null,
          error.line ? ": " : null,
          error.problem,
          error.hint ? h("span.hint", ` ${error.hint}`) : null,
        ),
      ),
      warnings.map((warning) => h("li.warn", warning)),
    );
  }

  function goTo(error) {
    const { begin, end } = placeOf(area.value, error);
    area.focus();
    area.setSelectionRange(begin, end);
  }

  paint();
  return {
    element: h("div.editor", h("div.layers", behind, area), said),
    area,
    mark,
    get value() {
      return area.value;
    },
    set value(text) {
      area.value = text;
      marks = [];
      paint();
    },
    /** Put text where the cursor is. */
    insert(text) {
      area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
      area.focus();
      area.dispatchEvent(new Event("input"));
    },
  };
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
