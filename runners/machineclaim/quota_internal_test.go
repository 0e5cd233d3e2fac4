// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// slowProvider is a hypervisor that does not respond for machines of the namespace slow until proceed is closed.
type slowProvider struct {
	hypervisor.Provider

	called, proceed chan struct{}
}

func (p *slowProvider) Reserve(_ context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	if spec.Owner.Namespace == "slow" {
		close(p.called)
		<-p.proceed
	}

	return hypervisor.Reservation{ID: 100, Node: "pve1"}, nil
}

// newQuotaReconciler returns a reconciler for the claims, and a function that places one of them on a cluster where each
// namespace may have one machine.
func newQuotaReconciler(t *testing.T, provider hypervisor.Provider, claims ...client.Object) func(client.ObjectKey) (step.Result, error) {
	t.Helper()

	scheme := k8sruntime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(claims...).WithStatusSubresource(claims...).Build()
	clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	r := &Reconciler{Client: c, Live: c, Clock: clock, StepReconciler: &step.Reconciler{Client: c, Controller: "test", Clock: clock}}

	cluster := &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}
	cluster.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{
		{Names: []string{"slow", "quick"}, Quota: &v1alpha1.NamespaceQuota{Machines: new(int32(1))}},
	}

	return func(key client.ObjectKey) (step.Result, error) {
		var claim v1alpha1.MachineClaim
		if err := c.Get(t.Context(), key, &claim); err != nil {
			return step.Result{}, err
		}

		s := &scope{Reconciler: r, claim: &claim, cluster: cluster, provider: provider, template: &v1alpha1.HypervisorMachineTemplate{}}

		var result step.Result

		_, err := step.ReconcileSteps(t.Context(), r.StepReconciler, s.claim, []step.Step[*scope]{
			{Condition: v1alpha1.ConditionPlaced, Run: func(ctx context.Context, s *scope) step.Result {
				result = place(ctx, s)

				return result
			}},
		}, s)

		return result, err
	}
}

func newQuotaClaim(namespace, name string) *v1alpha1.MachineClaim {
	claim := newClaim(name)
	claim.Namespace = namespace
	claim.UID = types.UID(namespace + "/" + name)

	return claim
}

// A hypervisor that responds slowly for a machine holds up no machine of another namespace, and the quota counts the
// machine that waits.
func TestPlacementHoldsUpNoOther(t *testing.T) {
	t.Parallel()

	provider := &slowProvider{called: make(chan struct{}), proceed: make(chan struct{})}
	place := newQuotaReconciler(t, provider, newQuotaClaim("slow", "a"), newQuotaClaim("slow", "b"), newQuotaClaim("quick", "c"))
	slow, others := make(chan step.Result, 1), make(chan step.Result, 2)

	run := func(to chan<- step.Result, namespace, name string) {
		result, err := place(client.ObjectKey{Namespace: namespace, Name: name})
		if err != nil {
			t.Errorf("claim %s/%s: %v", namespace, name, err)
		}

		to <- result
	}

	go run(slow, "slow", "a")
	<-provider.called

	go func() {
		run(others, "quick", "c")
		run(others, "slow", "b")
	}()

	for _, want := range []struct {
		claim string
		done  bool
	}{{"quick/c", true}, {"slow/b", false}} {
		select {
		case got := <-others:
			if got.IsDone() != want.done || !want.done && got.Reason() != tenancy.ReasonQuota {
				t.Errorf("claim %s: %v, want placed: %t", want.claim, got, want.done)
			}
		case <-time.After(time.Minute):
			t.Fatalf("claim %s waits for a machine of another namespace", want.claim)
		}
	}

	close(provider.proceed)

	if got := <-slow; !got.IsDone() {
		t.Errorf("claim slow/a: %v", got)
	}
}

// errOverQuota is the error of a check that a quota of placementModel fails.
var errOverQuota = errors.New("the quota is used up")

// placementModel is an API server with the claims of a namespace with a quota.
type placementModel struct {
	mu     sync.Mutex
	placed map[types.UID]v1alpha1.PlacedResources
	quota  int64
}

// list returns the placed claims.
func (m *placementModel) list() map[types.UID]v1alpha1.PlacedResources {
	m.mu.Lock()
	defer m.mu.Unlock()

	return maps.Clone(m.placed)
}

// write records the placement of a claim. It reports whether the quota still holds.
func (m *placementModel) write(claim types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.placed[claim] = v1alpha1.PlacedResources{CPU: 1}

	return int64(len(m.placed)) <= m.quota
}

func (m *placementModel) delete(claim types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()

	delete(m.placed, claim)
}

// pause lets the other goroutines run for a moment, as a call to a server would.
func pause(random *rand.Rand) {
	for range random.IntN(4) {
		runtime.Gosched()
	}
}

// tryPlace makes one attempt to place the machine of a claim. Some attempts fail, before or after the write.
func (m *placementModel) tryPlace(p *placements, key quotaKey, claim types.UID, random *rand.Rand) error {
	list := quotaList{start: p.startList(key)}

	pause(random)

	if random.IntN(16) == 0 {
		p.endList(key)

		return nil
	}

	list.placed = m.list()

	pause(random)

	err := p.reserve(key, claim, v1alpha1.PlacedResources{CPU: 1}, list, func(usage tenancy.Usage) error {
		if usage.Machines > m.quota {
			return errOverQuota
		}

		return nil
	})
	if err != nil {
		return err
	}

	pause(random)

	isWriteSent := random.IntN(4) > 0
	if isWriteSent && random.IntN(8) > 0 && !m.write(claim) {
		return fmt.Errorf("claim %s was placed beyond the quota", claim)
	}

	pause(random)
	p.end(key, claim, isWriteSent)

	return nil
}

// However placements of the same namespace overlap, the quota is never exceeded, and nothing is left of them in the end.
func TestQuotaIsNeverExceeded(t *testing.T) {
	t.Parallel()

	const (
		histories = 300
		workers   = 8
		attempts  = 12
	)

	for seed := range uint64(histories) {
		var (
			p     placements
			group sync.WaitGroup
		)

		key := quotaKey{"lab", "ci"}
		model := &placementModel{placed: map[types.UID]v1alpha1.PlacedResources{}, quota: 3}

		for worker := range uint64(workers) {
			group.Go(func() {
				random := rand.New(rand.NewPCG(seed, worker))

				for i := range attempts {
					claim := types.UID(fmt.Sprintf("%d-%d", worker, i/2)) // each claim tries twice

					if err := model.tryPlace(&p, key, claim, random); err != nil && !errors.Is(err, errOverQuota) {
						t.Errorf("seed %d: %v", seed, err)
					}

					if i%2 == 1 {
						model.delete(claim)
					}
				}
			})
		}

		group.Wait()

		if len(p.byQuota) > 0 {
			t.Fatalf("seed %d: these placements are left: %v", seed, p.byQuota[key])
		}
	}
}
