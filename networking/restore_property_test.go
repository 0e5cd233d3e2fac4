// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// restoreHistory is a pool that goes through random changes, restores and restarts.
type restoreHistory struct {
	*fixture

	random *rand.Rand
	pool   *infrav1.KubevirtNodePool
	// backup has the machines of an earlier time.
	backup []infrav1.KubevirtMachine
	steps  []string
}

// Whatever is changed and restored without its status, in whatever order: each VirtualMachine is configured
// with the addresses that the status says, no address is configured twice, no VirtualMachine is lost in a
// restore, and the pool has its machines again without a person.
func TestPropertyRestores(t *testing.T) {
	t.Parallel()

	names := 0
	w := &fixture{t: t, namespace: env.Namespace(t)}
	w.startWithCleanup()

	// A run takes about ten seconds, and has two or three restores.
	property.Check(t, "no restore gives an address twice", property.Options{Runs: 25, Brief: 4}, prop.ForAllNoShrink(func(seed uint64) string {
		names++
		h := &restoreHistory{fixture: w, random: rand.New(rand.NewPCG(seed, 0))}

		return h.run(fmt.Sprintf("pool%d", names))
	}, gen.UInt64()))
}

// run runs one history, and returns what is wrong at its end.
func (h *restoreHistory) run(name string) string {
	const steps = 6

	h.pool = h.newNodePool(name, 3, "10.0.0.10-10.0.0.39")
	h.createPool(h.pool)
	h.settle()

	for range steps {
		h.step()
	}

	h.settle()
	h.requireTruth()

	problem := ""
	if h.t.Failed() {
		problem = fmt.Sprint(h.steps)
	}

	h.must(env.Client.Delete(h.t.Context(), h.pool))
	h.waitUntil("no machine is left", func() bool { return len(h.listMachines()) == 0 && len(h.listVirtualMachines()) == 0 })

	return problem
}

// settle waits until the pool has as many machines with addresses as it should have.
func (h *restoreHistory) settle() {
	h.waitUntil(fmt.Sprint("the pool has its machines after ", h.steps), func() bool {
		h.must(env.Client.Get(h.t.Context(), client.ObjectKeyFromObject(h.pool), h.pool))
		machines := len(h.listMachines())

		return machines == int(h.pool.Spec.Replicas) && h.countAllocated() == machines && len(h.listVirtualMachines()) == machines
	})
}

// step makes one random change.
func (h *restoreHistory) step() {
	machines := h.listMachines()

	switch choice := h.random.IntN(6); {
	case choice == 0:
		replicas := int32(1 + h.random.IntN(6))
		h.steps = append(h.steps, fmt.Sprint("scale to ", replicas))
		patchObject(h.fixture, h.pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = replicas })
	case choice == 1 && len(machines) > 0:
		gone := &machines[h.random.IntN(len(machines))]
		h.steps = append(h.steps, "delete "+gone.Name)
		h.must(client.IgnoreNotFound(env.Client.Delete(h.t.Context(), gone)))
	case choice == 2:
		h.steps = append(h.steps, "back up")
		h.backup = machines
	case choice == 3:
		h.bringBack()
	default:
		h.restore()
	}
}

// bringBack creates the machines of the backup that no longer exist, as a restore does.
func (h *restoreHistory) bringBack() {
	h.settle()

	for i := range h.backup {
		m := h.backup[i].DeepCopy()
		m.ObjectMeta = metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, Labels: m.Labels, Annotations: m.Annotations, OwnerReferences: m.OwnerReferences,
		}

		if err := env.Client.Create(h.t.Context(), m); err == nil {
			h.steps = append(h.steps, "bring back "+m.Name)
		} else if !apierrors.IsAlreadyExists(err) {
			h.t.Fatal(err)
		}
	}
}

// restore restores all objects without their status, with a random kind of restore. No VirtualMachine may be
// lost by that.
func (h *restoreHistory) restore() {
	h.settle()

	kind := []restoreKind{restoredUIDs, restoredUnowned, restoredInPlace}[h.random.IntN(3)]
	h.steps = append(h.steps, "restore with "+string(kind))
	before := h.vmUIDs()

	h.stopArea()
	h.restoreWithoutStatus(kind)
	h.startArea()
	h.settle()
	h.requireTruth()

	for name, uid := range before {
		if h.vmUIDs()[name] != uid {
			h.t.Errorf("VirtualMachine %s was lost after %v", name, h.steps)
		}
	}
}
