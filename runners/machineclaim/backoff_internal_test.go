// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// findMaxAttempts returns the maximum number of attempts in any period of the given length.
func findMaxAttempts(tries []time.Time, length time.Duration) int {
	most := 0

	for first, from := 0, 0; first < len(tries); first++ {
		for tries[first].Sub(tries[from]) > length {
			from++
		}

		most = max(most, first-from+1)
	}

	return most
}

// While a claim backs off, its condition keeps the error of the last attempt.
func TestBackoffKeepsTheLastError(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c"}}
	s := &scope{Reconciler: &Reconciler{Clock: clk, Trigger: &watch.Source{}}, claim: claim}

	s.handleError(v1alpha1.ConditionProvisioned, &hypervisor.Error{Reason: "CloneFailed", Message: "no space on local-lvm"}, "ProvisioningFailed")
	claim.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: "CloneFailed", Message: "no space on local-lvm",
	}}

	if got := s.checkBackoff(v1alpha1.ConditionProvisioned); got.IsDone() || got.Reason() != "CloneFailed" || got.Message() != "no space on local-lvm" {
		t.Errorf("during the back-off: %v", got)
	}
}

// A fault of one hour causes at most twelve attempts a minute of one claim, and one attempt a second of all
// claims together, whatever enqueues them and however often the operator restarts.
func TestPropertyBackoffHolds(t *testing.T) {
	t.Parallel()

	property.Check(t, "tries are bounded", property.Options{Runs: 40, Workers: 2}, prop.ForAll(func(claims, restarts int, seed uint64) string {
		random := rand.New(rand.NewPCG(seed, 1))
		clk := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
		r := &Reconciler{Clock: clk, Trigger: &watch.Source{}}
		machineIdentity := make([][]time.Time, claims)
		objects := make([]*v1alpha1.MachineClaim, claims)

		for i := range objects {
			objects[i] = &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("c", i)}}
			objects[i].Status.VMRef = &v1alpha1.VMReference{HypervisorCluster: "pve", Node: "pve1"}
		}

		var all []time.Time

		err := &hypervisor.Error{Reason: "CloneFailed", Message: "clone failed"}
		start := clk.Now()

		started := restarts

		for clk.Since(start) < time.Hour {
			clk.Step(time.Duration(random.IntN(200)) * time.Millisecond)

			if restarts > 0 && random.IntN(20000) == 0 {
				restarts--
				r = &Reconciler{Clock: clk, Trigger: &watch.Source{}}
			}

			at := random.IntN(claims)
			s := &scope{Reconciler: r, claim: objects[at]}

			if !s.checkBackoff(v1alpha1.ConditionProvisioned).IsDone() {
				continue
			}

			if !s.admit(v1alpha1.ConditionProvisioned, s.hypervisorCause()).IsDone() {
				continue
			}

			machineIdentity[at], all = append(machineIdentity[at], clk.Now()), append(all, clk.Now())
			s.handleError(v1alpha1.ConditionProvisioned, err, "ProvisioningFailed")
		}

		for i, tries := range machineIdentity {
			if most := findMaxAttempts(tries, time.Minute); most > 12 {
				return fmt.Sprintf("claim %d was tried %d times within a minute", i, most)
			}

			if len(tries) == 0 {
				return fmt.Sprintf("claim %d was never tried", i)
			}
		}

		// After each start, the failures before a circuit breaker opens are added.
		if most := findMaxAttempts(all, time.Minute); most > 61+openThreshold*(1+started) {
			return fmt.Sprintf("%d tries within a minute", most)
		}

		return ""
	}, gen.IntRange(1, 40), gen.IntRange(0, 3), gen.UInt64()))
}

