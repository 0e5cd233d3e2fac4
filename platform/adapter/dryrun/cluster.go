// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// Discovery is what the cluster has, and what it adds to what is made there.
type Discovery struct {
	// Existing are objects that are there before the event, by their names.
	Existing map[string]map[string]any `yaml:"existing"`
	// Created are added to objects of that name when they are made: a status, a UID.
	Created map[string]map[string]any `yaml:"created"`
}

// parseDiscovery reads the file of --discovery. Upstream's has no two keys above the objects: one
// that bears a mark of an adapter exists there, any other is added to what is made.
func parseDiscovery(data []byte) (Discovery, error) {
	var (
		out  Discovery
		flat map[string]map[string]any
	)

	err := strictyaml.Decode("discovery", data, &flat)
	if err == nil && (flat["existing"] != nil || flat["created"] != nil) {
		flat, err = nil, strictyaml.Decode("discovery", data, &out)
	}

	if err != nil {
		return out, fmt.Errorf("read discovery, which has objects by their names below existing and created: %w", err)
	}

	if len(flat) > 0 {
		out = Discovery{Existing: map[string]map[string]any{}, Created: map[string]map[string]any{}}
	}

	for name, object := range flat {
		if marked(object) {
			out.Existing[name] = object
		} else {
			out.Created[name] = object
		}
	}

	return out, check(out)
}

func marked(object map[string]any) bool {
	o := unstructured.Unstructured{Object: object}
	keys := slices.AppendSeq(slices.Collect(maps.Keys(o.GetLabels())), maps.Keys(o.GetAnnotations()))

	return slices.ContainsFunc(keys, func(key string) bool { return strings.HasPrefix(key, adapter.Prefix) })
}

func check(discovery Discovery) error {
	var errs []error

	for name, object := range discovery.Existing {
		o := unstructured.Unstructured{Object: object}
		if o.GetKind() == "" || o.GetAPIVersion() == "" {
			errs = append(errs, fmt.Errorf("read discovery: %s has no apiVersion and kind", name))
		}

		if got := o.GetName(); got != "" && got != name {
			errs = append(errs, fmt.Errorf("read discovery: %s has the name %s", name, got))
		}
	}

	return errors.Join(errs...)
}

// cluster stands for the cluster, whichever transport leads to it. It is a model of what
// an adapter sees there: nothing validates, defaults or runs what is made.
type cluster struct {
	clock   clock.PassiveClock
	created map[string]map[string]any

	objects map[string]*unstructured.Unstructured
	// unfound are the keys of objects that were there before the event and that nothing has
	// found yet, with the reason.
	unfound map[string]string
	count   int
}

func newCluster(discovery Discovery, timer clock.PassiveClock) *cluster {
	c := &cluster{
		clock: timer, created: discovery.Created,
		objects: map[string]*unstructured.Unstructured{}, unfound: map[string]string{},
	}

	for _, name := range slices.Sorted(maps.Keys(discovery.Existing)) {
		object := &unstructured.Unstructured{Object: discovery.Existing[name]}
		object.SetName(name)
		c.complete(object)

		at := key(transport.RefTo(object))
		c.objects[at], c.unfound[at] = object, "nothing asks for a "+object.GetKind()+" of this name and namespace"
	}

	return c
}

func key(ref transport.Ref) string {
	return ref.GVK.GroupKind().String() + " " + ref.Namespace + "/" + ref.Name
}

// complete adds what a server adds.
func (c *cluster) complete(object *unstructured.Unstructured) {
	c.count++
	object.SetResourceVersion(strconv.Itoa(c.count))

	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", c.count)))
	}

	if object.GetCreationTimestamp().Time.IsZero() {
		object.SetCreationTimestamp(metav1.NewTime(c.clock.Now().UTC()))
	}
}

// Namespaced is not known here: everything is looked for.
func (c *cluster) Namespaced(schema.GroupVersionKind) bool { return false }

