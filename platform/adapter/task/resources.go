// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// resource compiles one entry.
func (l *loader) resource(i int) {
	in, at := &l.task.Spec.Resources[i], strictyaml.Path{"resources", i}
	out := Resource{Name: in.Name, When: l.gate(at.With("when"), in.When)}

	l.transport(at.With("transport"), &in.Transport, &out)

	if in.Discovery == nil {
		l.problem(at.With("discovery"), "a resource needs discovery").Hint =
			"say by_name or by_selectors, and the namespace where it has one"
	} else {
		out.Discovery = l.discovery(at.With("discovery"), in.Discovery)
	}

	if len(in.NestedDiscoveries) > 0 && out.Transport != transport.Maestro {
		l.problem(at.With("nested_discoveries"), "only a ManifestWork, of transport maestro, has objects inside")
	}

	for j := range in.NestedDiscoveries {
		nested := &in.NestedDiscoveries[j]
		out.Nested = append(out.Nested, Nested{
			Name: nested.Name, Discovery: l.discovery(at.With("nested_discoveries", j, "discovery"), &nested.Discovery),
		})
	}

	l.manifest(at.With("manifest"), in, &out)
	l.named(at, &out)
	l.lifecycle(at, in, &out)
	l.owner(at.With("owner", "resource"), in, &out)

	if in.Retention != nil {
		l.keep(at, in, &out)
	}

	if in.Manifest == nil {
		l.withoutManifest(at, in, &out)
	}

	l.task.Resources = append(l.task.Resources, out)
}

// withoutManifest checks an entry of which nothing but patches is written.
func (l *loader) withoutManifest(at strictyaml.Path, in *adapter.Resource, out *Resource) {
	if len(out.Patches) == 0 {
		l.problem(at, "want a manifest, or lifecycle.patch")
	}

	if in.Discovery != nil && in.Discovery.Kind == "" && out.Transport == transport.Kubernetes {
		l.problem(at.With("discovery"), "without a manifest, discovery needs api_version and kind").Hint =
			"say what is to be found, such as api_version: v1, kind: Namespace"
	}
}

// gate compiles one; nil where there is none.
func (l *loader) gate(at strictyaml.Path, in *adapter.When) *cel.Program {
	if in == nil {
		return nil
	}

	return l.expression(l.env, at.With("expression"), in.Expression, true)
}

func (l *loader) transport(at strictyaml.Path, in *adapter.Transport, out *Resource) {
	out.Transport = in.Client
	if in.Client == "" {
		out.Transport = transport.Kubernetes
	}

	l.oneOf(at.With("client"), in.Client, []string{transport.Kubernetes, transport.Maestro}, true)

	if in.Maestro != nil {
		out.TargetCluster = l.optionalTemplate(at.With("maestro", "target_cluster"), in.Maestro.TargetCluster)
	}

	switch {
	case out.Transport == transport.Maestro && out.TargetCluster == nil:
		l.problem(at.With("maestro", "target_cluster"), "transport maestro needs maestro.target_cluster")
	case out.Transport == transport.Maestro && l.deployment != nil && l.deployment.Clients.Maestro == nil:
		l.problem(at.With("client"), "the deployment configuration has no clients.maestro")
	case out.Transport != transport.Maestro && in.Maestro != nil:
		l.warnf(at.With("maestro"), "take it out, or set client to maestro", "maestro is not used by transport %s", out.Transport)
		out.TargetCluster = nil
	}
}

func (l *loader) discovery(at strictyaml.Path, in *adapter.Discovery) Discovery {
	out := Discovery{
		APIVersion: in.APIVersion, Kind: in.Kind,
		ByName: l.optionalTemplate(at.With("by_name"), in.ByName),
	}

	// The star stands for none: objects of all namespaces, or outside of them.
	if in.Namespace != "*" {
		out.Namespace = l.optionalTemplate(at.With("namespace"), in.Namespace)
	}

	if (in.APIVersion == "") != (in.Kind == "") {
		l.problem(at, "want both or none of api_version and kind")
	}

	if strings.Contains(in.APIVersion+in.Kind, "{{") {
		l.problem(at.With("kind"), "api_version and kind are no templates")
	}

	labels := 0
	if in.BySelectors != nil {
		labels = len(in.BySelectors.LabelSelector)
	}

	if (in.ByName != "") == (labels > 0) {
		l.problem(at, "want exactly one of by_name and by_selectors.label_selector")
	}

	if labels == 0 {
		return out
	}

	out.Labels = make(map[string]*Template, labels)

	for _, key := range slices.Sorted(maps.Keys(in.BySelectors.LabelSelector)) {
		out.Labels[key] = l.template(at.With("by_selectors", "label_selector", key), in.BySelectors.LabelSelector[key])
	}

	return out
}

