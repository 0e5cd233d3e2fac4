// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package stamp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

const (
	resourceID = "0199f1c8-6d52-7b1c-9d0e-0a7d2f3b4c5d"
	otherID    = "0199f1c8-6d52-7b1c-9d0e-ffffffffffff"
	oldKey     = "old-key-old-key-old-key-old-key-old-key"
	newKey     = "new-key-new-key-new-key-new-key-new-key"
)

func newKeys(t testing.TB, lines ...string) *stamp.Keys {
	t.Helper()

	keys, err := stamp.ParseKeys([]byte(strings.Join(lines, "\n")))
	must(t, err)

	return keys
}

func newConfigMap(labels, annotations map[string]any) *unstructured.Unstructured {
	metadata := map[string]any{"name": "web", "namespace": "shop"}
	if labels != nil {
		metadata["labels"] = labels
	}

	if annotations != nil {
		metadata["annotations"] = annotations
	}

	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}}
}

func newOwner() stamp.Owner {
	return stamp.Owner{ResourceID: resourceID, ResourceName: "config", Generation: 7}
}

func TestStampFillsGapsOnly(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		labels, annotations         map[string]any
		wantLabels, wantAnnotations map[string]string
	}{
		"everything is missing": {
			wantLabels: map[string]string{
				adapter.LabelAdapter: "dns", adapter.LabelResourceID: resourceID, adapter.LabelResourceName: "config",
			},
			wantAnnotations: map[string]string{adapter.AnnotationGeneration: "7"},
		},
		"labels of the manifest stay": {
			labels:      map[string]any{adapter.LabelResourceID: "own", adapter.LabelAdapter: "other", "app": "web"},
			annotations: map[string]any{adapter.AnnotationGeneration: "3", "note": "x"},
			wantLabels: map[string]string{
				adapter.LabelAdapter: "other", adapter.LabelResourceID: "own", adapter.LabelResourceName: "config", "app": "web",
			},
			wantAnnotations: map[string]string{adapter.AnnotationGeneration: "3", "note": "x"},
		},
		"an identity in the manifest is replaced": {
			annotations: map[string]any{adapter.AnnotationIdentity: "v1.00000000.AAAA"},
			wantLabels: map[string]string{
				adapter.LabelAdapter: "dns", adapter.LabelResourceID: resourceID, adapter.LabelResourceName: "config",
			},
			wantAnnotations: map[string]string{adapter.AnnotationGeneration: "7"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			object := newConfigMap(tc.labels, tc.annotations)
			keys := newKeys(t, oldKey)

			must(t, stamp.New("dns", keys).SetOwnership(object, newOwner()))

			tc.wantAnnotations[adapter.AnnotationIdentity] = keys.Sign(stamp.Identity{
				Adapter: "dns", ResourceID: resourceID, Kind: "ConfigMap", Namespace: "shop", Name: "web",
			})

			if diff := cmp.Diff(tc.wantLabels, object.GetLabels()); diff != "" {
				t.Errorf("labels: %s", diff)
			}

			if diff := cmp.Diff(tc.wantAnnotations, object.GetAnnotations()); diff != "" {
				t.Errorf("annotations: %s", diff)
			}
		})
	}
}

func TestStampErrors(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		object *unstructured.Unstructured
		mark   stamp.Owner
		noKeys bool
		want   string
	}{
		"a generation that is not a number": {
			object: newConfigMap(nil, map[string]any{adapter.AnnotationGeneration: "latest"}), mark: newOwner(), want: `"latest" is not an integer`,
		},
		"a generation below 1": {object: newConfigMap(nil, nil), mark: stamp.Owner{ResourceID: resourceID, ResourceName: "config"}, want: `"0" is not an integer`},
		"a generation that is not a string": {
			object: newConfigMap(nil, map[string]any{adapter.AnnotationGeneration: int64(7)}), mark: newOwner(), want: "quote numbers",
		},
		"an id that is not a label value": {object: newConfigMap(nil, nil), mark: stamp.Owner{ResourceID: "a/b", ResourceName: "config", Generation: 1}, want: "not a valid label value"},
		"no id":                           {object: newConfigMap(nil, nil), mark: stamp.Owner{ResourceName: "config", Generation: 1}, want: "resource-id is empty"},
		"labels that are a list":          {object: withMetadata("labels", []any{"x"}), mark: newOwner(), want: ".metadata.labels accessor error"},
		"another adapter, without key": {
			object: newConfigMap(map[string]any{adapter.LabelAdapter: "x"}, nil), mark: newOwner(), noKeys: true, want: "remove them",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			keys := newKeys(t, oldKey)
			if tc.noKeys {
				keys = nil
			}

			before := tc.object.DeepCopy()

			err := stamp.New("dns", keys).SetOwnership(tc.object, tc.mark)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("Stamp() = %v, want an error with %q", err, tc.want)
			}

			if diff := cmp.Diff(before, tc.object); diff != "" {
				t.Errorf("the object was changed despite the error: %s", diff)
			}
		})
	}
}

