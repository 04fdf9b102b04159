// Before anything is painted: a chosen theme must not flash as the other one first.
{
  const chosen = localStorage.getItem("mqlake.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
