// What readers by keyboard and by ear need: what scrolls can be reached, headings have a level.
document.addEventListener("DOMContentLoaded", () => {
  for (const e of document.querySelectorAll("pre, .table-wrapper")) e.tabIndex = 0;
  for (const e of document.querySelectorAll('[role="heading"]')) e.setAttribute("aria-level", "2");
});
