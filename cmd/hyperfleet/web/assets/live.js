// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Reloads the content of the page every 3 seconds while the page is visible, and when the user types in the filter. The
// filter is in the URL, and the server applies it. Without this script, users reload pages themselves.
"use strict";

(() => {
  const intervalMs = 3000;
  const status = document.getElementById("live");
  let isLoading = false;
  let isComposing = false; // an input method composes a character

  const hasSelection = () => {
    const selection = document.getSelection();

    return selection !== null && !selection.isCollapsed;
  };

  const findSearch = () => document.querySelector("main input[type=search]");

  // Replaces the content, and keeps the text and the cursor of the filter and the position in a log.
  function replaceContent(main, newMain) {
    const search = findSearch();
    const hasFocus = search !== null && document.activeElement === search;
    const log = main.querySelector(".log");
    const scrollTop = log === null ? 0 : log.scrollTop;

    main.innerHTML = newMain.innerHTML;

    const newSearch = findSearch();
    if (hasFocus && newSearch !== null) {
      newSearch.value = search.value;
      newSearch.focus();
      newSearch.setSelectionRange(search.selectionStart, search.selectionEnd);
    }

    const newLog = main.querySelector(".log");
    if (newLog !== null) {
      newLog.scrollTop = scrollTop;
    }
  }

  // Loads the page until it is the page of the current URL, which changes while the user types. It does nothing while text
  // is selected, because the selection would be lost.
  async function refresh() {
    const main = document.querySelector("main[data-live]");
    if (main === null || isLoading || isComposing || document.hidden || hasSelection()) {
      return;
    }

    isLoading = true;

    try {
      let url = "";
      let newPage = null;

      while (url !== location.href) {
        url = location.href;

        const response = await fetch(url, { headers: { Accept: "text/html" } });
        newPage = new DOMParser().parseFromString(await response.text(), "text/html");
      }

      const newMain = newPage.querySelector("main");
      if (newMain !== null && newMain.innerHTML !== main.innerHTML) {
        replaceContent(main, newMain);
      }

      status.textContent = "as of " + newPage.getElementById("live").dataset.at;
      status.className = "";
    } catch {
      status.textContent = "as of " + status.textContent.replace(/^as of |: .*$/g, "") + ": hyperfleet web does not respond";
      status.className = "lost";
    } finally {
      isLoading = false;
    }
  }

  function filter(event) {
    isComposing = event.isComposing;

    if (event.target !== findSearch() || isComposing) {
      return;
    }

    const url = new URL(location.href);
    const text = event.target.value.trim();

    url.searchParams.delete("page");
    url.searchParams.delete("q");

    if (text !== "") {
      url.searchParams.set("q", text);
    }

    history.replaceState(null, "", url);
    refresh();
  }

  setInterval(refresh, intervalMs);
  document.addEventListener("visibilitychange", refresh);
  document.addEventListener("input", filter);
  document.addEventListener("compositionend", filter);
})();
