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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// Discovery is the content of the --discovery file.
type Discovery struct {
	// Existing are the objects that exist before the event, by name.
	Existing map[string]map[string]any `yaml:"existing"`
	// Created are fields, by name of the object, that are added to an object when it is created, such
	// as a status or a UID.
	Created map[string]map[string]any `yaml:"created"`
}

// parseDiscovery decodes the --discovery file. It also accepts the format of upstream's adapter, without the
// keys existing and created. In this format, an object with a label or annotation of an adapter exists, and
// the fields of any other object are added to the created object.
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
		return out, fmt.Errorf("read discovery: want objects by name below existing and created: %w", err)
	}

	if len(flat) > 0 {
		out = Discovery{Existing: map[string]map[string]any{}, Created: map[string]map[string]any{}}
	}

	for name, object := range flat {
		if isAdapterObject(object) {
			out.Existing[name] = object
		} else {
			out.Created[name] = object
		}
	}

	return out, validateDiscovery(out)
}

func isAdapterObject(object map[string]any) bool {
	o := unstructured.Unstructured{Object: object}
	keys := slices.AppendSeq(slices.Collect(maps.Keys(o.GetLabels())), maps.Keys(o.GetAnnotations()))

	return slices.ContainsFunc(keys, func(key string) bool { return strings.HasPrefix(key, adapter.Prefix) })
}

func validateDiscovery(discovery Discovery) error {
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

// noDiscovery begins the reason of an object whose labels no discovery has compared.
const noDiscovery = "no discovery"

// cluster simulates the cluster of all transports in memory. It does not validate, default or run objects.
type cluster struct {
	clock   clock.PassiveClock
	created map[string]map[string]any

	objects map[string]*unstructured.Unstructured
	// unmatched are the keys of the existing objects that no discovery has found, with the reason.
	unmatched map[string]string
	count     int
}

func newCluster(discovery Discovery, timer clock.PassiveClock) *cluster {
	c := &cluster{
		clock: timer, created: discovery.Created,
		objects: map[string]*unstructured.Unstructured{}, unmatched: map[string]string{},
	}

	for _, name := range slices.Sorted(maps.Keys(discovery.Existing)) {
		object := &unstructured.Unstructured{Object: discovery.Existing[name]}
		object.SetName(name)
		c.setServerFields(object)

		objectKey := keyOf(transport.RefTo(object))
		c.objects[objectKey] = object
		c.unmatched[objectKey] = noDiscovery + " looks for a " + object.GetKind() + " with this name and namespace"
	}

	return c
}

func keyOf(ref transport.Ref) string {
	return ref.GVK.GroupKind().String() + " " + ref.Namespace + "/" + ref.Name
}

// setServerFields sets the fields that an API server sets: resourceVersion, uid and creationTimestamp.
func (c *cluster) setServerFields(object *unstructured.Unstructured) {
	c.count++
	object.SetResourceVersion(strconv.Itoa(c.count))

	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", c.count)))
	}

	if object.GetCreationTimestamp().Time.IsZero() {
		object.SetCreationTimestamp(metav1.NewTime(c.clock.Now().UTC()))
	}
}

// IsNamespaced returns false, which means unknown, so that the adapter reads all objects.
func (c *cluster) IsNamespaced(schema.GroupVersionKind) bool { return false }

// Find returns the matching objects, sorted by name.
func (c *cluster) Find(_ context.Context, query transport.Query, _ transport.Read) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured

	for _, objectKey := range slices.Sorted(maps.Keys(c.objects)) {
		object := c.objects[objectKey]

		if query.Name != "" && query.Name != object.GetName() ||
			(query.Name != "" || query.Namespace != "") && query.Namespace != object.GetNamespace() ||
			query.GVK.GroupKind() != object.GroupVersionKind().GroupKind() {
			continue
		}

		mismatch := describeMismatch(query.Labels, object.GetLabels())
		if mismatch == "" {
			out = append(out, object.DeepCopy())

			delete(c.unmatched, objectKey)
		} else if strings.HasPrefix(c.unmatched[objectKey], noDiscovery) {
			// The discovery comes before the search for objects that are no longer rendered.
			c.unmatched[objectKey] = mismatch
		}
	}

	return out, nil
}

