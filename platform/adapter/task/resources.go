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

func (l *loader) compileResource(i int) {
	in, keyPath := &l.task.Spec.Resources[i], strictyaml.Path{"resources", i}
	out := Resource{Name: in.Name, When: l.compileGate(keyPath.Append("when"), in.When)}

	l.compileTransport(keyPath.Append("transport"), &in.Transport, &out)

	if in.Discovery == nil {
		l.addProblem(keyPath.Append("discovery"), "a resource needs discovery").Hint =
			"set by_name or by_selectors, and the namespace if the object has one"
	} else {
		out.Discovery = l.compileDiscovery(keyPath.Append("discovery"), in.Discovery)
	}

	if len(in.NestedDiscoveries) > 0 && out.Transport != transport.Maestro {
		l.addProblem(keyPath.Append("nested_discoveries"), "only a ManifestWork (transport maestro) contains objects")
	}

	for j := range in.NestedDiscoveries {
		nested := &in.NestedDiscoveries[j]
		out.Nested = append(out.Nested, Nested{
			Name: nested.Name, Discovery: l.compileDiscovery(keyPath.Append("nested_discoveries", j, "discovery"), &nested.Discovery),
		})
	}

	l.compileManifest(keyPath.Append("manifest"), in, &out)
	out.setLowersName()
	l.checkObjectName(keyPath, &out)
	l.compileLifecycle(keyPath, in, &out)
	l.compileOwner(keyPath.Append("owner", "resource"), in, &out)

	if in.Retention != nil {
		l.compileRetention(keyPath, in, &out)
	}

	if in.Manifest == nil {
		l.checkPatchOnly(keyPath, in, &out)
	}

	l.checkMutableName(keyPath, &out)

	l.task.Resources = append(l.task.Resources, out)
}

// checkPatchOnly checks an entry that has patches and no manifest.
func (l *loader) checkPatchOnly(keyPath strictyaml.Path, in *adapter.Resource, out *Resource) {
	if len(out.Patches) == 0 {
		l.addProblem(keyPath, "want a manifest, or lifecycle.patch")
	}

	if in.Discovery != nil && in.Discovery.Kind == "" && out.Transport == transport.Kubernetes {
		l.addProblem(keyPath.Append("discovery"), "without a manifest, discovery needs api_version and kind").Hint =
			"for example api_version: v1, kind: Namespace"
	}
}

// compileGate compiles the expression of a gate. It returns nil if the file does not have the gate.
func (l *loader) compileGate(keyPath strictyaml.Path, in *adapter.When) *cel.Program {
	if in == nil {
		return nil
	}

	return l.compileExpression(l.env, keyPath.Append("expression"), in.Expression, asCondition)
}

func (l *loader) compileTransport(keyPath strictyaml.Path, in *adapter.Transport, out *Resource) {
	out.Transport = in.Client
	if in.Client == "" {
		out.Transport = transport.Kubernetes
	}

	l.checkOneOf(keyPath.Append("client"), in.Client, []string{transport.Kubernetes, transport.Maestro}, mayBeEmpty)

	if in.Maestro != nil {
		out.TargetCluster = l.compileOptionalTemplate(keyPath.Append("maestro", "target_cluster"), in.Maestro.TargetCluster)
	}

	switch {
	case out.Transport == transport.Maestro && out.TargetCluster == nil:
		l.addProblem(keyPath.Append("maestro", "target_cluster"), "transport maestro needs maestro.target_cluster")
	case out.Transport == transport.Maestro && l.deployment != nil && l.deployment.Clients.Maestro == nil:
		l.addProblem(keyPath.Append("client"), "the deployment configuration has no clients.maestro")
	case out.Transport != transport.Maestro && in.Maestro != nil:
		l.warnf(keyPath.Append("maestro"), "remove maestro, or set client to maestro", "transport %s ignores maestro", out.Transport)
		out.TargetCluster = nil
	}
}

// compileDiscovery compiles a discovery, which must have either a name or labels.
func (l *loader) compileDiscovery(keyPath strictyaml.Path, in *adapter.Discovery) Discovery {
	out := Discovery{
		APIVersion: in.APIVersion, Kind: in.Kind,
		ByName: l.compileOptionalTemplate(keyPath.Append("by_name"), in.ByName),
	}

	// A * means no namespace: objects in any namespace, or cluster-scoped objects.
	if in.Namespace != "*" {
		out.Namespace = l.compileOptionalTemplate(keyPath.Append("namespace"), in.Namespace)
	}

	if (in.APIVersion == "") != (in.Kind == "") {
		l.addProblem(keyPath, "want both or none of api_version and kind")
	}

	if strings.Contains(in.APIVersion+in.Kind, "{{") {
		l.addProblem(keyPath.Append("kind"), "api_version and kind can't be templates")
	}

	labels := 0
	if in.BySelectors != nil {
		labels = len(in.BySelectors.LabelSelector)
	}

	if (in.ByName != "") == (labels > 0) {
		l.addProblem(keyPath, "want exactly one of by_name and by_selectors.label_selector")
	}

	if labels == 0 {
		return out
	}

	out.Labels = make(map[string]*Template, labels)

	for _, key := range slices.Sorted(maps.Keys(in.BySelectors.LabelSelector)) {
		out.Labels[key] = l.compileTemplate(keyPath.Append("by_selectors", "label_selector", key), in.BySelectors.LabelSelector[key])
	}

	return out
}

