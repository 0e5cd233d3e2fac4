// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package stamp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/test/must"
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
	must.Do(t, err)

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
	return stamp.Owner{ResourceID: resourceID, ResourceName: "config", Generation: 7, Digest: "content"}
}

// newWebIdentity returns the identity of newConfigMap's object.
func newWebIdentity() stamp.Identity {
	return stamp.Identity{Adapter: "dns", ResourceID: resourceID, Kind: "ConfigMap", Namespace: "shop", Name: "web"}
}

// earlierIdentity is the annotation of newConfigMap's object by the release before v2, signed with oldKey.
const earlierIdentity = "v1.acb032bf.omfThh5DheZayInE7zDzzXTojsbj1TG2b-KgJKswhhk"

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

			must.Do(t, stamp.New("dns", keys).SetOwnership(object, newOwner()))

			generation, err := strconv.ParseInt(tc.wantAnnotations[adapter.AnnotationGeneration], 10, 64)
			must.Do(t, err)

			tc.wantAnnotations[adapter.AnnotationIdentity] = keys.Sign(newWebIdentity(), generation, "content")

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

func removeLabels(o *unstructured.Unstructured) { o.SetLabels(nil) }

func addAnnotation(key, value string) change {
	return func(o *unstructured.Unstructured) {
		annotations := o.GetAnnotations()
		annotations[key] = value
		o.SetAnnotations(annotations)
	}
}

// detach applies the patch that detaches an object.
func detach(t *testing.T, s *stamp.Stamper, id string) change {
	t.Helper()

	return func(o *unstructured.Unstructured) {
		before, _ := json.Marshal(o)
		patch, _ := json.Marshal(s.DetachPatch(o, o.GroupVersionKind().GroupKind(), id))

		after, err := jsonpatch.MergePatch(before, patch)
		must.Do(t, err)
		must.Do(t, o.UnmarshalJSON(after))
	}
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
		"labels alone removed":         {changes: []change{removeLabels}, want: stamp.Managed},
		"detached by hand":             {changes: []change{removeLabels, addAnnotation(adapter.AnnotationDetached, "dns")}, want: stamp.Managed},
		"labels and identity removed":  {changes: []change{removeOwnership}, want: stamp.Unproven, reason: "neither label"},
		"detached":                     {changes: []change{detach(t, stamp.New("dns", newKeys(t, oldKey)), resourceID)}, want: stamp.Detached, reason: `adapter "dns" detached`},
		"detached, without keys":       {noKeys: true, changes: []change{detach(t, stamp.New("dns", nil), resourceID)}, want: stamp.Detached},
		"detached for another":         {changes: []change{detach(t, stamp.New("dns", newKeys(t, oldKey)), otherID)}, want: stamp.DetachedUnproven, reason: "does not prove"},
		"detached by another release":  {changes: []change{removeOwnership, setAnnotations(map[string]string{adapter.AnnotationDetached: "dns"})}, want: stamp.DetachedUnproven, reason: "does not prove"},
		"no ownership record":          {changes: []change{removeOwnership, setAnnotations(nil)}, want: stamp.Foreign, reason: "no label"},
		"another adapter's label":      {changes: []change{setLabel(adapter.LabelAdapter, "vpn")}, want: stamp.Managed},
		"another adapter's object":     {noKeys: true, changes: []change{setLabel(adapter.LabelAdapter, "vpn")}, want: stamp.Foreign, reason: `adapter "vpn"`},
		"another resource's object":    {noKeys: true, changes: []change{setLabel(adapter.LabelResourceID, otherID)}, want: stamp.Foreign, reason: "to resource"},
		"renamed entry of a task file": {changes: []change{setLabel(adapter.LabelResourceName, "renamed")}, want: stamp.Managed},
		"identity of another object":   {changes: []change{setName("else")}, want: stamp.Unproven, reason: "the labels and the identity do not match"},
		"labels alone":                 {changes: []change{setAnnotations(nil)}, want: stamp.Unproven, reason: "does not prove this"},
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
			must.Do(t, stamper.SetOwnership(object, newOwner()))

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

	must.Do(t, stamper.SetOwnership(object, newOwner()))

	freed := object.DeepCopy()
	detach(t, stamper, resourceID)(freed)

	proof := freed.GetAnnotations()[adapter.AnnotationIdentity]

	if diff := cmp.Diff(map[string]string{"app": "web", adapter.Prefix + "cluster-id": "x"}, freed.GetLabels()); diff != "" {
		t.Errorf("labels: %s", diff)
	}

	want := map[string]string{
		"note": "x", adapter.AnnotationGeneration: "7", adapter.AnnotationDetached: "dns", adapter.AnnotationIdentity: proof,
	}
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
		"another generation":       {keys: []string{oldKey}, change: addAnnotation(adapter.AnnotationGeneration, "50")},
		"of the release before v2": {keys: []string{oldKey}, change: addAnnotation(adapter.AnnotationIdentity, earlierIdentity)},
		"detached":                 {keys: []string{oldKey}, change: keepLabels(detach(t, stamp.New("dns", signed), resourceID)), want: stamp.ErrForged},
		"a later version": {keys: []string{oldKey}, change: func(o *unstructured.Unstructured) {
			setAnnotations(map[string]string{adapter.AnnotationIdentity: "v3" + o.GetAnnotations()[adapter.AnnotationIdentity][2:]})(o)
		}, want: stamp.ErrUnknownKey},
		"another API group": {
			keys: []string{oldKey}, kind: schema.GroupKind{Group: "example.com", Kind: "ConfigMap"}, want: stamp.ErrForged,
		},
		"no base64": {keys: []string{oldKey}, change: func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{adapter.AnnotationIdentity: strings.Replace(o.GetAnnotations()[adapter.AnnotationIdentity], ".content", "=.content", 1)})
		}, want: stamp.ErrForged},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			object := newConfigMap(nil, nil)
			must.Do(t, stamp.New("dns", signed).SetOwnership(object, newOwner()))

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