// A claim that has failed calls nothing until its back-off is over, whatever enqueues it. A claim without a pool is then
// tried once more. The last write of its status may be refused.
func TestFailedClaimStaysFailed(t *testing.T) {
	t.Parallel()

	const tries = 2

	checks := map[string]func(*scope) step.Result{
		v1alpha1.ConditionPlaced: func(s *scope) step.Result {
			return s.checkCreateBackoff(v1alpha1.ConditionPlaced)
		},
		v1alpha1.ConditionProvisioned: (*scope).checkProvisionBackoff,
	}

	for _, tc := range []struct {
		condition, pool string
		isRefused       bool
	}{
		{condition: v1alpha1.ConditionPlaced},
		{condition: v1alpha1.ConditionPlaced, isRefused: true},
		{condition: v1alpha1.ConditionPlaced, pool: "linux"},
		{condition: v1alpha1.ConditionPlaced, pool: "linux", isRefused: true},
		{condition: v1alpha1.ConditionProvisioned},
		{condition: v1alpha1.ConditionProvisioned, isRefused: true},
		{condition: v1alpha1.ConditionProvisioned, pool: "linux"},
		{condition: v1alpha1.ConditionProvisioned, pool: "linux", isRefused: true},
	} {
		t.Run(fmt.Sprintf("%s pool %q refused %t", tc.condition, tc.pool, tc.isRefused), func(t *testing.T) {
			t.Parallel()

			clk := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
			s := &scope{
				Reconciler: &Reconciler{Clock: clk, Trigger: &watch.Source{}, MaxAttempts: tries},
				claim:      &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c"}},
			}

			s.claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerID: "7"}

			if tc.pool != "" {
				s.claim.Spec.RunnerPoolRef = &v1alpha1.LocalObjectReference{Name: tc.pool}
			}

			attempts := 0
			runStep := func() step.Result {
				result := checks[tc.condition](s)
				if result.IsDone() {
					attempts++

					result = s.handleCreateError(tc.condition, &hypervisor.Error{Reason: "StartFailed", Message: "boom"}, "")
				}

				meta.SetStatusCondition(&s.claim.Status.Conditions, metav1.Condition{
					Type: tc.condition, Status: metav1.ConditionFalse, Reason: result.Reason(), Message: result.Message(),
				})

				return result
			}

			runStep()
			clk.Step(maxBackoff)

			before := s.claim.DeepCopy()
			failure := runStep()

			if tc.isRefused {
				s.claim = before
			}

			for i := range 4 {
				got := runStep()
				if got.String() != failure.String() || s.claim.Status.Phase != v1alpha1.MachineClaimFailed {
					t.Errorf("a failed claim that is enqueued: %s, phase %s; want %s", got, s.claim.Status.Phase, failure)
				}

				// What has enqueued the claim may be the fix.
				until := s.claim.Status.Backoff.Until.Sub(clk.Now())
				if next := got.RequeueAfter(); tc.pool == "" && next != until && (i > 0 || !tc.isRefused) {
					t.Errorf("the claim is tried again after %s, want %s", next, until)
				}
			}

			// Nothing that could be the fix enqueues a claim that has a machine.
			if tc.condition == v1alpha1.ConditionProvisioned {
				clk.Step(failedBackoff - time.Second)
				runStep()
			}

			if attempts != tries || s.claim.Status.Attempts != tries {
				t.Errorf("%d attempts, %d in the status; want %d", attempts, s.claim.Status.Attempts, tries)
			}

			clk.Step(time.Hour)
			runStep()

			if isRetried := attempts > tries; isRetried != (tc.pool == "") {
				t.Errorf("%d attempts after an hour", attempts)
			}
		})
	}
}

// A success of one claim closes the circuit breaker: the other claims no longer wait for their turns.
func TestSuccessClosesCircuitBreaker(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	r := &Reconciler{Clock: clk, Trigger: &watch.Source{}}

	claim := func(name string) *scope {
		c := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
		c.Status.VMRef = &v1alpha1.VMReference{HypervisorCluster: "pve", Node: "pve1"}

		return &scope{Reconciler: r, claim: c}
	}

	for i := range openThreshold {
		claim(fmt.Sprint("failed", i)).handleError(v1alpha1.ConditionProvisioned, errors.New("boom"), "CloneFailed")
	}

	fresh := claim("fresh")

	result := fresh.admit(v1alpha1.ConditionProvisioned, fresh.hypervisorCause())
	if result.IsDone() || result.Message() != "other machines fail with: boom" {
		t.Fatalf("a new claim while the circuit breaker of its node is open: %s", result)
	}

	other := claim("other")
	other.claim.Status.VMRef.Node = "pve2"

	if result := other.admit(v1alpha1.ConditionProvisioned, other.hypervisorCause()); !result.IsDone() {
		t.Error("machines on another node wait too")
	}

	claim("failed0").recordSuccess(fresh.hypervisorCause())

	if result := fresh.admit(v1alpha1.ConditionProvisioned, fresh.hypervisorCause()); !result.IsDone() {
		t.Error("the claim still waits although the node works again")
	}
}

