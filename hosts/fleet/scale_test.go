// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// slow is an API server in whose first list of hosts somebody is quicker than a pass.
type slow struct {
	client.Reader

	once sync.Once
	then func()
}

func (s *slow) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	s.once.Do(s.then)

	return s.Reader.List(ctx, list, opts...)
}

// A pass that began before the number of hosts was taken away makes none, and gives none back.
func TestReplicasTakenAwayInTheMidstOfAPass(t *testing.T) {
	t.Parallel()

	for name, replicas := range map[string]int32{"one too few": 3, "one too many": 1} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.HostFleetSpec{HostKind: "LinuxMachine", Replicas: new(replicas), TemplateHost: "a"}, "a", "b")
			if replicas == 1 {
				// A fleet gives back what it made, and orders none for a while after that.
				made := &v1alpha1.LinuxMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "b"}}
				w.patch(made, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationMadeByFleet+`":"racks"}}}`)
			}

			w.live = &slow{Reader: env.Client, then: func() {
				w.patch(&v1alpha1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "racks"}},
					`{"spec":{"replicas":null}}`)
			}}
			defer w.run("new")()

			w.reach("a look at the fleet without a number", func(f *v1alpha1.HostFleet) bool {
				return f.Spec.Replicas == nil && f.Status.ObservedGeneration == f.Generation
			})

			var list v1alpha1.LinuxMachineList
			if err := env.Client.List(t.Context(), &list, client.InNamespace(w.namespace)); err != nil {
				t.Fatal(err)
			}

			got := map[string]bool{}
			for i := range list.Items {
				got[list.Items[i].Name] = list.Items[i].DeletionTimestamp.IsZero()
			}

			if diff := cmp.Diff(map[string]bool{"a": true, "b": true}, got); diff != "" {
				t.Errorf("hosts (-want +got):\n%s", diff)
			}
		})
	}
}

// patch changes an object as kubectl patch does.
func (w *world) patch(obj client.Object, with string) {
	w.Helper()

	if err := env.Client.Patch(w.Context(), obj, client.RawPatch(types.MergePatchType, []byte(with))); err != nil {
		w.Error(err)
	}
}