// Find reads the objects that match, by name.
func (c *cluster) Find(_ context.Context, query transport.Query, _ transport.Read) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured

	for _, at := range slices.Sorted(maps.Keys(c.objects)) {
		object := c.objects[at]

		if query.Name != "" && query.Name != object.GetName() ||
			(query.Name != "" || query.Namespace != "") && query.Namespace != object.GetNamespace() ||
			query.GVK.GroupKind() != object.GroupVersionKind().GroupKind() {
			continue
		}

		why := unlike(query.Labels, object.GetLabels())
		if why == "" {
			out = append(out, object.DeepCopy())

			delete(c.unfound, at)
		} else if _, there := c.unfound[at]; there {
			c.unfound[at] = why
		}
	}

	return out, nil
}

// unlike says which labels are asked for, and are other ones.
func unlike(want, have map[string]string) string {
	var out []string

	for _, name := range slices.Sorted(maps.Keys(want)) {
		got, there := have[name]

		switch {
		case !there:
			out = append(out, fmt.Sprintf("it has no label %s (%q is asked for)", name, want[name]))
		case got != want[name]:
			out = append(out, fmt.Sprintf("its label %s is %q (%q is asked for)", name, got, want[name]))
		}
	}

	return strings.Join(out, ", ")
}

// passedOver are the objects that were there, and that nothing has found.
func (c *cluster) passedOver() []string {
	out := make([]string, 0, len(c.unfound))
	for _, at := range slices.Sorted(maps.Keys(c.unfound)) {
		out = append(out, at+": "+c.unfound[at])
	}

	return out
}

// Create makes an object.
func (c *cluster) Create(_ context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	made := object.DeepCopy()

	at := key(transport.RefTo(made))
	if c.objects[at] != nil {
		return nil, errclass.New(errclass.Transient, transport.ReasonExists, "create %s: %w", at, transport.ErrExists)
	}

	added, there := c.created[made.GetName()]
	if kind, said := added["kind"]; there && (!said || kind == made.GetKind()) {
		var err error
		// The manifest's own values stay.
		if made.Object, err = merged(added, made.Object); err != nil {
			return nil, err
		}
	}

	c.complete(made)
	c.objects[at] = made

	return made.DeepCopy(), nil
}

// Apply lays the manifest over the live object. What is null in a manifest is not said there.
func (c *cluster) Apply(ctx context.Context, live, said *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	document, err := merged(map[string]any{}, said.Object)
	if err != nil {
		return nil, "", err
	}

	changed, err := c.Patch(ctx, transport.RefTo(live), document)

	return changed, "", err
}

// Patch merges a document into the object.
func (c *cluster) Patch(_ context.Context, ref transport.Ref, document map[string]any) (*unstructured.Unstructured, error) {
	now, ok := c.objects[key(ref)]
	if !ok {
		return nil, missing(ref)
	}

	object, err := merged(now.Object, document)
	if err != nil {
		return nil, err
	}

	changed := &unstructured.Unstructured{Object: object}
	c.complete(changed)
	c.objects[key(ref)] = changed

	return changed.DeepCopy(), nil
}

// Delete removes an object; one with finalizers stays, and is being deleted.
func (c *cluster) Delete(_ context.Context, ref transport.Ref, _ metav1.DeletionPropagation) error {
	object, ok := c.objects[key(ref)]
	if !ok {
		return missing(ref)
	}

	if len(object.GetFinalizers()) == 0 {
		delete(c.objects, key(ref))

		return nil
	}

	leaving := object.DeepCopy()
	now := metav1.NewTime(c.clock.Now().UTC())
	leaving.SetDeletionTimestamp(&now)
	c.objects[key(ref)] = leaving

	return nil
}

func missing(ref transport.Ref) error {
	return errclass.New(errclass.Transient, transport.ReasonNotFound, "%s: %w", ref, transport.ErrNotFound)
}

// merged is an object with a merge patch (RFC 7396).
func merged(object, patch map[string]any) (map[string]any, error) {
	before, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}

	document, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}

	after, err := jsonpatch.MergePatch(before, document)
	if err != nil {
		return nil, err
	}

	out := map[string]any{}
	err = json.Unmarshal(after, &out)

	return out, err
}
