// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// decodeClaim returns a claim as a decoder returns it: no text is shared with another claim.
func decodeClaim(tb testing.TB, number int) *v1alpha1.MachineClaim {
	tb.Helper()

	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: fmt.Sprintf("linux-%05d", number),
			Labels:      map[string]string{"hyperfleet.io/pool": "linux", "hyperfleet.io/template": "debian", "team": "compilers"},
			Annotations: map[string]string{"hyperfleet.io/traceparent": fmt.Sprintf("00-%032d-%016d-01", number, number)},
			Finalizers:  []string{"hyperfleet.io/machine"},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "hyperfleet", Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:status":{}}`)},
			}},
		},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "debian"}, RunnerPoolRef: &v1alpha1.LocalObjectReference{Name: "linux"},
		},
		Status: v1alpha1.MachineClaimStatus{
			Phase: v1alpha1.MachineClaimReady,
			VMRef: &v1alpha1.VMReference{HypervisorCluster: "datacenter-1", Node: "node-17", VMID: strconv.Itoa(100_000 + number)},
		},
	}

	for _, name := range []string{"Placed", "Provisioned", "PoweredOn", "AddressAllocated", "Bootstrapped", "RunnerRegistered", "Ready"} {
		claim.Status.Conditions = append(claim.Status.Conditions, metav1.Condition{
			Type: name, Status: metav1.ConditionTrue, Reason: name + "Succeeded", LastTransitionTime: metav1.Unix(1_800_000_000, 0),
			Message: "the machine has reached this step of its life",
		})
	}

	text, err := json.Marshal(claim)
	if err != nil {
		tb.Fatal(err)
	}

	out := &v1alpha1.MachineClaim{}
	if err := json.Unmarshal(text, out); err != nil {
		tb.Fatal(err)
	}

	return out
}

// Objects of a cache share equal texts, and are otherwise as they were.
func TestTransformSharesTexts(t *testing.T) {
	t.Parallel()

	transform := watch.NewTransform()

	change := func(number int) *v1alpha1.MachineClaim {
		want := decodeClaim(t, number)
		want.ManagedFields = nil

		out, err := transform(decodeClaim(t, number))
		if diff := cmp.Diff(any(want), out); err != nil || diff != "" {
			t.Fatalf("the object was changed (%v) (-want +got):\n%s", err, diff)
		}

		claim, ok := out.(*v1alpha1.MachineClaim)
		if !ok {
			t.Fatalf("it is a %T", out)
		}

		return claim
	}

	first, second := change(1), change(2)

	for _, pair := range [][2]string{
		{first.Status.Conditions[3].Message, second.Status.Conditions[5].Message}, {first.Namespace, second.Namespace},
		{first.Labels["team"], second.Labels["team"]}, {first.Spec.TemplateRef.Name, second.Spec.TemplateRef.Name},
		{first.Finalizers[0], second.Finalizers[0]}, {first.Status.VMRef.Node, second.Status.VMRef.Node},
	} {
		if unsafe.StringData(pair[0]) != unsafe.StringData(pair[1]) {
			t.Errorf("%q is in memory twice", pair[0])
		}
	}

	// Others may read the object of a deletion that the watch has missed.
	gone := toolscache.DeletedFinalStateUnknown{Key: "team-a/gone", Obj: first}
	if out, err := transform(gone); err != nil || out != any(gone) {
		t.Errorf("a missed deletion is %v (%v)", out, err)
	}
}

// How much memory does a claim need in a cache?
func BenchmarkCachedClaims(b *testing.B) {
	const claims = 10_000

	for name, transform := range map[string]toolscache.TransformFunc{
		"whole": func(in any) (any, error) { return in, nil }, "without-managed-fields": cache.TransformStripManagedFields(),
		"shared": watch.NewTransform(),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var (
					kept   []any
					before = heap.UsedBytes()
					spent  time.Duration
				)

				for number := range claims {
					claim, start := decodeClaim(b, number), time.Now()

					out, err := transform(claim)
					if err != nil {
						b.Fatal(err)
					}

					spent += time.Since(start)
					kept = append(kept, out)
				}

				b.ReportMetric(float64(heap.UsedBytes()-before)/claims, "B/claim")
				b.ReportMetric(float64(spent.Microseconds())/claims, "µs/claim")
				runtime.KeepAlive(kept)
			}
		})
	}
}