func withMetadata(field string, value any) *unstructured.Unstructured {
	object := newConfigMap(nil, nil)
	if err := unstructured.SetNestedField(object.Object, value, "metadata", field); err != nil {
		panic(err)
	}

	return object
}

// change changes an object that has ownership labels.
type change func(object *unstructured.Unstructured)

func setLabel(key, value string) change {
	return func(o *unstructured.Unstructured) {
		labels := o.GetLabels()
		labels[key] = value
		o.SetLabels(labels)
	}
}

func setName(name string) change { return func(o *unstructured.Unstructured) { o.SetName(name) } }

func setAnnotations(with map[string]string) change {
	return func(o *unstructured.Unstructured) { o.SetAnnotations(with) }
}

// removeOwnership removes the ownership labels and the identity.
func removeOwnership(o *unstructured.Unstructured) {
	o.SetLabels(nil)
	o.SetAnnotations(map[string]string{adapter.AnnotationGeneration: "1"})
}

func TestStanding(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		changes []change
		noKeys  bool
		want    stamp.Ownership
		reason  string
	}{
		"as stamped":                   {want: stamp.Managed},
		"as stamped, without keys":     {noKeys: true, want: stamp.Managed},
		"labels removed":               {changes: []change{removeOwnership}, want: stamp.Unmarked, reason: "neither label"},
		"handed over":                  {changes: []change{removeOwnership, setAnnotations(map[string]string{adapter.AnnotationDetached: "dns"})}, want: stamp.Detached, reason: `adapter "dns" detached`},
		"no ownership record":          {changes: []change{removeOwnership, setAnnotations(nil)}, want: stamp.Foreign, reason: "no label"},
		"another adapter's label":      {changes: []change{setLabel(adapter.LabelAdapter, "vpn")}, want: stamp.Managed},
		"another adapter's object":     {noKeys: true, changes: []change{setLabel(adapter.LabelAdapter, "vpn")}, want: stamp.Foreign, reason: `adapter "vpn"`},
		"another resource's object":    {noKeys: true, changes: []change{setLabel(adapter.LabelResourceID, otherID)}, want: stamp.Foreign, reason: "to resource"},
		"renamed entry of a task file": {changes: []change{setLabel(adapter.LabelResourceName, "renamed")}, want: stamp.Managed},
		"identity of another object":   {changes: []change{setName("else")}, want: stamp.Foreign, reason: "the labels and the identity do not match"},
		"labels alone":                 {changes: []change{setAnnotations(nil)}, want: stamp.Foreign, reason: "does not prove this"},
		"copied onto another object":   {changes: []change{setLabel(adapter.LabelAdapter, "vpn"), setName("else")}, want: stamp.Foreign, reason: `adapter "vpn"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			keys := newKeys(t, oldKey)
			if tc.noKeys {
				keys = nil
			}

			stamper, object := stamp.New("dns", keys), newConfigMap(nil, nil)
			must(t, stamper.SetOwnership(object, newOwner()))

			for _, change := range tc.changes {
				change(object)
			}

			got, reason := stamper.OwnershipOf(object, object.GroupVersionKind().GroupKind(), resourceID)
			if got != tc.want || !strings.Contains(reason, tc.reason) {
				t.Errorf("Standing() = %s %q, want %s %q", got, reason, tc.want, tc.reason)
			}
		})
	}
}

// TestDetachment checks that labels and annotations of the manifest's author stay.
func TestDetachment(t *testing.T) {
	t.Parallel()

	object := newConfigMap(map[string]any{"app": "web", adapter.Prefix + "cluster-id": "x"}, map[string]any{"note": "x"})
	stamper := stamp.New("dns", newKeys(t, oldKey))

	must(t, stamper.SetOwnership(object, newOwner()))

	before, _ := json.Marshal(object)
	patch, _ := json.Marshal(stamper.DetachPatch())

	after, err := jsonpatch.MergePatch(before, patch)
	must(t, err)

	freed := &unstructured.Unstructured{}
	must(t, freed.UnmarshalJSON(after))

	if diff := cmp.Diff(map[string]string{"app": "web", adapter.Prefix + "cluster-id": "x"}, freed.GetLabels()); diff != "" {
		t.Errorf("labels: %s", diff)
	}

	want := map[string]string{"note": "x", adapter.AnnotationGeneration: "7", adapter.AnnotationDetached: "dns"}
	if diff := cmp.Diff(want, freed.GetAnnotations()); diff != "" {
		t.Errorf("annotations: %s", diff)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()

	signed := newKeys(t, oldKey)
	configMaps := schema.GroupKind{Kind: "ConfigMap"}

	cases := map[string]struct {
		keys   []string
		kind   schema.GroupKind
		change change
		want   error
	}{
		"as stamped":               {keys: []string{oldKey}},
		"a new key before the old": {keys: []string{newKey, oldKey}},
		"the old key is gone":      {keys: []string{newKey}, want: stamp.ErrUnknownKey},
		"another name":             {keys: []string{oldKey}, change: setName("db"), want: stamp.ErrForged},
		"another namespace":        {keys: []string{oldKey}, change: func(o *unstructured.Unstructured) { o.SetNamespace("db") }, want: stamp.ErrForged},
		"another kind":             {keys: []string{oldKey}, kind: schema.GroupKind{Kind: "Secret"}, want: stamp.ErrForged},
		"another resource":         {keys: []string{oldKey}, change: setLabel(adapter.LabelResourceID, otherID), want: stamp.ErrForged},
		"another adapter":          {keys: []string{oldKey}, change: setLabel(adapter.LabelAdapter, "vpn"), want: stamp.ErrForged},
		"labels alone":             {keys: []string{oldKey}, change: setAnnotations(nil), want: stamp.ErrNoIdentity},
		"identity alone":           {keys: []string{oldKey}, change: func(o *unstructured.Unstructured) { o.SetLabels(nil) }, want: stamp.ErrNoIdentity},
		"a later version": {keys: []string{oldKey}, change: func(o *unstructured.Unstructured) {
			setAnnotations(map[string]string{adapter.AnnotationIdentity: "v2" + o.GetAnnotations()[adapter.AnnotationIdentity][2:]})(o)
		}, want: stamp.ErrUnknownKey},
		"another API group": {
			keys: []string{oldKey}, kind: schema.GroupKind{Group: "example.com", Kind: "ConfigMap"}, want: stamp.ErrForged,
		},
		"no base64": {keys: []string{oldKey}, change: func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{adapter.AnnotationIdentity: o.GetAnnotations()[adapter.AnnotationIdentity] + "="})
		}, want: stamp.ErrForged},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			object := newConfigMap(nil, nil)
			must(t, stamp.New("dns", signed).SetOwnership(object, newOwner()))

			if tc.change != nil {
				tc.change(object)
			}

			if tc.kind.Empty() {
				tc.kind = configMaps
			}

			if err := newKeys(t, tc.keys...).Verify(object, tc.kind); !errors.Is(err, tc.want) {
				t.Fatalf("Verify() = %v, want %v", err, tc.want)
			}
		})
	}
}

func TestRenewed(t *testing.T) {
	t.Parallel()

	object, kind := newConfigMap(nil, nil), schema.GroupKind{Kind: "ConfigMap"}
	must(t, stamp.New("dns", newKeys(t, oldKey)).SetOwnership(object, newOwner()))

	for name, tc := range map[string]struct {
		keys *stamp.Keys
		want bool
	}{
		"none":             {},
		"the same":         {keys: newKeys(t, oldKey)},
		"a new one second": {keys: newKeys(t, oldKey, newKey)},
		"a new one first":  {keys: newKeys(t, newKey, oldKey), want: true},
	} {
		value, renewed := stamp.New("dns", tc.keys).RenewedIdentity(object, kind, resourceID)
		if renewed != tc.want {
			t.Errorf("%s: Renewed() = %v, want %v", name, renewed, tc.want)
		}

		if renewed && !strings.HasPrefix(tc.keys.Sign(stamp.Identity{}), value[:len("v1.12345678.")]) {
			t.Errorf("%s: %s is not signed with the first key", name, value)
		}
	}
}

func TestReadKeys(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ text, want string }{
		"one":                    {text: oldKey + "\n"},
		"comment and empty line": {text: "# of May\n\n" + newKey + "\r\n" + oldKey},
		"short":                  {text: oldKey + "\nshort\n", want: "line 2: a key needs at least 32 characters, this one has 5"},
		"binary":                 {text: strings.Repeat("\x00", 40), want: "line 1: a key has to be printable"},
		"empty":                  {text: "\n# nothing\n", want: "the file has no key"},
		"huge":                   {text: strings.Repeat("x", 65<<10), want: "larger than"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			path := filepath.Join(t.TempDir(), "keys")
			must(t, os.WriteFile(path, []byte(tc.text), 0o600))

			keys, err := stamp.ReadKeys(path)
			if tc.want == "" {
				must(t, err)

				for _, text := range []string{fmt.Sprint(keys), fmt.Sprintf("%#v", keys), fmt.Sprintf("%+v", keys)} {
					if strings.Contains(text, "key-old") || strings.Contains(text, "key-new") {
						t.Errorf("keys print as %q", text)
					}
				}

				return
			}

			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "short\n") {
				t.Errorf("ReadKeys() = %v, want %q", err, tc.want)
			}
		})
	}
}

func FuzzVerify(f *testing.F) {
	keys, err := stamp.ParseKeys([]byte(oldKey))
	if err != nil {
		f.Fatal(err)
	}

	genuine := keys.Sign(stamp.Identity{Adapter: "dns", ResourceID: resourceID, Kind: "ConfigMap", Namespace: "shop", Name: "web"})
	f.Add(genuine)
	f.Add("v1..")
	f.Add("v1.x.y.z")
	f.Fuzz(func(t *testing.T, value string) {
		object := newConfigMap(
			map[string]any{adapter.LabelAdapter: "dns", adapter.LabelResourceID: resourceID},
			map[string]any{adapter.AnnotationIdentity: value})

		if err := keys.Verify(object, schema.GroupKind{Kind: "ConfigMap"}); err == nil && value != genuine {
			t.Errorf("%q verifies", value)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}
