"use strict";

// Tables: a click on a heading sorts by it, another turns the order round.
function keyOf(row, column) {
  const text = row.cells[column].textContent.trim();
  const match = text.match(/[-+\u2212]?\d[\d,]*\.?\d*(e[-+]?\d+)?/i);
  const number = match && /^[^a-z]*$/i.test(text.slice(0, match.index)) ? Number(match[0].replace(/,/g, "")) : NaN;
  return { text, number };
}

function before(a, b) {
  const missing = (key) => key.text === "-" || key.text === "";
  if (missing(a) || missing(b)) return 0;
  if (!Number.isNaN(a.number) && !Number.isNaN(b.number)) return a.number - b.number;
  return a.text.localeCompare(b.text, "en", { numeric: true });
}

function sort(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const down = heads[column].getAttribute("aria-sort") === "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: keyOf(row, column) }));
  const empty = rows.filter(({ key }) => key.text === "-" || key.text === "");
  const full = rows.filter((entry) => !empty.includes(entry));
  full.sort((a, b) => (down ? -1 : 1) * before(a.key, b.key));
  [...full, ...empty].forEach(({ row }) => table.tBodies[0].append(row));
}

document.querySelectorAll("table.sortable").forEach((table) => {
  if (!table.tHead || !table.tBodies.length || table.tBodies[0].rows.length < 2) return;
  [...table.tHead.rows[0].cells].forEach((head) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, head.cellIndex));
    head.append(button);
  });
});

// On a phone the speedup stands beside the name of the arm.
const phone = window.matchMedia("(max-width: 600px)");

function speedups(table) {
  const titles = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  const from = titles.findIndex((title) => title.startsWith("speedup"));
  const to = titles.findIndex((title) => title.startsWith("arm")) + 1;
  return to > 0 && from > to ? { rows: [...table.rows], from, to } : null;
}

document.querySelectorAll("table").forEach((table) => {
  const found = table.tHead && speedups(table);
  if (!found) return;
  const { rows, from, to } = found;
  let moved = false;
  const arrange = () => {
    if (phone.matches === moved) return;
    moved = phone.matches;
    rows.forEach((row) => {
      if (moved) row.insertBefore(row.cells[from], row.cells[to]);
      else row.insertBefore(row.cells[to], row.cells[from + 1] || null);
    });
  };
  arrange();
  phone.addEventListener("change", arrange);
});

// A table that is wider than its place says so, and can be scrolled by the keyboard.
const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  const more = target.scrollWidth > target.clientWidth + 1;
  target.classList.toggle("more", more);
  if (more) target.tabIndex = 0;
  else target.removeAttribute("tabindex");
}));
document.querySelectorAll(".scroll").forEach((place) => widths.observe(place));

// The trace: what stands behind a token.
const tip = document.getElementById("tip");

function fill(token) {
  const { target, draft, u, sibling } = token.dataset;
  const { loop, ms } = token.parentElement.dataset;
  const fate = token.classList[1];
  const facts = [["fate", fate], ["target probability", target], ["draft probability", draft], ["u", u]];
  facts.push(["sibling", sibling], ["loop", loop], ["loop took", ms && `${ms} ms`]);
  const name = document.createElement("b");
  name.textContent = token.textContent;
  const list = document.createElement("dl");
  facts.filter(([, value]) => value !== undefined).forEach(([key, value]) => {
    const term = document.createElement("dt");
    const fact = document.createElement("dd");
    term.textContent = key;
    fact.textContent = value;
    list.append(term, fact);
  });
  tip.replaceChildren(name, list);
}

function show(token) {
  fill(token);
  tip.hidden = false;
  const box = token.getClientRects()[0] || token.getBoundingClientRect();
  const left = Math.min(box.left, window.innerWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above < 8 ? box.bottom + 6 : above}px`;
}

function hide() {
  tip.hidden = true;
}

function walk(trace, event) {
  const tokens = [...trace.querySelectorAll(".t")];
  const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const at = tokens.findIndex((token) => token.classList.contains("at"));
  if (event.key === "Escape") hide();
  if (!way || !tokens.length) return;
  event.preventDefault();
  const next = Math.min(Math.max(at + way, 0), tokens.length - 1);
  if (at >= 0) tokens[at].classList.remove("at");
  tokens[next].classList.add("at");
  tokens[next].scrollIntoView({ block: "nearest" });
  show(tokens[next]);
}

document.querySelectorAll(".trace").forEach((trace) => {
  trace.addEventListener("pointerover", (event) => {
    const token = event.target.closest(".t");
    if (token) show(token);
  });
  trace.addEventListener("pointerleave", hide);
  trace.addEventListener("blur", hide);
  trace.addEventListener("keydown", (event) => walk(trace, event));
});
document.addEventListener("wheel", hide, { passive: true });