func (l *loader) lifecycle(at strictyaml.Path, in *adapter.Resource, out *Resource) {
	out.PropagationPolicy = "Background"

	lifecycle := in.Lifecycle
	if lifecycle == nil {
		lifecycle = &adapter.Lifecycle{}
	}

	below := at.With("lifecycle")

	step := func(name string, in *adapter.Gate) *cel.Program {
		if in == nil {
			return nil
		}

		return l.gate(below.With(name, "when"), &in.When)
	}
	out.Detach = step("detach", lifecycle.Detach)
	out.Apply = step("apply", lifecycle.Apply)
	out.Recreate = step("recreate", lifecycle.Recreate)

	if lifecycle.Delete != nil {
		out.Delete = l.gate(below.With("delete", "when"), &lifecycle.Delete.When)

		policies := []string{"Background", "Foreground", "Orphan"}
		l.oneOf(below.With("delete", "propagationPolicy"), lifecycle.Delete.PropagationPolicy, policies, true)

		if lifecycle.Delete.PropagationPolicy != "" {
			out.PropagationPolicy = lifecycle.Delete.PropagationPolicy
		}
	}

	for j := range lifecycle.Patch {
		out.Patches = append(out.Patches, l.patch(below.With("patch", j), &lifecycle.Patch[j]))
	}

	l.oldForms(at, in, lifecycle, out)
	l.contradictions(below, in, out)
}

func (l *loader) patch(at strictyaml.Path, in *adapter.Patch) Patch {
	if len(in.Document) == 0 {
		l.problem(at.With("document"), "a patch needs a document")
	}

	return Patch{When: l.gate(at.With("when"), &in.When), Document: l.tree(at.With("document"), in.Document, false)}
}

// oldForms takes lifecycle.orphan, lifecycle.create and recreate_on_change for what they
// are called now.
func (l *loader) oldForms(at strictyaml.Path, in *adapter.Resource, lifecycle *adapter.Lifecycle, out *Resource) {
	below := at.With("lifecycle")

	if lifecycle.Orphan != nil && l.old(below.With("orphan"), "lifecycle.orphan", "lifecycle.detach", lifecycle.Detach != nil) {
		out.Detach = l.gate(below.With("orphan", "when"), &lifecycle.Orphan.When)
	}

	if lifecycle.Create != nil && l.old(below.With("create"), "lifecycle.create", "lifecycle.apply", lifecycle.Apply != nil) &&
		l.gate(below.With("create", "when"), &lifecycle.Create.When) != nil {
		// The old gate was not asked once the object was there.
		expression := fmt.Sprintf("resources.?%s.hasValue() || (%s)", in.Name, lifecycle.Create.When.Expression)
		out.Apply = l.expression(l.env, below.With("create", "when", "expression"), expression, true)
	}

	where := at.With("recreate_on_change")
	if in.RecreateOnChange && l.old(where, "recreate_on_change", "lifecycle.recreate", lifecycle.Recreate != nil) {
		// The generation rule leaves an object that is newer than the event.
		expression := fmt.Sprintf(`dig(resources.?%s, "metadata.annotations.%s", "") != string(event.generation)`,
			in.Name, adapter.AnnotationGeneration)
		out.Recreate = l.expression(l.env, where, expression, true)
	}
}

// old says whether an old form stands in for what is written now: not beside it.
func (l *loader) old(at strictyaml.Path, old, now string, both bool) bool {
	if both {
		l.problem(at, "there is %s as well", now).Hint = old + " is an old form of it: take it out"
	} else {
		l.warnf(at, "write "+now, "%s is an old form of %s", old, now)
	}

	return !both
}

