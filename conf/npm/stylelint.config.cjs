module.exports = {
  extends: [require.resolve("stylelint-config-standard")],
  rules: {
    // Groups of properties are told apart by empty lines.
    "custom-property-empty-line-before": null,
    // The sheets go from parts to the places that they stand in.
    "no-descending-specificity": null,
  },
};
