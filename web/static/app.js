"use strict";
// What pages do beyond links and forms. Everything works without it, only less comfortably.

function showCopyButtons(root) {
  for (const button of root.querySelectorAll("button[data-copy][hidden]")) button.hidden = !navigator.clipboard && !document.execCommand;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Browsers have no clipboard API over plain http.
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const words = button.querySelector("span");
  await copy(button.dataset.copy);
  button.focus();
  words.textContent = "Copied";
  setTimeout(() => { words.textContent = "Copy"; }, 2000);
});

// A second click does nothing while the first is under way; the server would answer it like the first.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post" || event.defaultPrevented) return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "1";
  form.setAttribute("aria-busy", "true");
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) { delete form.dataset.sent; form.removeAttribute("aria-busy"); }
});

// A button that waits until the right name is typed.
function checkTyped(input) {
  const button = document.getElementById(input.dataset.typed);
  if (button) button.disabled = input.value.trim() !== input.dataset.name;
}
document.addEventListener("input", (event) => {
  if (event.target.matches("input[data-typed]")) checkTyped(event.target);
});

// The link of the section that the anchor of the URL selects, for screen readers; its look is in the stylesheet.
function markSection() {
  const open = [...document.querySelectorAll(".sections .part")].find((one) => one.getClientRects().length);
  for (const link of document.querySelectorAll(".tabs a")) {
    if (open && link.hash === `#${open.id}`) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}
addEventListener("hashchange", () => {
  for (const one of document.querySelectorAll(".sections[data-open]")) one.removeAttribute("data-open");
  markSection();
});
document.addEventListener("htmx:load", markSection);
document.addEventListener("DOMContentLoaded", markSection);

// The panel of a form lists its invalid fields: mark them where they are typed.
function markInvalid(panel) {
  for (const field of document.querySelectorAll("[data-marked]")) {
    delete field.dataset.marked;
    if (!document.getElementById(`error-${field.name}`)) field.removeAttribute("aria-invalid"); // else of the sent form
    const words = (field.getAttribute("aria-describedby") || "").split(" ").filter((one) => one !== `invalid-${field.name}`);
    if (words.join("")) field.setAttribute("aria-describedby", words.join(" "));
    else field.removeAttribute("aria-describedby");
  }
  for (const one of panel.querySelectorAll("[data-invalid]")) {
    const field = document.getElementById(`f-${one.dataset.invalid}`);
    if (!field) continue;
    field.dataset.marked = "";
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", `${field.getAttribute("aria-describedby") || ""} ${one.id}`.trim());
  }
}
document.addEventListener("htmx:afterSettle", (event) => { if (event.target.id === "cost") markInvalid(event.target); });

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = event.target.closest("details.menu[open]");
  if (open) { open.open = false; open.querySelector("summary").focus(); }
});

document.addEventListener("htmx:load", (event) => showCopyButtons(event.detail.elt));
document.addEventListener("DOMContentLoaded", () => {
  showCopyButtons(document);
  document.querySelectorAll("input[data-typed]").forEach(checkTyped);
});

// Boxes before the rows of a table: one for them all, and how many are ticked.
for (const form of document.querySelectorAll("form[data-choose]")) {
  const all = form.querySelector("[data-all]");
  const boxes = [...form.querySelectorAll("input[name=chosen]")];
  const words = form.querySelector("[data-chosen]");
  const count = () => {
    const ticked = boxes.filter((one) => one.checked).length;
    words.textContent = ticked ? `${ticked} selected:` : "Selected slices:";
    all.checked = ticked === boxes.length;
    all.indeterminate = ticked > 0 && ticked < boxes.length;
  };
  all.hidden = false;
  all.addEventListener("change", () => { for (const one of boxes) one.checked = all.checked; count(); });
  form.addEventListener("change", (event) => { if (event.target !== all) count(); });
  count();
}