// keepLabels makes a change without changing the labels.
func keepLabels(change change) change {
	return func(o *unstructured.Unstructured) {
		labels := o.GetLabels()
		change(o)
		o.SetLabels(labels)
	}
}

// TestCompare checks that an object counts as applied only if its marks prove the content and the generation.
func TestCompare(t *testing.T) {
	t.Parallel()

	keys := newKeys(t, oldKey)
	stamper := stamp.New("dns", keys)

	other := newWebIdentity()
	other.ResourceID = "another-resource"
	foreign := keys.Sign(other, newOwner().Generation, newOwner().Digest)

	cases := map[string]struct {
		change change
		owner  stamp.Owner
		noKeys bool
		want   stamp.Proof
		// renewed is true if the annotation is signed again.
		renewed bool
	}{
		"as applied":                     {owner: newOwner(), want: stamp.Proven},
		"without keys":                   {owner: newOwner(), noKeys: true, want: stamp.Proven},
		"another generation, no keys":    {owner: stamp.Owner{Generation: 8}, noKeys: true, want: stamp.Different},
		"another generation":             {owner: stamp.Owner{Generation: 8, Digest: "content"}, want: stamp.Different},
		"another content":                {owner: stamp.Owner{Generation: 7, Digest: "other"}, want: stamp.Different},
		"another name of the entry":      {owner: newOwner(), change: setLabel(adapter.LabelResourceName, "renamed"), want: stamp.Different},
		"the generation was edited":      {owner: stamp.Owner{Generation: 8, Digest: "content"}, change: addAnnotation(adapter.AnnotationGeneration, "8"), want: stamp.Edited},
		"the digest was edited":          {owner: stamp.Owner{Generation: 7, Digest: "other"}, change: editIdentity(".content.", ".other."), want: stamp.Edited},
		"the last HMAC was removed":      {owner: newOwner(), change: cutIdentity(4), want: stamp.Edited},
		"the digest was removed":         {owner: newOwner(), change: editIdentity(".content.", ".."), want: stamp.Edited},
		"made one of the release before": {owner: newOwner(), change: cutIdentity(3), want: stamp.Edited},
		"signed for another resource":    {owner: newOwner(), change: addAnnotation(adapter.AnnotationIdentity, foreign), want: stamp.Edited},
		"detached":                       {owner: newOwner(), change: detach(t, stamper, resourceID), want: stamp.Edited},
		"the labels were removed":        {owner: newOwner(), change: removeLabels, want: stamp.Edited, renewed: false},
		"detached by hand":               {owner: newOwner(), change: addAnnotation(adapter.AnnotationDetached, "dns"), want: stamp.Edited},
		"of the release before v2":       {owner: newOwner(), change: addAnnotation(adapter.AnnotationIdentity, earlierIdentity), want: stamp.Unsigned, renewed: true},
		"that release, another generation": {
			owner: stamp.Owner{Generation: 8, Digest: "content"}, change: addAnnotation(adapter.AnnotationIdentity, earlierIdentity),
			want: stamp.Different, renewed: true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			live, desired, used := newConfigMap(nil, nil), newConfigMap(nil, nil), stamper
			must.Do(t, stamper.SetOwnership(live, newOwner()))

			if tc.change != nil {
				tc.change(live)
			}

			if tc.noKeys {
				used = stamp.New("dns", nil)
			}

			tc.owner.ResourceID, tc.owner.ResourceName = resourceID, "config"
			desired.SetName("another-version")
			must.Do(t, used.SetOwnership(desired, tc.owner))

			if got := used.Compare(live, desired, tc.owner); got != tc.want {
				t.Errorf("Compare() = %s, want %s", got, tc.want)
			}

			if value, renewed := used.RenewedIdentity(live, live.GroupVersionKind().GroupKind(), resourceID); renewed != tc.renewed {
				t.Errorf("RenewedIdentity() = %s, %v, want %v", value, renewed, tc.renewed)
			}
		})
	}
}