// describeMismatch returns the labels that are missing or have another value, and an empty string if all
// labels match.
func describeMismatch(want, labels map[string]string) string {
	var out []string

	for _, name := range slices.Sorted(maps.Keys(want)) {
		got, ok := labels[name]

		switch {
		case !ok:
			out = append(out, fmt.Sprintf("label %s is missing (want %q)", name, want[name]))
		case got != want[name]:
			out = append(out, fmt.Sprintf("label %s is %q (want %q)", name, got, want[name]))
		}
	}

	return strings.Join(out, ", ")
}

// listUnmatched returns the existing objects that no discovery has found, with the reason.
func (c *cluster) listUnmatched() []string {
	out := make([]string, 0, len(c.unmatched))
	for _, objectKey := range slices.Sorted(maps.Keys(c.unmatched)) {
		out = append(out, objectKey+": "+c.unmatched[objectKey])
	}

	return out
}

// Create creates an object, with the fields of Discovery.Created.
func (c *cluster) Create(_ context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	created := object.DeepCopy()

	objectKey := keyOf(transport.RefTo(created))
	if c.objects[objectKey] != nil {
		return nil, errclass.New(errclass.Transient, transport.ReasonExists, "create %s: %w", objectKey, transport.ErrExists)
	}

	fields, hasFields := c.created[created.GetName()]
	if kind, hasKind := fields["kind"]; hasFields && (!hasKind || kind == created.GetKind()) {
		var err error
		// The values of the manifest take precedence.
		if created.Object, err = transport.ApplyMergePatch(fields, created.Object); err != nil {
			return nil, err
		}
	}

	c.setServerFields(created)
	c.objects[objectKey] = created

	return created.DeepCopy(), nil
}

// Apply merges the manifest into the live object. It ignores fields of the manifest that are null.
func (c *cluster) Apply(
	ctx context.Context, live, manifest *unstructured.Unstructured,
) (*unstructured.Unstructured, string, error) {
	document, err := transport.ApplyMergePatch(map[string]any{}, manifest.Object)
	if err != nil {
		return nil, "", err
	}

	patched, err := c.Patch(ctx, transport.RefTo(live), document)

	return patched, "", err
}

// Patch merges a document into the object.
func (c *cluster) Patch(_ context.Context, ref transport.Ref, document map[string]any) (*unstructured.Unstructured, error) {
	current, ok := c.objects[keyOf(ref)]
	if !ok {
		return nil, newNotFoundError(ref)
	}

	object, err := transport.ApplyMergePatch(current.Object, document)
	if err != nil {
		return nil, err
	}

	patched := &unstructured.Unstructured{Object: object}
	c.setServerFields(patched)
	c.objects[keyOf(ref)] = patched

	return patched.DeepCopy(), nil
}

// Delete deletes an object. An object with finalizers gets a deletion timestamp and stays.
func (c *cluster) Delete(_ context.Context, ref transport.Ref, _ metav1.DeletionPropagation) error {
	object, ok := c.objects[keyOf(ref)]
	if !ok {
		return newNotFoundError(ref)
	}

	if len(object.GetFinalizers()) == 0 {
		delete(c.objects, keyOf(ref))

		return nil
	}

	deleting := object.DeepCopy()
	now := metav1.NewTime(c.clock.Now().UTC())
	deleting.SetDeletionTimestamp(&now)
	c.objects[keyOf(ref)] = deleting

	return nil
}

func newNotFoundError(ref transport.Ref) error {
	return errclass.New(errclass.Transient, transport.ReasonNotFound, "%s: %w", ref, transport.ErrNotFound)
}
