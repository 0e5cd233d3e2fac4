// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command site makes a site of the documentation: pages by reader and by task, a search that
// needs no server, and every file that the pages link to. It needs no network, nor do the pages;
// the same sources make the same bytes. A link to something that is not there is an error.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	root := flag.String("root", ".", "the checkout")
	dist := flag.String("dist", "dist/site", "folder that the site goes to; it is emptied")
	version := flag.String("version", "", "version that the pages name")
	flag.Parse()

	if err := run(*root, *dist, *version); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func run(root, dist, version string) error {
	site, err := load(root, readers())
	if err != nil {
		return err
	}

	site.version = version

	files, err := site.files()
	if err != nil {
		return err
	}

	if len(site.broken) > 0 {
		return fmt.Errorf("links to what is not there:\n%s", table(site.broken))
	}

	if err := write(dist, files); err != nil {
		return err
	}

	fmt.Fprintf(os.Stderr, "site: %d pages, %d files in all: open %s\n", len(site.pages), len(files), filepath.Join(dist, home))

	return nil
}

// write replaces what is in dist.
func write(dist string, files map[string][]byte) error {
	if err := os.RemoveAll(dist); err != nil {
		return fmt.Errorf("empty %s: %w", dist, err)
	}

	for name, data := range files {
		file := filepath.Join(dist, filepath.FromSlash(name))

		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // a site is for everybody
			return fmt.Errorf("make the folder of %s: %w", file, err)
		}

		if err := os.WriteFile(file, data, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
	}

	return nil
}

// broken is a link that leads nowhere.
type broken struct{ page, link, why string }

// table shows broken links, one a line.
func table(links []broken) string {
	width := [2]int{}
	for _, l := range links {
		width[0], width[1] = max(width[0], len(l.page)), max(width[1], len(l.link))
	}

	var out strings.Builder
	for _, l := range links {
		fmt.Fprintf(&out, "%-*s  %-*s  %s\n", width[0], l.page, width[1], l.link, l.why)
	}

	return out.String()
}
