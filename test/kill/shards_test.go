// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/shards"
	"github.com/hyperfleet/hyperfleet/test/kill"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// Three operators run side by side on one API server and one hypervisor, each with its own namespace. One of them is
// killed while it creates machines. The others complete their jobs meanwhile, and it completes its own after its
// restart. No job gets a second machine, and none is lost.
func TestShardsRunSideBySide(t *testing.T) {
	const operators, jobs, killed = 3, 4, 1

	own := kube.Start(t, newKubeOptions()...)
	w := kill.NewShards(t, own, binary, operators)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Logs())
		}
	})

	for i, f := range w.Fleets {
		var lease coordinationv1.Lease

		name := shards.LeaseName([]string{"runners"}, "part-"+string(rune('0'+i)))
		f.Eventually("the Lease of an operator", func() (bool, string) {
			key := client.ObjectKey{Namespace: w.Fleets[0].Namespace, Name: name}
			if err := own.Client.Get(t.Context(), key, &lease); err != nil {
				return false, err.Error()
			}

			namespaces, _ := shards.ParseLabels(lease.Labels)

			return slices.Equal(namespaces, []string{f.Namespace}), "the Lease does not name the namespace"
		})
	}

	w.Queue(jobs)
	w.AwaitMachine(killed)
	w.Kill(killed)

	for i, f := range w.Fleets {
		if i != killed {
			f.EventuallyJobsDone(jobs)
		}
	}

	w.Start(killed)
	w.Fleets[killed].EventuallyJobsDone(jobs)

	for _, f := range w.Fleets {
		f.EventuallyClean()
	}

	for _, broken := range w.Machines.Violations() {
		t.Error(broken)
	}

	if made := w.Machines.CountMachines(); made != operators*jobs {
		t.Errorf("%d machines were created for %d jobs", made, operators*jobs)
	}
}