// Updates of the controller itself do not enqueue the claim, and updates of all other components do.
func TestOwnWritesDoNotEnqueue(t *testing.T) {
	t.Parallel()

	now := metav1.NewMicroTime(time.Unix(1_800_000_000, 0))
	base := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 1}}
	base.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{
		RunnerName: "a", Handover: &v1alpha1.CredentialHandover{}, Identity: &v1alpha1.MachineIdentity{},
	}
	base.Status.NetworkInfo = &v1alpha1.NetworkInfo{}

	cases := map[string]struct {
		change func(*v1alpha1.MachineClaim)
		want   bool
	}{
		"its own attempts":     {func(c *v1alpha1.MachineClaim) { c.Status.Attempts++ }, false},
		"its own backoff":      {func(c *v1alpha1.MachineClaim) { c.Status.Backoff = &v1alpha1.Backoff{Failures: 1} }, false},
		"its own times":        {func(c *v1alpha1.MachineClaim) { c.Status.Times = &v1alpha1.MachineTimes{Placed: &now} }, false},
		"its own condition":    {func(c *v1alpha1.MachineClaim) { c.Status.Conditions = []metav1.Condition{{Type: "Placed"}} }, false},
		"its own choice":       {func(c *v1alpha1.MachineClaim) { c.Status.BootstrapInfo.RunnerID = "7" }, false},
		"its spec":             {func(c *v1alpha1.MachineClaim) { c.Generation++ }, true},
		"its deletion":         {func(c *v1alpha1.MachineClaim) { c.DeletionTimestamp = &metav1.Time{Time: now.Time} }, true},
		"an annotation":        {func(c *v1alpha1.MachineClaim) { c.Annotations = map[string]string{"a": "b"} }, true},
		"the machine's report": {func(c *v1alpha1.MachineClaim) { c.Status.BootstrapInfo.ReportedAt = &now }, true},
		"a credential's use":   {func(c *v1alpha1.MachineClaim) { c.Status.BootstrapInfo.Handover.UsedAt = &now }, true},
		"a device identity":    {func(c *v1alpha1.MachineClaim) { c.Status.BootstrapInfo.Identity.Device = &v1alpha1.DeviceIdentity{} }, true},
		"its addresses":        {func(c *v1alpha1.MachineClaim) { c.Status.NetworkInfo.Addresses = []string{"192.0.2.1/24"} }, true},
		"the reason for a missing address": {func(c *v1alpha1.MachineClaim) {
			c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAddressAllocated, Reason: "PoolExhausted"}}
		}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			after := base.DeepCopy()
			tc.change(after)

			if got := newExternalChangePredicate().Update(event.UpdateEvent{ObjectOld: base, ObjectNew: after}); got != tc.want {
				t.Errorf("isExternalChange() = %v, want %v", got, tc.want)
			}
		})
	}
}

// State in memory about claims, circuit breakers and runner lists is dropped when the claims are deleted.
func TestStateOfDeletedClaimsIsFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	clk := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	claims := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Clock: clk}

	heap.CheckNoLeak(t, "claims", func(number int) {
		claim := &v1alpha1.MachineClaim{}
		claim.Namespace, claim.Name, claim.UID = "ns", fmt.Sprintf("c%d", number), types.UID(strconv.Itoa(number))
		name := client.ObjectKeyFromObject(claim)

		for range openThreshold {
			claims.breakers.recordFailure(fmt.Sprintf("scope %d", number), name, clk.Now(), "does not answer")
		}

		claims.breakers.recordAttempts(name, attemptRecord{message: "does not answer"})
		claims.retired.add(claim)
		claims.deregistered.add(claim)
		claims.issued.add(claim)
		claims.consolesKept.add(claim)
		claims.runnerLists.reserve(fmt.Sprintf("scope %d", number), clk.Now(), clk.Now())

		if _, err := claims.Reconcile(t.Context(), reconcile.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}

		clk.SetTime(clk.Now().Add(forgetAfter))
	})
}
