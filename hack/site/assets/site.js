// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Search, light and dark theme, and copy buttons. The pages also work without this script.
"use strict";
(() => {
  const root = document.documentElement;
  const top = root.dataset.top;
  const make = (tag, text, props) => Object.assign(document.createElement(tag), { textContent: text || "" }, props);

  // Pages that are opened from a folder may have no storage. In this case, the theme is lost when the page is left.
  const store = { get() { try { return localStorage.theme; } catch { return ""; } }, set(v) { try { localStorage.theme = v; } catch { /* no storage */ } } };
  if (store.get()) root.dataset.theme = store.get();
  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    store.set(root.dataset.theme);
  };

  for (const h of document.querySelectorAll("article :is(h2, h3, h4)[id]")) {
    h.append(make("a", "#", { className: "anchor", href: "#" + h.id, ariaLabel: "Link to this section" }));
  }
  if (navigator.clipboard) {
    for (const pre of document.querySelectorAll("pre.code")) {
      const text = pre.textContent;
      const button = make("button", "Copy", { type: "button" });
      button.onclick = () => navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; });
      pre.append(button);
    }
  }
  if (matchMedia("(max-width: 52rem)").matches) document.querySelector("nav .menu")?.removeAttribute("open");
  document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "center" });
  if (!location.hash) scrollTo(0, 0);

  // The index is a script, because a page that is opened from a folder cannot fetch data.
  let loading;
  const load = () => loading ||= new Promise((done, failed) => {
    document.head.append(make("script", "", { src: top + "search-index.js", onload: () => done(window.searchIndex), onerror: failed }));
  });

  const words = (text) => text.toLowerCase().split(/[^\p{L}\p{N}_.]+/u).map((w) => w.replace(/^\.+|\.+$/g, "")).filter(Boolean);
  // within returns 2 if a word of the text starts with word, 1 if the text contains word, and 0 otherwise.
  const within = (text, word) => {
    const low = text.toLowerCase();
    const at = low.indexOf(word);
    if (at < 0) return 0;
    const begins = new RegExp("(^|[^\\p{L}\\p{N}])" + word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "u").test(low);
    return begins ? 2 : 1;
  };
  const score = (entry, query) => {
    let sum = 0;
    for (const word of query) {
      const often = Math.min(entry.x.toLowerCase().split(word).length - 1, 4) / 2;
      const one = 12 * within(entry.t, word) + 8 * within(entry.h || "", word) + within(entry.x, word) + often;
      if (!one) return 0;
      sum += one;
    }
    const phrase = query.join(" ");
    if (query.length > 1) sum += 10 * !!within(entry.t + " " + (entry.h || ""), phrase) + 3 * !!within(entry.x, phrase);
    // If two sections match equally well, the shorter section ranks higher.
    return sum + (entry.h ? 0 : 1) + 1 / (1 + entry.x.length / 500);
  };
  const marked = (node, text, query) => {
    const any = new RegExp("(" + query.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|") + ")", "giu");
    text.split(any).forEach((part, i) => node.append(i % 2 ? make("mark", part) : part));
    return node;
  };
  const snippet = (text, query) => {
    const low = text.toLowerCase();
    const at = Math.max(0, Math.min(...query.map((w) => { const i = low.indexOf(w); return i < 0 ? Infinity : i; }).concat(low.length)) - 60);
    return (at ? "…" : "") + text.slice(at === low.length ? 0 : at, at + 220) + "…";
  };

  const form = document.getElementById("search");
  const input = form.elements.q;
  const box = document.getElementById("results");
  form.hidden = false;

  const show = async () => {
    const query = words(input.value);
    if (!query.length) { box.hidden = true; return; }
    let index;
    try { index = await load(); } catch { box.replaceChildren(make("p", "The search index is missing.")); box.hidden = false; return; }
    const found = index.map((e) => [score(e, query), e]).filter(([s]) => s).sort((a, b) => b[0] - a[0]);
    const list = make("ol");
    for (const [, e] of found.slice(0, 30)) {
      const item = make("li");
      item.append(marked(make("a", "", { href: top + e.u }), e.h ? e.t + " › " + e.h : e.t, query), " ", make("small", e.r));
      item.append(marked(make("p"), snippet(e.x, query), query));
      list.append(item);
    }
    box.replaceChildren(make("p", found.length ? found.length + (found.length > 1 ? " sections" : " section") : "No section has all of these words."), list);
    box.hidden = false;
  };
  input.onfocus = () => { load().catch(() => {}); };
  input.oninput = show;
  form.onsubmit = (e) => { e.preventDefault(); box.querySelector("a")?.click(); };
  addEventListener("keydown", (e) => {
    if (e.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) { e.preventDefault(); input.focus(); input.select(); }
    if (e.key === "Escape") { box.hidden = true; input.blur(); }
    if ((e.key === "ArrowDown" || e.key === "ArrowUp") && !box.hidden && (document.activeElement === input || box.contains(document.activeElement))) {
      const links = [input, ...box.querySelectorAll("a")];
      const next = links[links.indexOf(document.activeElement) + (e.key === "ArrowDown" ? 1 : -1)];
      if (next) { e.preventDefault(); next.focus(); }
    }
  });
  addEventListener("click", (e) => { if (!box.contains(e.target) && !form.contains(e.target)) box.hidden = true; });

  const asked = new URLSearchParams(location.search).get("q");
  if (asked) { input.value = asked; show(); }
})();