// compileLifecycle compiles the patches and the gates of an entry, including those in deprecated fields. A gate
// is a condition that decides whether an action runs. Gates that contradict each other are reported as problems.
func (l *loader) compileLifecycle(keyPath strictyaml.Path, in *adapter.Resource, out *Resource) {
	out.PropagationPolicy = "Background"

	lifecycle := in.Lifecycle
	if lifecycle == nil {
		lifecycle = &adapter.Lifecycle{}
	}

	lifecyclePath := keyPath.Append("lifecycle")

	compileGate := func(name string, gate *adapter.Gate) *cel.Program {
		if gate == nil {
			return nil
		}

		return l.compileGate(lifecyclePath.Append(name, "when"), &gate.When)
	}
	out.Detach = compileGate("detach", lifecycle.Detach)
	out.Apply = compileGate("apply", lifecycle.Apply)
	out.Recreate = compileGate("recreate", lifecycle.Recreate)

	if lifecycle.Delete != nil {
		out.Delete = l.compileGate(lifecyclePath.Append("delete", "when"), &lifecycle.Delete.When)

		policies := []string{"Background", "Foreground", "Orphan"}
		l.checkOneOf(lifecyclePath.Append("delete", "propagationPolicy"), lifecycle.Delete.PropagationPolicy, policies, mayBeEmpty)

		if lifecycle.Delete.PropagationPolicy != "" {
			out.PropagationPolicy = lifecycle.Delete.PropagationPolicy
		}
	}

	for j := range lifecycle.Patch {
		out.Patches = append(out.Patches, l.compilePatch(lifecyclePath.Append("patch", j), &lifecycle.Patch[j]))
	}

	l.convertDeprecatedFields(keyPath, in, lifecycle, out)
	l.checkContradictions(lifecyclePath, in, out)
}

func (l *loader) compilePatch(keyPath strictyaml.Path, in *adapter.Patch) Patch {
	if len(in.Document) == 0 {
		l.addProblem(keyPath.Append("document"), "a patch needs a document")
	}

	return Patch{
		When:     l.compileGate(keyPath.Append("when"), &in.When),
		Document: l.compileTree(keyPath.Append("document"), in.Document, templatesOnly),
	}
}

// convertDeprecatedFields compiles the deprecated fields lifecycle.orphan, lifecycle.create and
// recreate_on_change to the gates that replace them.
func (l *loader) convertDeprecatedFields(
	keyPath strictyaml.Path, in *adapter.Resource, lifecycle *adapter.Lifecycle, out *Resource,
) {
	lifecyclePath := keyPath.Append("lifecycle")

	if lifecycle.Orphan != nil &&
		l.acceptDeprecated(lifecyclePath.Append("orphan"), "lifecycle.orphan", "lifecycle.detach", lifecycle.Detach != nil) {
		out.Detach = l.compileGate(lifecyclePath.Append("orphan", "when"), &lifecycle.Orphan.When)
	}

	if lifecycle.Create != nil &&
		l.acceptDeprecated(lifecyclePath.Append("create"), "lifecycle.create", "lifecycle.apply", lifecycle.Apply != nil) &&
		l.compileGate(lifecyclePath.Append("create", "when"), &lifecycle.Create.When) != nil {
		// The deprecated gate was evaluated only if the object was absent.
		expression := fmt.Sprintf("resources.?%s.hasValue() || (%s)", in.Name, lifecycle.Create.When.Expression)
		out.Apply = l.compileExpression(l.env, lifecyclePath.Append("create", "when", "expression"), expression, asCondition)
	}

	fieldPath := keyPath.Append("recreate_on_change")
	if in.RecreateOnChange && l.acceptDeprecated(fieldPath, "recreate_on_change", "lifecycle.recreate", lifecycle.Recreate != nil) {
		// A stale event does not reach this gate, so an object that is newer than the event is not recreated.
		expression := fmt.Sprintf(`dig(resources.?%s, "metadata.annotations.%s", "") != string(event.generation)`,
			in.Name, adapter.AnnotationGeneration)
		out.Recreate = l.compileExpression(l.env, fieldPath, expression, asCondition)
	}
}

// acceptDeprecated reports whether a deprecated field can be used. It adds a warning if so, and a
// problem if the file has the current field as well.
func (l *loader) acceptDeprecated(keyPath strictyaml.Path, deprecated, current string, hasBoth bool) bool {
	if hasBoth {
		l.addProblem(keyPath, "%s is set as well", current).Hint = deprecated + " is a deprecated form of " + current + ": remove it"
	} else {
		l.warnf(keyPath, "write "+current, "%s is a deprecated form of %s", deprecated, current)
	}

	return !hasBoth
}

