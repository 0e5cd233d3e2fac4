// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// reader is somebody with a matter of their own: the pages for them, by task.
type reader struct {
	Title, About string
	Tasks        []task
}

// task is what a reader is about to do, and the pages on it.
type task struct {
	Title string
	pages []string
	Pages []*page
}

// readers are all of them, in the order that the site shows them in. Pages are named by their
// files, in docs/ unless they begin with a slash; DIR/* is whatever else is in a folder.
func readers() []reader {
	return append([]reader{
		{
			Title: "Runners", About: "A fresh virtual machine for every CI job, on your own hypervisors.",
			Tasks: []task{
				{Title: "Try it, and start", pages: []string{"/README.md", "start/demo.md", "start/runners.md"}},
				{Title: "Prepare a hypervisor", pages: []string{
					"guides/proxmox-permissions.md", "guides/proxmox-template.md", "guides/kubevirt-runners.md",
				}},
				{Title: "Connect a CI platform", pages: []string{
					"guides/github.md", "guides/scale-sets.md", "guides/gitlab.md", "guides/buildkite.md", "guides/forgejo.md",
					"guides/generic.md",
				}},
				{Title: "Run pools and jobs", pages: []string{
					"guides/pools.md", "guides/jobs.md", "guides/cache.md", "/deploy/samples/README.md",
				}},
				{Title: "Keep secrets and teams apart", pages: []string{
					"guides/tenants.md", "guides/credentials.md", "guides/identity.md", "guides/tpm.md", "guides/threat-model.md",
				}},
			},
		},
		{
			Title: "Addresses and names", About: "Fixed addresses for machines and node pools, and their records in DNS.",
			Tasks: []task{
				{Title: "Give machines addresses", pages: []string{"guides/addresses.md", "guides/kubevirt.md"}},
				{Title: "Give machines names", pages: []string{"guides/dns.md"}},
				{Title: "Look it up", pages: []string{"reference/addresses.md"}},
			},
		},
		{
			Title: "Hosts", About: "Macs at Scaleway and Linux hosts, kept on one configuration over SSH.",
			Tasks: []task{{Title: "Keep hosts", pages: []string{"guides/hosts.md", "guides/mac-hosts.md"}}},
		},
		{
			Title: "Bridge", About: "Hosted control planes for DPU clusters.",
			Tasks: []task{{Title: "Give DPUs a cluster", pages: []string{"guides/bridge.md"}}},
		},
		{
			Title: "Fleet platform", About: "Desired state in an API, and adapters that make objects of it on clusters.",
			Tasks: []task{
				{Title: "Start", pages: []string{"start/platform.md", "guides/first-adapter.md"}},
				{Title: "Run it", pages: []string{"guides/platform.md", "guides/objects.md", "guides/lifecycle-gates.md"}},
				{Title: "Look it up", pages: []string{
					"reference/fleet-api.md", "reference/search.md", "reference/sentinel.md", "reference/adapter.md",
					"reference/task-file.md", "reference/sweep.md",
				}},
			},
		},
	}, running()...)
}

// running are those who run it, look something up or change it.
func running() []reader {
	return []reader{
		{
			Title: "Operate", About: "Install, watch, upgrade, back up, repair, remove.",
			Tasks: []task{
				{Title: "Install and keep", pages: []string{
					"operate/README.md", "operate/install.md", "operate/tls.md", "operate/sizing.md", "operate/logs.md", "operate/upgrade.md",
					"operate/backup.md", "operate/rotation.md", "guides/uninstall.md", "operate/*",
				}},
				{Title: "Watch", pages: []string{"guides/web.md", "guides/monitoring.md", "reference/metrics.md", "reference/tracing.md"}},
				{Title: "Find out what is wrong", pages: []string{"guides/doctor.md", "guides/trouble.md", "reference/conditions.md"}},
				{Title: "Answer an alert", pages: []string{"runbooks/README.md", "runbooks/*"}},
			},
		},
		{
			Title: "Reference", About: "Every field, setting and promise.",
			Tasks: []task{
				{Title: "Write objects and settings", pages: []string{
					"reference/api.md", "reference/config.md", "reference/cloud-init.md", "reference/limits.md",
				}},
				{Title: "Compare and measure", pages: []string{
					"reference/features.md", "benchmarks.md", "reference/properties.md", "reference/*",
				}},
				{Title: "Follow the project", pages: []string{"/CHANGELOG.md", "/SECURITY.md"}},
			},
		},
		{
			Title: "Contribute", About: "How it is built, tested and decided.",
			Tasks: []task{
				{Title: "Change the code", pages: []string{
					"/CONTRIBUTING.md", "/ARCHITECTURE.md", "guides/write-a-provider.md", "guides/test-against-proxmox.md", "pvesim.md",
				}},
				{Title: "Decisions", pages: []string{"adr/README.md", "adr/*"}},
			},
		},
	}
}

// names are what pages are called in lists, where their titles would not say enough.
func names() map[string]string {
	return map[string]string{
		"README.md": "What HyperFleet is", "ARCHITECTURE.md": "Architecture: the map", "docs/operate/README.md": "Overview",
		"docs/runbooks/README.md": "All alerts", "docs/adr/README.md": "All decisions",
	}
}

// place gives the files of the pages by reader and task, without the pages themselves.
func place(root string, all []reader) ([]reader, error) {
	named := map[string]bool{}

	for i := range all {
		for j := range all[i].Tasks {
			for k, name := range all[i].Tasks[j].pages {
				name = "docs/" + name
				if below, atRoot := strings.CutPrefix(name, "docs//"); atRoot {
					name = below
				}

				all[i].Tasks[j].pages[k] = name
				named[name] = true
			}
		}
	}

	for i := range all {
		for j := range all[i].Tasks {
			files, err := expand(root, all[i].Tasks[j].pages, named)
			if err != nil {
				return nil, err
			}

			all[i].Tasks[j].pages = files
		}
	}

	return all, nil
}

// expand puts the files that no task names in place of DIR/*.
func expand(root string, names []string, named map[string]bool) ([]string, error) {
	var out []string

	for _, name := range names {
		if !strings.HasSuffix(name, "/*") {
			out = append(out, name)

			continue
		}

		folder := strings.TrimSuffix(name, "/*")

		entries, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(folder)))
		if err != nil {
			return nil, err
		}

		for _, entry := range entries {
			if file := folder + "/" + entry.Name(); strings.HasSuffix(file, ".md") && !named[file] {
				out = append(out, file)
			}
		}
	}

	return slices.Clip(out), nil
}

// shown is how many pages of a task the first page lists at once.
const shown = 8

// First are the pages of a task that the site's first page shows at once.
func (t task) First() []*page { return t.Pages[:min(shown, len(t.Pages))] }

// Rest are the others.
func (t task) Rest() []*page { return t.Pages[min(shown, len(t.Pages)):] }
