// Rules for the project's scripts. How a line is broken is prettier's matter.
const js = require("@eslint/js");
const globals = require("globals");

const language = (sourceType, known) => ({ ecmaVersion: 2024, sourceType, globals: known });

module.exports = [
  js.configs.recommended,
  {
    languageOptions: language("module", globals.browser),
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: ["error", "always", { null: "ignore" }],
      "max-lines": ["error", 400],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-shadow": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "require-await": "error",
    },
  },
  {
    files: ["api/dashboard/static/**"],
    rules: {
      "max-lines-per-function": ["error", { max: 40, skipBlankLines: true, skipComments: true }],
    },
  },
  { files: ["**/*.cjs"], languageOptions: language("commonjs", globals.node) },
];
