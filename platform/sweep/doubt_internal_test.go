// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// The API writes its ids in one way. A label that says one in another way is nobody's,
// though its HMAC is ours: the API would say that there is no such resource.
func TestIDsInAnotherSpelling(t *testing.T) {
	t.Parallel()

	const id = "0199f1c8-6d52-7b1c-9d0e-0a7d2f3b4c5d"

	keys, err := stamp.ParseKeys([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}

	s := &sweeper{Options: Options{Keys: keys, Clock: testclock.NewFakeClock(time.Now())}}
	configMaps := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}

	for label, want := range map[string]string{
		id: "", strings.ToUpper(id): ReasonNoResourceID, strings.ReplaceAll(id, "-", ""): ReasonNoResourceID, "cluster-1": ReasonNoResourceID,
	} {
		o := &object{kind: kind{kind: configMaps}, meta: &metav1.PartialObjectMetadata{}}
		o.item.ResourceID = label
		o.meta.Name = "web"
		o.meta.Labels = map[string]string{adapter.LabelAdapter: "dns", adapter.LabelResourceID: label}
		o.meta.Annotations = map[string]string{adapter.AnnotationIdentity: keys.Sign(stamp.Identity{
			Adapter: "dns", ResourceID: label, Kind: configMaps.Kind, Name: "web",
		})}

		if got, _ := s.doubt(o); got != want {
			t.Errorf("%s: %q, want %q", label, got, want)
		}
	}
}
