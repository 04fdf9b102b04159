/* Controls without a name, and what else assistive software would stumble over. */
() => {
  const found = [];
  const nameOf = (element) => {
    const by = (element.getAttribute("aria-labelledby") ?? "").split(" ").filter(Boolean);
    return (
      element.getAttribute("aria-label") ||
      by
        .map((id) => document.getElementById(id)?.textContent ?? "")
        .join(" ")
        .trim() ||
      [...(element.labels ?? [])]
        .map((label) => label.textContent)
        .join(" ")
        .trim() ||
      element.textContent.trim()
    );
  };
  for (const element of document.querySelectorAll(
    "button, a, input, select, textarea, [role], section",
  )) {
    if (["status", "tabpanel", "none"].includes(element.getAttribute("role"))) continue;
    if (
      element.matches("input, select, textarea")
        ? !element.labels?.length && !element.getAttribute("aria-label")
        : !nameOf(element)
    ) {
      found.push(`no name: ${element.outerHTML.slice(0, 120)}`);
    }
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids))
    if (ids.filter((one) => one === id).length > 1) found.push(`twice: #${id}`);
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  if (document.querySelectorAll("main").length !== 1) found.push("not one main");
  for (const image of document.images)
    if (!image.hasAttribute("alt")) found.push(`no alt: ${image.src}`);
  return found;
};