// contradictions are gates that can't be meant.
func (l *loader) contradictions(at strictyaml.Path, in *adapter.Resource, out *Resource) {
	if in.Manifest == nil && out.Recreate != nil {
		l.problem(at.With("recreate"), "there is no manifest to make the object anew from")
	}

	if in.Manifest == nil && out.Apply != nil {
		l.problem(at.With("apply"), "there is no manifest to apply")
	}

	if out.Detach == nil || out.Delete == nil {
		return
	}

	detach, detachFixed := out.Detach.Constant()
	remove, removeFixed := out.Delete.Constant()

	switch {
	case detachFixed && removeFixed && detach == true && remove == true:
		l.problem(at.With("delete"), "detach and delete are both always true").Hint = "detach would always win: keep one of them"
	case strings.Join(strings.Fields(out.Detach.String()), " ") == strings.Join(strings.Fields(out.Delete.String()), " ") &&
		(!detachFixed || detach == true):
		l.problem(at.With("delete"), "detach and delete have the same expression").Hint = "detach would always win: keep one of them"
	}
}

func (l *loader) owner(at strictyaml.Path, in *adapter.Resource, out *Resource) {
	if in.Owner == nil {
		return
	}

	out.Owner = in.Owner.Resource

	if out.Transport == transport.Maestro {
		l.problem(at, "ManifestWorks have no owner").Hint = "owner is for transport kubernetes"
	}

	i := slices.IndexFunc(l.task.Spec.Resources, func(one adapter.Resource) bool { return one.Name == in.Owner.Resource })
	if i < 0 {
		l.problem(at, "unknown resource %q", in.Owner.Resource)

		return
	}

	earlier := slices.IndexFunc(l.task.Resources, func(one Resource) bool { return one.Name == in.Owner.Resource })

	switch {
	case earlier < 0 && in.Owner.Resource == in.Name:
		l.problem(at, "a resource can't own itself")
	case earlier < 0:
		l.problem(at, "resource %s comes later", in.Owner.Resource).Hint = "put the owner before what it owns"
	case l.task.Resources[earlier].Transport == transport.Maestro:
		l.problem(at, "resource %s is on transport maestro, and owns nothing on this cluster", in.Owner.Resource)
	}
}

// keep compiles a retention.
func (l *loader) keep(at strictyaml.Path, in *adapter.Resource, out *Resource) {
	below := at.With("retention")
	kept := &Retention{HistoryLimit: in.Retention.HistoryLimit, TTL: l.duration(below.With("ttl"), in.Retention.TTL)}

	if kept.HistoryLimit != nil && *kept.HistoryLimit < 0 {
		l.problem(below.With("historyLimit"), "want 0 or more")
	}

	if l.doc.Has(below.With("expression")) {
		kept.Expression = l.expression(l.retention, below.With("expression"), in.Retention.Expression, true)
	}

	out.Retention = kept

	switch {
	case in.Manifest == nil:
		l.problem(below, "there is no manifest to make versions from")
	case in.Discovery != nil && in.Discovery.ByName != "":
		l.problem(at.With("discovery", "by_name"), "retention needs by_selectors: by_name finds one version alone")
	}

	l.varies(at, out)

	if in.Discovery == nil || in.Discovery.BySelectors == nil {
		return
	}

	if _, ok := in.Discovery.BySelectors.LabelSelector[adapter.LabelResourceName]; !ok {
		l.warnf(at.With("discovery", "by_selectors", "label_selector"), "add "+adapter.LabelResourceName+": "+in.Name,
			"the selector also finds objects of other entries that have these labels")
	}
}

// varies checks that each version has a name of its own.
func (l *loader) varies(at strictyaml.Path, out *Resource) {
	name := out.Manifest.name()
	if name == nil {
		return
	}

	hint := "put {{ .now | lower | replace \":\" \"-\" }} in it"
	where := at.With("manifest", "metadata", "name")

	if name.Constant() {
		l.problem(where, "with retention, the name has to vary").Hint = hint

		return
	}

	if name.clocked || slices.ContainsFunc(name.Variables(), func(one string) bool { return !l.fixed[one] }) {
		return
	}

	l.warnf(where, hint, "with retention, the name has to vary: this is the same in all events of a resource")
}