// checkContradictions reports problems for gates, which are the expressions that decide whether an action runs.
// recreate and apply need a manifest. delete must not have the same expression as detach, because it would never
// run.
func (l *loader) checkContradictions(keyPath strictyaml.Path, in *adapter.Resource, out *Resource) {
	if in.Manifest == nil && out.Recreate != nil {
		l.addProblem(keyPath.Append("recreate"), "there is no manifest to recreate the object from")
	}

	if in.Manifest == nil && out.Apply != nil {
		l.addProblem(keyPath.Append("apply"), "there is no manifest to apply")
	}

	if out.Detach == nil || out.Delete == nil {
		return
	}

	const hint = "detach always takes precedence: keep one of them"

	detach, isDetachConstant := out.Detach.EvalConstant()
	remove, isDeleteConstant := out.Delete.EvalConstant()

	switch {
	case isDetachConstant && isDeleteConstant && detach == true && remove == true:
		l.addProblem(keyPath.Append("delete"), "detach and delete are both always true").Hint = hint
	// White space does not matter. If both are always false, neither action runs, and that is no contradiction.
	case strings.Join(strings.Fields(out.Detach.String()), " ") == strings.Join(strings.Fields(out.Delete.String()), " ") &&
		(!isDetachConstant || detach == true):
		l.addProblem(keyPath.Append("delete"), "detach and delete have the same expression").Hint = hint
	}
}

// compileOwner sets the owner of an entry's objects. The owner must be an earlier entry, and both entries
// must have the transport kubernetes.
func (l *loader) compileOwner(keyPath strictyaml.Path, in *adapter.Resource, out *Resource) {
	if in.Owner == nil {
		return
	}

	out.Owner = in.Owner.Resource

	if out.Transport == transport.Maestro {
		l.addProblem(keyPath, "a ManifestWork can't have an owner").Hint = "owner needs transport kubernetes"
	}

	i := slices.IndexFunc(l.task.Spec.Resources, func(r adapter.Resource) bool { return r.Name == in.Owner.Resource })
	if i < 0 {
		l.addProblem(keyPath, "unknown resource %q", in.Owner.Resource)

		return
	}

	earlier := slices.IndexFunc(l.task.Resources, func(r Resource) bool { return r.Name == in.Owner.Resource })

	switch {
	case earlier < 0 && in.Owner.Resource == in.Name:
		l.addProblem(keyPath, "a resource can't own itself")
	case earlier < 0:
		l.addProblem(keyPath, "resource %s is defined later", in.Owner.Resource).
			Hint = "define the owner before the resources that it owns"
	case l.task.Resources[earlier].Transport == transport.Maestro:
		l.addProblem(keyPath, "resource %s has transport maestro and can't own objects on this cluster", in.Owner.Resource)
	}
}

func (l *loader) compileRetention(keyPath strictyaml.Path, in *adapter.Resource, out *Resource) {
	childPath := keyPath.Append("retention")
	retention := &Retention{HistoryLimit: in.Retention.HistoryLimit, TTL: l.parseDuration(childPath.Append("ttl"), in.Retention.TTL)}

	if retention.HistoryLimit != nil && *retention.HistoryLimit < 0 {
		l.addProblem(childPath.Append("historyLimit"), "want 0 or more")
	}

	if l.doc.HasValue(childPath.Append("expression")) {
		retention.Expression = l.compileExpression(l.retentionEnv, childPath.Append("expression"), in.Retention.Expression, asCondition)
		l.addReads([]string{in.Name}) // as item and items
	}

	out.Retention = retention

	switch {
	case in.Manifest == nil:
		l.addProblem(childPath, "there is no manifest to create versions from")
	case in.Discovery != nil && in.Discovery.ByName != "":
		l.addProblem(keyPath.Append("discovery", "by_name"), "retention needs by_selectors, because by_name finds only one version")
	}

	l.checkNameVaries(keyPath, out)

	if in.Discovery == nil || in.Discovery.BySelectors == nil {
		return
	}

	if _, ok := in.Discovery.BySelectors.LabelSelector[adapter.LabelResourceName]; !ok {
		l.warnf(keyPath.Append("discovery", "by_selectors", "label_selector"), "add "+adapter.LabelResourceName+": "+in.Name,
			"the selector also finds objects of other entries that have these labels")
	}
}

// checkNameVaries checks that the name differs between the versions of a retention.
func (l *loader) checkNameVaries(keyPath strictyaml.Path, out *Resource) {
	name := out.Manifest.nameTemplate()
	if name == nil {
		return
	}

	hint := "add {{ .now | lower | replace \":\" \"-\" }} to the name"
	fieldPath := keyPath.Append("manifest", "metadata", "name")

	if name.IsConstant() {
		l.addProblem(fieldPath, "with retention, the name has to vary").Hint = hint

		return
	}

	if name.readsClock || slices.ContainsFunc(name.Variables(), func(variable string) bool { return !l.constantParams[variable] }) {
		return
	}

	l.warnf(fieldPath, hint, "with retention, the name has to vary, but this name is the same in all events of a resource")
}
