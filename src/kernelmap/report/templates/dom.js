// Elements are made with textContent only: nothing of the record is ever read as markup.
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function link(hash, ...children) {
  return el("a", { href: hash }, ...children);
}

function pageHash(kind, id) {
  return `#/${kind}/${encodeURIComponent(id)}`;
}

function badge(text, kind) {
  return el("span", { class: `badge ${kind || text}` }, text);
}

function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

// Terms and what they mean; a pair whose meaning is empty is left out.
function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined && value.length !== 0);
  return el("dl", { class: "facts" }, shown.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

// A table whose rows become blocks on narrow screens; roles keep it a table there.
function table(caption, headings) {
  const body = el("tbody", { role: "rowgroup" });
  const heads = headings.map((text) => el("th", { scope: "col", role: "columnheader" }, text));
  const made = el("table", { class: "list", role: "table" },
    el("caption", { class: "hidden" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads)),
    body);
  const add = (cells, kind) => {
    const parts = cells.map((cell, index) => index === 0
      ? el("th", { scope: "row", role: "rowheader", "data-label": headings[0] }, cell)
      : el("td", { role: "cell", "data-label": headings[index] }, cell));
    body.append(el("tr", { role: "row", class: kind || "" }, parts));
  };
  return { made, add };
}

// "0-3,5" from sorted layers.
function ranges(layers) {
  const parts = [];
  for (let start = 0, end = 0; start < layers.length; start = end + 1) {
    for (end = start; end + 1 < layers.length && layers[end + 1] === layers[end] + 1;) end += 1;
    parts.push(start === end ? `${layers[start]}` : `${layers[start]}-${layers[end]}`);
  }
  return parts.join(",");
}

function layersText(layers) {
  if (!layers.length) return "";
  return `layer${layers.length === 1 ? "" : "s"} ${ranges(layers)}`;
}
