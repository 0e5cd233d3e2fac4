// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command site builds a website of the documentation. The site has the pages by audience and task, a search
// that needs no server, and all files to which the pages link. The command and the pages need no network. The
// output is deterministic. A broken link is an error.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	root := flag.String("root", ".", "folder of the checkout")
	dist := flag.String("dist", "dist/site", "output folder; its content is deleted")
	version := flag.String("version", "", "version that the pages show")
	flag.Parse()

	if err := run(*root, *dist, *version); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func run(root, dist, version string) error {
	site, err := loadSite(root, audiences(), version)
	if err != nil {
		return err
	}

	files, err := site.renderFiles()
	if err != nil {
		return err
	}

	if len(site.broken) > 0 {
		return fmt.Errorf("broken links:\n%s", formatBrokenLinks(site.broken))
	}

	if err := writeFiles(dist, files); err != nil {
		return err
	}

	fmt.Fprintf(os.Stderr, "site: %d pages, %d files in total: open %s\n", len(site.pages), len(files), filepath.Join(dist, home))

	return nil
}

// writeFiles replaces the content of dist.
func writeFiles(dist string, files map[string][]byte) error {
	if err := os.RemoveAll(dist); err != nil {
		return fmt.Errorf("empty %s: %w", dist, err)
	}

	for name, data := range files {
		file := filepath.Join(dist, filepath.FromSlash(name))

		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // all users can read the site
			return fmt.Errorf("create the folder of %s: %w", file, err)
		}

		if err := os.WriteFile(file, data, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
	}

	return nil
}

// brokenLink is a link whose target does not exist.
type brokenLink struct{ page, link, problem string }

// formatBrokenLinks returns a table of broken links, one per line.
func formatBrokenLinks(links []brokenLink) string {
	width := [2]int{}
	for _, l := range links {
		width[0], width[1] = max(width[0], len(l.page)), max(width[1], len(l.link))
	}

	var out strings.Builder
	for _, l := range links {
		fmt.Fprintf(&out, "%-*s  %-*s  %s\n", width[0], l.page, width[1], l.link, l.problem)
	}

	return out.String()
}
