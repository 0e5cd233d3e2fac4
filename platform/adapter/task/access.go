// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Verbs of Kubernetes' RBAC that an adapter may need.
const (
	verbCreate = "create"
	verbDelete = "delete"
	verbGet    = "get"
	verbList   = "list"
	verbPatch  = "patch"
	verbWatch  = "watch"
)

// Rule is what has to be allowed on one kind, in all namespaces: watches are of all.
type Rule struct {
	// Group is empty for Kubernetes' core; Resource is the plural in lower case.
	Group, Resource string
	// Verbs, sorted.
	Verbs []string
}

// Access gives what the task file's entries need of the cluster of a transport, sorted. It
// is empty for a transport that the file does not use. Resources are named by Kubernetes'
// rule for plurals, which a CustomResourceDefinition need not follow. An entry whose kind
// is a template is an error.
func (t *Task) Access(transport string) ([]Rule, error) {
	var rules []Rule

	for i := range t.Resources {
		r := &t.Resources[i]
		if r.Transport != transport {
			continue
		}

		gvk, err := r.kind()
		if err != nil {
			return nil, fmt.Errorf("resources[%d] (%s): %w", i, r.Name, err)
		}

		plural, _ := meta.UnsafeGuessKindToResource(gvk)
		rules = append(rules, Rule{Group: plural.Group, Resource: plural.Resource, Verbs: r.verbs()})
	}

	return MergeRules(rules), nil
}

// MergeRules puts the rules for one kind together, and sorts all.
func MergeRules(rules []Rule) []Rule {
	verbs := map[schema.GroupResource][]string{}

	for _, rule := range rules {
		of := schema.GroupResource{Group: rule.Group, Resource: rule.Resource}
		verbs[of] = append(verbs[of], rule.Verbs...)
	}

	out := make([]Rule, 0, len(verbs))
	for of, all := range verbs {
		slices.Sort(all)
		out = append(out, Rule{Group: of.Group, Resource: of.Resource, Verbs: slices.Compact(all)})
	}

	slices.SortFunc(out, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})

	return out
}

// verbs are those that the entry's discovery, manifest and gates come to.
func (r *Resource) verbs() []string {
	// Watches begin with a list, where the server does not stream it. An entry has a manifest,
	// which is applied and detached by patches, or has patches alone.
	out := []string{verbList, verbPatch, verbWatch}

	// What is found by labels is read by name if a manifest's name turns out to be taken.
	if r.Discovery.ByName != nil || r.Manifest != nil {
		out = append(out, verbGet)
	}

	if r.Manifest != nil {
		out = append(out, verbCreate)
	}

	if r.Delete != nil || r.Recreate != nil || r.Retention.prunes() {
		out = append(out, verbDelete)
	}

	return out
}

func (r *Retention) prunes() bool {
	return r != nil && (r.HistoryLimit != nil || r.TTL > 0 || r.Expression != nil)
}

// kind is what the manifest says as it is written, else what discovery says.
func (r *Resource) kind() (schema.GroupVersionKind, error) {
	if r.Transport == Maestro {
		return schema.GroupVersionKind{Group: "work.open-cluster-management.io", Version: "v1", Kind: "ManifestWork"}, nil
	}

	version, kind := r.Written()
	if version == "" || kind == "" {
		return schema.GroupVersionKind{}, errors.New(
			"its kind is known only when an event comes: say it in discovery.api_version and discovery.kind, or without a template")
	}

	parsed, err := schema.ParseGroupVersion(version)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("read apiVersion: %w", err)
	}

	return parsed.WithKind(kind), nil
}

// Written gives apiVersion and kind as the manifest says them, else as discovery does; each
// is empty where it is a template, or nowhere.
func (r *Resource) Written() (version, kind string) {
	return cmp.Or(r.Manifest.constant("apiVersion"), r.Discovery.APIVersion),
		cmp.Or(r.Manifest.constant("kind"), r.Discovery.Kind)
}

// constant is the text of a field on the manifest's first level; empty where there is
// none, or it is a template.
func (m *Manifest) constant(field string) string {
	switch {
	case m == nil:
		return ""
	case m.block != nil:
		for line := range strings.Lines(m.block.String()) {
			if value, ok := strings.CutPrefix(line, field+":"); ok && !strings.Contains(value, "{{") {
				value, _, _ = strings.Cut(value, " #")

				return strings.Trim(strings.TrimSpace(value), `"'`)
			}
		}

		return ""
	default:
		if text, ok := childOf(m.tree.root, field).(*Template); ok && text.Constant() {
			return text.String()
		}

		return ""
	}
}
