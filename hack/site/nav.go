// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// audience is a group of readers, with the pages for them by task.
type audience struct {
	Title, About string
	Tasks        []task
}

// task is a task of an audience, with the pages about it.
type task struct {
	Title string
	// files has the names of the pages' files. loadSite loads them into Pages.
	files []string
	Pages []*page
}

// audiences returns all audiences in the order of the site. files has paths relative to docs/, or relative to
// the root folder if they start with a slash. DIR/* stands for the other pages in a folder.
func audiences() []audience {
	return append([]audience{
		{
			Title: "Runners", About: "A fresh virtual machine for every CI job, on your own hypervisors.",
			Tasks: []task{
				{Title: "Get started", files: []string{"/README.md", "start/demo.md", "start/runners.md"}},
				{Title: "Prepare a hypervisor", files: []string{
					"guides/proxmox-permissions.md", "guides/proxmox-template.md", "guides/kubevirt-runners.md", "guides/libvirt.md",
					"guides/windows.md", "guides/move.md",
				}},
				{Title: "Connect a CI platform", files: []string{
					"guides/github.md", "guides/scale-sets.md", "guides/gitlab.md", "guides/buildkite.md", "guides/forgejo.md",
					"guides/generic.md",
				}},
				{Title: "Run pools and jobs", files: []string{
					"guides/pools.md", "guides/jobs.md", "guides/cache.md", "/deploy/samples/README.md",
				}},
				{Title: "Secure tenants and credentials", files: []string{
					"guides/tenants.md", "guides/credentials.md", "guides/identity.md", "guides/tpm.md", "guides/threat-model.md",
				}},
			},
		},
		{
			Title: "Addresses and names", About: "Static addresses and DNS records for machines and node pools.",
			Tasks: []task{
				{Title: "Assign addresses", files: []string{"guides/addresses.md", "guides/kubevirt.md"}},
				{Title: "Assign DNS names", files: []string{"guides/dns.md"}},
				{Title: "Reference", files: []string{"reference/addresses.md"}},
			},
		},
		{
			Title: "Hosts", About: "Configuration of Macs at Scaleway and of Linux hosts over SSH.",
			Tasks: []task{{Title: "Configure hosts", files: []string{"guides/hosts.md", "guides/mac-hosts.md"}}},
		},
		{
			Title: "Bridge", About: "Hosted control planes for DPU clusters.",
			Tasks: []task{{Title: "Create clusters for DPUs", files: []string{"guides/bridge.md"}}},
		},
		{
			Title: "Fleet platform", About: "An API for desired state, and adapters that create objects on clusters from it.",
			Tasks: []task{
				{Title: "Get started", files: []string{"start/platform.md", "guides/first-adapter.md"}},
				{Title: "Run the platform", files: []string{"guides/platform.md", "guides/objects.md", "guides/lifecycle-gates.md"}},
				{Title: "Reference", files: []string{
					"reference/fleet-api.md", "reference/search.md", "reference/sentinel.md", "reference/adapter.md",
					"reference/task-file.md", "reference/sweep.md",
				}},
			},
		},
	}, operationAudiences()...)
}

// operationAudiences returns the audiences that operate HyperFleet, look up details, or change the code.
func operationAudiences() []audience {
	return []audience{
		{
			Title: "Operate", About: "Install, monitor, upgrade, back up, repair, uninstall.",
			Tasks: []task{
				{Title: "Install and maintain", files: []string{
					"operate/README.md", "operate/install.md", "operate/tls.md", "operate/sizing.md", "operate/logs.md", "operate/upgrade.md",
					"operate/nodes.md",
					"operate/backup.md", "operate/rotation.md", "guides/uninstall.md", "operate/*",
				}},
				{Title: "Monitor", files: []string{"guides/web.md", "guides/monitoring.md", "reference/metrics.md", "reference/tracing.md"}},
				{Title: "Troubleshoot", files: []string{"guides/doctor.md", "guides/trouble.md", "reference/conditions.md"}},
				{Title: "Respond to alerts", files: []string{"runbooks/README.md", "runbooks/*"}},
			},
		},
		{
			Title: "Reference", About: "All fields, configuration keys and guarantees.",
			Tasks: []task{
				{Title: "Objects and configuration", files: []string{
					"reference/glossary.md", "reference/api.md", "reference/config.md", "reference/cloud-init.md", "reference/limits.md",
				}},
				{Title: "Features and benchmarks", files: []string{
					"reference/features.md", "reference/tested-with.md", "benchmarks.md", "reference/properties.md", "reference/*",
					"reference/requirements/*",
				}},
				{Title: "Project", files: []string{"/CHANGELOG.md", "/SECURITY.md"}},
			},
		},
		{
			Title: "Contribute", About: "Code, tests and design decisions.",
			Tasks: []task{
				{Title: "Change the code", files: []string{
					"/CONTRIBUTING.md", "/ARCHITECTURE.md", "guides/write-a-provider.md", "guides/test-against-proxmox.md", "pvesim.md",
				}},
				{Title: "Decisions", files: []string{"adr/README.md", "adr/*"}},
			},
		},
	}
}

// pageNames returns the names of pages in lists, for pages whose titles are not clear in a list.
func pageNames() map[string]string {
	return map[string]string{
		"README.md": "What is HyperFleet?", "ARCHITECTURE.md": "Architecture", "docs/operate/README.md": "Overview",
		"docs/runbooks/README.md": "All alerts", "docs/adr/README.md": "All decisions",
	}
}

// resolvePages replaces the names in files of all tasks with paths in the checkout. It does not load the pages.
func resolvePages(root string, all []audience) ([]audience, error) {
	listed := map[string]bool{}

	for i := range all {
		for j := range all[i].Tasks {
			for k, name := range all[i].Tasks[j].files {
				name = "docs/" + name
				if rootName, isAtRoot := strings.CutPrefix(name, "docs//"); isAtRoot {
					name = rootName
				}

				all[i].Tasks[j].files[k] = name
				listed[name] = true
			}
		}
	}

	for i := range all {
		for j := range all[i].Tasks {
			files, err := expand(root, all[i].Tasks[j].files, listed)
			if err != nil {
				return nil, err
			}

			all[i].Tasks[j].files = files
		}
	}

	return all, nil
}

// expand replaces DIR/* with the pages in the folder that no task lists.
func expand(root string, names []string, listed map[string]bool) ([]string, error) {
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
			if file := folder + "/" + entry.Name(); strings.HasSuffix(file, ".md") && !listed[file] {
				out = append(out, file)
			}
		}
	}

	return slices.Clip(out), nil
}

// maxFirst is the maximum number of pages of a task that the home page shows without a click.
const maxFirst = 8

// First returns the pages of a task that the home page shows without a click.
func (t task) First() []*page { return t.Pages[:min(maxFirst, len(t.Pages))] }

// Rest returns the remaining pages of a task.
func (t task) Rest() []*page { return t.Pages[min(maxFirst, len(t.Pages)):] }
