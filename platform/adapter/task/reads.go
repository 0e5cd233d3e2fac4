// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// Reads are the fields of objects that a task file reads. It does not change and is safe for concurrent use.
type Reads struct {
	byKind map[schema.GroupKind][][]string
	// unknown are the fields of objects whose kind is a template.
	unknown [][]string
}

// hasPlainKeys reports whether the keys at a path below resources have no dots: those of resources are names of entries,
// and those of an object and of its metadata are names of fields.
func hasPlainKeys(path []string) bool {
	return len(path) < 2 || len(path) == 2 && path[1] == "metadata"
}

// ListReads returns the fields that the task file reads of the objects of a transport.
func (t *Task) ListReads(transportName string) *Reads {
	byEntry := t.listReadsByEntry()
	out := &Reads{byKind: map[schema.GroupKind][][]string{}}

	for i := range t.Resources {
		resource := &t.Resources[i]
		if resource.Transport != transportName {
			continue
		}

		paths := byEntry[resource.Name]
		for _, nested := range resource.Nested {
			if len(byEntry[nested.Name]) > 0 {
				paths = append(paths, nil)
			}
		}

		if kind, err := resource.Kind(); err == nil {
			out.byKind[kind.GroupKind()] = append(out.byKind[kind.GroupKind()], paths...)
		} else {
			out.unknown = append(out.unknown, paths...)
		}
	}

	return out
}

// Differ reports whether two states of an object differ in a field that the task file reads.
func (r *Reads) Differ(before, after *unstructured.Unstructured) bool {
	for _, paths := range [][][]string{r.byKind[after.GroupVersionKind().GroupKind()], r.unknown} {
		for _, path := range paths {
			if !equality.Semantic.DeepEqual(lookUpPath(before, path), lookUpPath(after, path)) {
				return true
			}
		}
	}

	return false
}

func lookUpPath(object *unstructured.Unstructured, path []string) any {
	var value any = object.Object

	for _, key := range path {
		fields, _ := value.(map[string]any)
		value = fields[key]
	}

	return value
}

// listReadsByEntry returns the paths that the task file reads in the objects of each name in resources. An empty path
// stands for the whole object.
func (t *Task) listReadsByEntry() map[string][][]string {
	var (
		c   readCollector
		out = map[string][][]string{}
	)

	for i := range t.Resources {
		resource := &t.Resources[i]
		c.addResource(resource)

		if retention := resource.Retention; retention != nil && retention.Expression != nil {
			// The items are versions of the entry's object.
			for _, path := range retention.Expression.ListReads(varItem, func(path []string) bool {
				return hasPlainKeys(append([]string{resource.Name}, path...))
			}) {
				out[resource.Name] = append(out[resource.Name], path)
			}

			if len(retention.Expression.ListReads(varItems, func([]string) bool { return false })) > 0 {
				out[resource.Name] = append(out[resource.Name], nil)
			}
		}
	}

	for i := range t.Payloads {
		c.addProgram(t.Payloads[i].When)
		c.addTree(t.Payloads[i].Build)
	}

	for i := range t.Actions {
		c.addAction(&t.Actions[i])
	}

	for _, path := range c.paths {
		if len(path) > 0 {
			out[path[0]] = append(out[path[0]], path[1:])

			continue
		}

		for i := range t.Resources {
			out[t.Resources[i].Name] = append(out[t.Resources[i].Name], nil)

			for _, nested := range t.Resources[i].Nested {
				out[nested.Name] = append(out[nested.Name], nil)
			}
		}
	}

	return out
}

// readCollector collects the paths below the variable resources that parts of a task file read.
type readCollector struct {
	paths [][]string
}

func (c *readCollector) addResource(in *Resource) {
	for _, gate := range []*cel.Program{in.When, in.Detach, in.Delete, in.Recreate, in.Apply} {
		c.addProgram(gate)
	}

	for _, patch := range in.Patches {
		c.addProgram(patch.When)
		c.addTree(patch.Document)
	}

	if in.Manifest != nil {
		c.addTree(in.Manifest.tree)

		if in.Manifest.block != nil {
			c.addTemplate(in.Manifest.block.Template)
		}
	}

	if in.Retention != nil {
		c.addProgram(in.Retention.Expression)
	}

	c.addTemplate(in.TargetCluster)
	c.addDiscovery(&in.Discovery)

	for i := range in.Nested {
		c.addDiscovery(&in.Nested[i].Discovery)
	}
}

func (c *readCollector) addDiscovery(in *Discovery) {
	c.addTemplate(in.Namespace)
	c.addTemplate(in.ByName)

	for _, label := range in.Labels {
		c.addTemplate(label)
	}
}

func (c *readCollector) addAction(in *PostAction) {
	c.addProgram(in.When)

	if in.Log != nil {
		c.addTemplate(in.Log.Message)
	}

	if in.APICall == nil {
		return
	}

	c.addTemplate(in.APICall.URL.Template)

	for _, header := range in.APICall.Headers {
		c.addTemplate(header.Value)
	}

	if in.APICall.Body != nil {
		c.addTemplate(in.APICall.Body.Template)
	}
}

func (c *readCollector) addProgram(in *cel.Program) {
	if in != nil {
		c.paths = append(c.paths, in.ListReads(varResources, hasPlainKeys)...)
	}
}

func (c *readCollector) addTree(in *Tree) {
	if in != nil {
		c.addNode(in.root)
	}
}

func (c *readCollector) addNode(in any) {
	switch typed := in.(type) {
	case templateMap:
		for _, entry := range typed {
			c.addTemplate(entry.key)
			c.addNode(entry.value)
		}
	case []any:
		for _, item := range typed {
			c.addNode(item)
		}
	case *Template:
		c.addTemplate(typed)
	case *leaf:
		c.addProgram(typed.expression)

		if typed.path != nil && typed.path.Variable == varResources {
			c.paths = append(c.paths, typed.path.follow())
		}
	}
}

func (c *readCollector) addTemplate(in *Template) {
	if in == nil {
		return
	}

	if in.readsAll {
		c.paths = append(c.paths, nil)
	}

	for _, reference := range in.references {
		if reference.variable == varResources {
			c.paths = append(c.paths, reference.path)
		}
	}
}

// follow returns the path below the variable, as far as it is certain.
func (p Path) follow() []string {
	if p.Rest == "" {
		return nil
	}

	return cel.FollowDig(nil, p.Rest, hasPlainKeys)
}
