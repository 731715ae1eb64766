// A section: its items, a text search, filters by facet, and a list that grows a page at a time.
const PAGE = 100;
const FACET_ORDER = ["init", "prefill", "decode", "production", "candidate", "diagnostic", "deprecated", "error", "warning",
  "note", "selected", "outranked", "tied", "rejected", "no provider", "one provider only", "not asked for"];

function choices(view, facet) {
  const found = new Set();
  for (const item of view.items) for (const value of view.facets[facet](item)) found.add(value);
  const rank = (value) => (FACET_ORDER.indexOf(value) + 1) || FACET_ORDER.length + 1;
  return [...found].filter(Boolean).sort((one, two) => rank(one) - rank(two) || (one < two ? -1 : 1));
}

// Items that hold every word of the search and every chosen facet.
function matching(view, query) {
  const words = (query.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = Object.keys(view.facets).map((facet) => [view.facets[facet], query.get(facet)]).filter(([, value]) => value);
  return view.items.filter((item) =>
    (view.together ? view.together(item, query) : chosen.every(([values, value]) => values(item).includes(value)))
    && (!words.length || holds(view, item, words)));
}

function holds(view, item, words) {
  if (item.hay === undefined) item.hay = view.hay(item).toLowerCase();
  const also = item.about ? item.about.hay : "";
  return words.every((word) => item.hay.includes(word) || also.includes(word));
}

function listSection(name, view, query) {
  const heading = el("h1", { tabindex: "-1" }, view.title);
  const counted = el("p", { class: "count", role: "status", "aria-live": "polite" });
  const results = el("div", { class: "results" });
  const more = el("button", { type: "button", class: "more" });
  const state = { found: [], shown: 0, add: null };

  const grow = () => {
    const from = state.shown;
    state.shown = Math.min(state.found.length, from + PAGE);
    for (let index = from; index < state.shown; index += 1) state.add(state.found[index]);
    const left = state.found.length - state.shown;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(PAGE, left)} more (${left.toLocaleString("en")} left)`;
  };
  const update = () => {
    state.found = matching(view, query);
    state.shown = 0;
    results.textContent = "";
    state.add = view.list(results);
    const all = view.items.length;
    counted.textContent = state.found.length === all ? plural(all, view.word)
      : `${state.found.length.toLocaleString("en")} of ${plural(all, view.word)}`;
    results.classList.toggle("empty", !state.found.length);
    if (!state.found.length) results.replaceChildren(el("p", { class: "note" }, all ? "Nothing matches." : view.nothing));
    grow();
  };
  more.addEventListener("click", () => {
    const from = results.querySelectorAll("th[scope=row]").length;
    grow();
    const next = results.querySelectorAll("th[scope=row]")[from];
    if (next) {
      next.tabIndex = -1;
      next.focus({ preventScroll: true });
    }
  });
  const bar = view.items.length ? filterBar(name, view, query, update) : null;
  update();
  return el("section", { class: name }, heading, el("p", { class: "hint" }, view.hint), bar, counted, results, more);
}

function filterBar(name, view, query, update) {
  const changed = () => {
    const text = query.toString();
    update();
    try {
      history.replaceState(null, "", `#/${name}${text ? `?${text}` : ""}`);
    } catch { /* browsers limit how often an address may change; the next change sets it right */ }
  };
  const set = (key, value) => {
    if (value) query.set(key, value);
    else query.delete(key);
  };
  let timer = 0;
  const search = el("input", { type: "search", id: "q", autocomplete: "off", spellcheck: "false", value: query.get("q") });
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      set("q", search.value.trim());
      changed();
    }, 60);
  });
  const useful = Object.keys(view.facets).filter((facet) => query.get(facet) || choices(view, facet).length);
  const selects = useful.map((facet) => facetSelect(view, facet, query, (value) => {
    set(facet, value);
    changed();
  }));
  const clear = el("button", { type: "button" }, "Clear");
  clear.addEventListener("click", () => {
    for (const key of [...query.keys()]) query.delete(key);
    search.value = "";
    for (const [, input] of selects) input.value = "";
    changed();
    search.focus();
  });
  const labelled = selects.map(([label, input]) => el("p", {}, label, input));
  const box = el("p", { class: "search" }, el("label", { for: "q" }, "Search"), search);
  return el("div", { class: "filters", role: "search", "aria-label": `Filter ${view.title.toLowerCase()}` }, box, labelled, clear);
}

function facetSelect(view, facet, query, chosen) {
  const id = `f-${facet}`;
  const values = choices(view, facet);
  const now = query.get(facet);
  if (now && !values.includes(now)) values.push(now);
  const input = el("select", { id },
    el("option", { value: "" }, "all"),
    values.map((value) => el("option", { value, selected: value === now }, value)));
  input.addEventListener("change", () => chosen(input.value));
  return [el("label", { for: id }, facet), input];
}

// The list of a view that is one table.
function inTable(caption, headings, cells, kind) {
  return (results) => {
    const { made, add } = table(caption, headings);
    results.append(made);
    return (item) => add(cells(item), kind ? kind(item) : "");
  };
}
