// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Reloads the content of the page every 3 seconds while the page is visible. Without this script, users reload pages
// themselves.
"use strict";

(() => {
  const intervalMs = 3000;
  const status = document.getElementById("live");
  let isLoading = false;

  const hasSelection = () => {
    const selection = document.getSelection();

    return selection !== null && !selection.isCollapsed;
  };

  const isTyping = () => document.activeElement instanceof HTMLInputElement;

  // Replaces the content, unless that would disturb the user: while text is selected or an input has the focus.
  async function refresh() {
    const main = document.querySelector("main[data-live]");
    if (main === null || isLoading || document.hidden || hasSelection() || isTyping()) {
      return;
    }

    isLoading = true;

    try {
      const response = await fetch(location.href, { headers: { Accept: "text/html" } });
      const text = await response.text();
      const newPage = new DOMParser().parseFromString(text, "text/html");
      const newMain = newPage.querySelector("main");

      if (newMain !== null && newMain.innerHTML !== main.innerHTML) {
        const log = main.querySelector(".log");
        const scrollTop = log === null ? 0 : log.scrollTop;

        main.innerHTML = newMain.innerHTML;

        const newLog = main.querySelector(".log");
        if (newLog !== null) {
          newLog.scrollTop = scrollTop;
        }
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

  setInterval(refresh, intervalMs);
  document.addEventListener("visibilitychange", refresh);
})();