func editIdentity(from, to string) change {
	return func(o *unstructured.Unstructured) {
		addAnnotation(adapter.AnnotationIdentity, strings.Replace(o.GetAnnotations()[adapter.AnnotationIdentity], from, to, 1))(o)
	}
}

// cutIdentity keeps the first parts of the identity, and makes it one of the release before v2 if they are three.
func cutIdentity(parts int) change {
	return func(o *unstructured.Unstructured) {
		kept := strings.Split(o.GetAnnotations()[adapter.AnnotationIdentity], ".")[:parts]
		if parts == 3 {
			kept[0] = "v1"
		} else {
			kept = append(kept, "")
		}

		addAnnotation(adapter.AnnotationIdentity, strings.Join(kept, "."))(o)
	}
}

// TestDigest checks that a digest does not depend on the name, and depends on all other fields.
func TestDigest(t *testing.T) {
	t.Parallel()

	digest := func(change change) string {
		o := newConfigMap(map[string]any{"a": "b"}, nil)
		o.Object["data"] = map[string]any{"x": "1", "y": "2"}

		change(o)

		out, err := stamp.Digest(o)
		must.Do(t, err)

		return out
	}
	want := digest(func(*unstructured.Unstructured) {})

	if got := digest(setName("other")); got != want {
		t.Error("the digest depends on the name")
	}

	for name, change := range map[string]change{
		"namespace": func(o *unstructured.Unstructured) { o.SetNamespace("other") }, "label": setLabel("a", "c"),
		"data": func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"x": "1"} },
	} {
		if digest(change) == want {
			t.Errorf("the digest does not depend on the %s", name)
		}
	}
}

func TestRenewed(t *testing.T) {
	t.Parallel()

	object, kind := newConfigMap(nil, nil), schema.GroupKind{Kind: "ConfigMap"}
	must.Do(t, stamp.New("dns", newKeys(t, oldKey)).SetOwnership(object, newOwner()))

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

		if renewed && !strings.HasPrefix(tc.keys.Sign(stamp.Identity{}, 1, ""), value[:len("v2.12345678.")]) {
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
			must.Do(t, os.WriteFile(path, []byte(tc.text), 0o600))

			keys, err := stamp.ReadKeys(path)
			if tc.want == "" {
				must.Do(t, err)

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

	genuine := keys.Sign(newWebIdentity(), 1, "content")
	owner, _, _ := strings.Cut(genuine, ".content")
	f.Add(genuine)
	f.Add(earlierIdentity)
	f.Add("v1..")
	f.Add("v1.x.y.z")
	f.Fuzz(func(t *testing.T, value string) {
		object := newConfigMap(
			map[string]any{adapter.LabelAdapter: "dns", adapter.LabelResourceID: resourceID},
			map[string]any{adapter.AnnotationIdentity: value})

		if err := keys.Verify(object, schema.GroupKind{Kind: "ConfigMap"}); err == nil && value != earlierIdentity && !strings.HasPrefix(value, owner+".") {
			t.Errorf("%q verifies", value)
		}
	})
}
