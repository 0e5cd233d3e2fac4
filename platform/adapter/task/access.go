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
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
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
func (t *Task) Access(name string) ([]Rule, error) {
	var rules []Rule

	for i := range t.Resources {
		r := &t.Resources[i]
		if r.Transport != name {
			continue
		}

		gvk, err := r.Kind()
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
	verbs := map[schema.GroupResource]sets.Set[string]{}

	for _, rule := range rules {
		of := schema.GroupResource{Group: rule.Group, Resource: rule.Resource}
		verbs[of] = verbs[of].Union(sets.New(rule.Verbs...))
	}

	out := make([]Rule, 0, len(verbs))
	for of, all := range verbs {
		out = append(out, Rule{Group: of.Group, Resource: of.Resource, Verbs: sets.List(all)})
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
	out := []string{"list", "patch", "watch"}

	// What is found by labels is read by name if a manifest's name turns out to be taken.
	if r.Discovery.ByName != nil || r.Manifest != nil {
		out = append(out, "get")
	}

	if r.Manifest != nil {
		out = append(out, "create")
	}

	if r.Delete != nil || r.Recreate != nil || r.Retention.prunes() {
		out = append(out, "delete")
	}

	return out
}

func (r *Retention) prunes() bool {
	return r != nil && (r.HistoryLimit != nil || r.TTL > 0 || r.Expression != nil)
}

// ErrKind is an entry whose kind its manifest has a template for, or nothing.
var ErrKind = errors.New(
	"its kind is known only when an event comes: say it in discovery.api_version and discovery.kind, or without a template")

// ManifestWork is the kind of all objects of transport maestro.
func ManifestWork() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "work.open-cluster-management.io", Version: "v1", Kind: "ManifestWork"}
}

// Kind is what the manifest says as it is written, else what discovery says; else the error
// is ErrKind.
func (r *Resource) Kind() (schema.GroupVersionKind, error) {
	if r.Transport == transport.Maestro {
		return ManifestWork(), nil
	}

	version, kind := r.written()
	if version == "" || kind == "" {
		return schema.GroupVersionKind{}, ErrKind
	}

	return KindOf(version, kind)
}

// KindOf reads apiVersion and kind.
func KindOf(version, kind string) (schema.GroupVersionKind, error) {
	parsed, err := schema.ParseGroupVersion(version)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("read apiVersion: %w", err)
	}

	return parsed.WithKind(kind), nil
}

// written gives apiVersion and kind as the manifest says them, else as discovery does; each
// is empty where it is a template, or nowhere.
func (r *Resource) written() (version, kind string) {
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
