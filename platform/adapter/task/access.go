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

// Rule is an RBAC rule for one resource type in all namespaces. The rule is not limited to a
// namespace because the adapter watches all namespaces.
type Rule struct {
	// Group is empty for the core API group. Resource is the plural in lower case.
	Group, Resource string
	// Verbs are sorted.
	Verbs []string
}

// RequiredRules returns the sorted RBAC rules that the task file's entries need on the cluster of a
// transport. It returns no rules for a transport that the file does not use. It guesses the names
// of resource types by Kubernetes' rule for plurals, which a CustomResourceDefinition can ignore.
// It returns an error for an entry whose kind is a template.
func (t *Task) RequiredRules(name string) ([]Rule, error) {
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
		rules = append(rules, Rule{Group: plural.Group, Resource: plural.Resource, Verbs: r.requiredVerbs()})
	}

	return MergeRules(rules), nil
}

// MergeRules merges the rules for the same resource type, and sorts the result.
func MergeRules(rules []Rule) []Rule {
	verbs := map[schema.GroupResource]sets.Set[string]{}

	for _, rule := range rules {
		resource := schema.GroupResource{Group: rule.Group, Resource: rule.Resource}
		verbs[resource] = verbs[resource].Union(sets.New(rule.Verbs...))
	}

	out := make([]Rule, 0, len(verbs))
	for resource, all := range verbs {
		out = append(out, Rule{Group: resource.Group, Resource: resource.Resource, Verbs: sets.List(all)})
	}

	slices.SortFunc(out, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})

	return out
}

// requiredVerbs returns the verbs that the entry's discovery, manifest and gates need.
func (r *Resource) requiredVerbs() []string {
	// A watch starts with a list if the server does not support streaming lists. Every entry needs
	// patch, because apply, detach and patches all send patches.
	out := []string{"list", "patch", "watch"}

	// An entry that finds objects by labels also reads an object by name, if an object with the
	// manifest's name already exists.
	if r.Discovery.ByName != nil || r.Manifest != nil {
		out = append(out, "get")
	}

	if r.Manifest != nil {
		out = append(out, "create")
	}

	if r.Delete != nil || r.Recreate != nil || r.Retention.canPrune() || r.NameCanChange {
		out = append(out, "delete")
	}

	return out
}

func (r *Retention) canPrune() bool {
	return r != nil && (r.HistoryLimit != nil || r.TTL > 0 || r.Expression != nil)
}

// ErrUnknownKind is the error of an entry whose kind is a template or missing.
var ErrUnknownKind = errors.New(
	"the kind is unknown before an event; set discovery.api_version and discovery.kind, or write the kind without a template")

// ManifestWorkKind returns the kind of all objects of transport maestro.
func ManifestWorkKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "work.open-cluster-management.io", Version: "v1", Kind: "ManifestWork"}
}

// Kind returns the kind that the manifest contains without a template, or else the kind of the
// discovery. It returns ErrUnknownKind if neither has one.
func (r *Resource) Kind() (schema.GroupVersionKind, error) {
	if r.Transport == transport.Maestro {
		return ManifestWorkKind(), nil
	}

	version, kind := r.literalKind()
	if version == "" || kind == "" {
		return schema.GroupVersionKind{}, ErrUnknownKind
	}

	return ParseKind(version, kind)
}

// ParseKind returns the kind for an apiVersion and a kind.
func ParseKind(version, kind string) (schema.GroupVersionKind, error) {
	parsed, err := schema.ParseGroupVersion(version)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("parse apiVersion: %w", err)
	}

	return parsed.WithKind(kind), nil
}

// literalKind returns apiVersion and kind of the manifest, or else of the discovery. Each is empty
// if it is a template or missing.
func (r *Resource) literalKind() (version, kind string) {
	return cmp.Or(r.Manifest.literalField("apiVersion"), r.Discovery.APIVersion),
		cmp.Or(r.Manifest.literalField("kind"), r.Discovery.Kind)
}

// literalField returns the value of a top-level field of the manifest, and an empty string if the
// field is missing or a template.
func (m *Manifest) literalField(field string) string {
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
		if text, ok := findChild(m.tree.root, field).(*Template); ok && text.IsConstant() {
			return text.String()
		}

		return ""
	}
}
