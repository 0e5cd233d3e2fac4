// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func TestStandbyIsStartedFirst(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) { p.Spec.Scaling.Warm = &v1alpha1.Warm{Stopped: 2} })
	w.reconcileAfter(0)

	made := w.requireClaims(0, 2)
	for i := range made {
		w.setClaimStatus(&made[i], setPrepared)
	}

	w.reconcileAfter(time.Second)
	w.reconcileAfter(5 * time.Second) // writes the status, for which no job waits
	w.requireClaims(0, 2)

	if status := w.getPool().Status; status.StandbyReplicas != 2 || status.Replicas != 0 || status.DesiredReplicas != 0 {
		t.Errorf("status = %+v", status)
	}

	w.queueJobs(3)
	w.reconcileAfter(time.Second)

	if got := formatEvents(w.recorder); !strings.Contains(got, "ScalingUp starting 2 machines from standby, creating 1") {
		t.Errorf("the pool has the events\n%s", got)
	}

	for _, claim := range w.requireClaims(3, 2) {
		was := slices.ContainsFunc(made, func(c v1alpha1.MachineClaim) bool { return c.Name == claim.Name })
		if was && claim.Spec.Standby {
			t.Errorf("claim %s was not started, although new ones were created", claim.Name)
		}
	}

	w.reconcileAfter(time.Second)
	w.requireClaims(3, 2)

	// The node of one of them has no capacity: another machine is created in its place.
	w.setClaimStatus(&made[0], func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		status.Times.Activated = now
		status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: "NoCapacity", Message: "its node is full",
			LastTransitionTime: metav1.NewTime(now.Time),
		}}
	})
	w.reconcileAfter(time.Second)
	w.finishDeletions()
	w.reconcileAfter(time.Second)

	for _, claim := range w.requireClaims(3, 2) {
		if claim.Name == made[0].Name {
			t.Errorf("claim %s still counts for a job", claim.Name)
		}
	}
}

func TestWarmMachinesAreKept(t *testing.T) {
	t.Parallel()

	most := int32(6)
	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Scaling.Warm = &v1alpha1.Warm{Idle: 1, MaxIdle: &most}
		p.Spec.Scaling.MaxReplicas = 20
		p.Spec.Scaling.ScaleDownDelay = &metav1.Duration{Duration: time.Minute}
	})
	w.reconcileAfter(0)

	warm := w.requireClaims(1, 0)
	if suffix, found := strings.CutPrefix(warm[0].Name, w.getPool().Name+"-"); !found || len(suffix) != 5 {
		t.Errorf("the claim is %s, want the pool's name and a suffix", warm[0].Name)
	}

	w.setClaimStatus(&warm[0], setIdle)

	// Four jobs arrive within the minute that a machine takes to start: four more machines must be ready.
	w.queueJobs(4)
	w.reconcileAfter(time.Second)
	w.requireClaims(8, 0)

	var jobs v1alpha1.RunnerJobList
	if err := env.Client.List(t.Context(), &jobs, client.InNamespace(w.namespace)); err != nil {
		t.Fatal(err)
	}

	for i := range jobs.Items {
		jobs.Items[i].Spec.State = v1alpha1.JobCompleted
		if err := env.Client.Update(t.Context(), &jobs.Items[i]); err != nil {
			t.Fatal(err)
		}
	}

	for _, claim := range w.listClaims() {
		w.setClaimStatus(&claim, setIdle)
	}

	// Four machines are kept for ten minutes; machines above this number are kept for the scale-down delay.
	w.reconcileAfter(time.Second)
	w.requireClaims(8, 0)
	w.reconcileAfter(2 * time.Minute)
	w.finishDeletions()
	w.requireClaims(4, 0)

	if after := w.reconcileAfter(time.Second).RequeueAfter; after <= 0 || after > 8*time.Minute {
		t.Errorf("requeued after %s, want when the jobs are ten minutes old", after)
	}

	w.reconcileAfter(10 * time.Minute)
	w.finishDeletions()
	w.requireClaims(1, 0)
}

func TestSchedulesRaiseTheMinimum(t *testing.T) {
	t.Parallel()

	// A window that opens in the minute after the next, at any time of day.
	opens := time.Now().UTC().Truncate(time.Minute).Add(2 * time.Minute)
	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Scaling.ScaleDownDelay = &metav1.Duration{}
		p.Spec.Scaling.Schedules = []v1alpha1.Schedule{{
			Name: "soon", Start: fmt.Sprintf("%d %d * * *", opens.Minute(), opens.Hour()),
			Duration: metav1.Duration{Duration: time.Hour}, MinReplicas: 2,
		}}
	})

	result := w.reconcileAfter(0)
	w.requireClaims(0, 0)

	if want := opens.Sub(w.clock.Now()); result.RequeueAfter != want {
		t.Errorf("requeued after %s, want %s", result.RequeueAfter, want)
	}

	w.reconcileAfter(result.RequeueAfter)

	for _, claim := range w.requireClaims(2, 0) {
		w.setClaimStatus(&claim, setIdle)
	}

	w.reconcileAfter(time.Hour)
	w.requireClaims(0, 0)
}

func TestInvalidScheduleStallsPool(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		always := metav1.Duration{Duration: 48 * time.Hour}
		p.Spec.Scaling.Schedules = []v1alpha1.Schedule{
			{Name: "good", Start: "0 0 * * *", Duration: always, MinReplicas: 3},
			{Name: "cron", Start: "0 25 * * *", Duration: always, MinReplicas: 4},
			{Name: "zone", Start: "0 0 * * *", TimeZone: "Mars/Olympus", Duration: always, MinReplicas: 5},
			{Name: "many", Start: "0 0 * * *", Duration: always, MinReplicas: 9},
		}
	})
	w.reconcileAfter(0)
	w.requireClaims(3, 0)

	for _, part := range []string{`"cron"`, `"zone"`, `"many": minReplicas 9 is above scaling.maxReplicas 8`} {
		w.requireCondition("Scaling", metav1.ConditionFalse, "ScheduleInvalid", part)
		w.requireCondition(step.Stalled, metav1.ConditionTrue, "ScheduleInvalid", part)
	}

	// After the error is fixed, the pool continues.
	w.updatePool(func(s *v1alpha1.RunnerPoolSpec) { s.Scaling.Schedules = s.Scaling.Schedules[:1] })
	w.reconcileAfter(time.Second)
	w.requireCondition(step.Ready, metav1.ConditionTrue, "Ready", "")
}

func TestPausedPoolDoesNotChange(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Scaling.ScaleDownDelay = &metav1.Duration{}
		p.Spec.Scaling.MinReplicas = 2
	})
	w.reconcileAfter(0)

	for _, claim := range w.requireClaims(2, 0) {
		w.setClaimStatus(&claim, setIdle)
	}

	w.updatePool(func(s *v1alpha1.RunnerPoolSpec) { s.Paused, s.Scaling.MinReplicas = true, 0 })
	w.queueJobs(1)
	w.reconcileAfter(time.Hour)
	w.requireClaims(2, 0)
	w.requireCondition(step.Ready, metav1.ConditionTrue, "Paused", "the pool creates and deletes no machines")

	if status := w.getPool().Status; status.Replicas != 2 || status.ReadyReplicas != 2 || status.QueuedJobs != 1 {
		t.Errorf("status = %+v", status)
	}

	w.updatePool(func(s *v1alpha1.RunnerPoolSpec) { s.Paused = false })
	w.reconcileAfter(time.Second)
	w.requireClaims(1, 0)
}

// The status counts the machines in every state. It does not count a machine that has ended.
func TestStatusCountsMachines(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Scaling.MinReplicas, p.Spec.Scaling.Warm = 5, &v1alpha1.Warm{Stopped: 1}
	})
	w.reconcileAfter(0)

	// The fifth machine waits for its hypervisor.
	states := []func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime){setPrepared, setIdle, setBusy, setFailed}

	for _, claim := range w.requireClaims(5, 1) {
		switch {
		case claim.Spec.Standby:
			w.setClaimStatus(&claim, setPrepared)
		case len(states) > 0:
			w.setClaimStatus(&claim, states[0])
			states = states[1:]
		}
	}

	w.updatePool(func(s *v1alpha1.RunnerPoolSpec) { s.Paused = true }) // keeps the machines as they are
	w.reconcileAfter(time.Second)

	status := w.getPool().Status
	if status.Replicas != 4 || status.ReadyReplicas != 2 || status.BusyReplicas != 1 || status.StandbyReplicas != 1 {
		t.Errorf("status = %+v, want 4 machines, of which 2 are ready and 1 of these is busy, and 1 on standby", status)
	}
}

// A pool that may not have another machine for a queued job says so.
func TestReachedMaximumIsReported(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) { p.Spec.Scaling.MaxReplicas = 1 })
	w.queueJobs(1)
	w.reconcileAfter(0)
	w.setClaimStatus(&w.requireClaims(1, 0)[0], setBusy)
	w.reconcileAfter(time.Second)
	w.requireClaims(1, 0)
	w.requireCondition("Scaling", metav1.ConditionTrue, "AtMaximum", "scaling.maxReplicas is 1")
}

func TestExceededQuotaIsReportedAndRetried(t *testing.T) {
	t.Parallel()

	const counted = corev1.ResourceName("count/machineclaims.hyperfleet.io")

	w := newPoolFixture(t, nil)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "few"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{counted: resource.MustParse("2")}},
	}
	env.Create(w, quota)

	// The test has no quota controller, so it does what the controller would do.
	used := func(n string) {
		fresh := getObject(w, w.namespace, "few", &corev1.ResourceQuota{})
		fresh.Status = corev1.ResourceQuotaStatus{
			Hard: fresh.Spec.Hard, Used: corev1.ResourceList{counted: resource.MustParse(n)},
		}

		if err := env.Client.Status().Update(t.Context(), fresh); err != nil {
			t.Fatal(err)
		}
	}
	used("0")

	// The admission of the API server reads quotas from a cache.
	timing.WaitUntil(t, "the API server counts MachineClaims", func() bool {
		probe := createClaim(t, newClaim(w.namespace, "probe"))
		deleteObject(t, probe)

		count := getObject(t, w.namespace, "few", &corev1.ResourceQuota{}).Status.Used[counted]

		return count.Value() > 0
	})

	used("0")
	w.queueJobs(5)

	result := w.reconcileAfter(0)
	claims := w.requireClaims(2, 0)
	w.requireCondition("Scaling", metav1.ConditionFalse, "QuotaExceeded", "exceeded quota: few")

	recorded := formatEvents(w.recorder)
	if !strings.Contains(recorded, "Warning QuotaExceeded ") || !strings.Contains(recorded, "exceeded quota: few") {
		t.Errorf("no warning of the quota: %s", recorded)
	}

	if result.RequeueAfter != 30*time.Second {
		t.Errorf("requeued after %s, want 30s", result.RequeueAfter)
	}

	// Reconciles in between create no claims, although the quota has capacity.
	used("0")
	w.reconcileAfter(10 * time.Second)
	w.requireClaims(2, 0)
	w.requireCondition("Scaling", metav1.ConditionFalse, "QuotaExceeded", "exceeded quota: few")

	// A deleted claim frees quota: the pool retries soon.
	deleteObject(t, &claims[0])
	w.finishDeletions()
	used("1")
	w.reconcileAfter(time.Second)
	w.reconcileAfter(3 * time.Second)
	w.requireClaims(2, 0)
	w.requireCondition("Scaling", metav1.ConditionFalse, "QuotaExceeded", "exceeded quota: few")

	if recorded := formatEvents(w.recorder); strings.Contains(recorded, "QuotaExceeded") {
		t.Errorf("the warning is repeated: %s", recorded)
	}

	deleteObject(t, quota)
	w.reconcileAfter(30 * time.Second)
	w.requireClaims(5, 0)
	w.requireCondition("Scaling", metav1.ConditionTrue, "ScalingUp", "creating 3 machines")
}

// lossyClient is a client with a cache that shows no claims, and whose creations of claims end with an error.
type lossyClient struct {
	client.Client

	// createErr is returned after the claim was created if isCreated is true, and instead of creating it otherwise.
	createErr error
	isCreated bool
	creates   int
}

func (c *lossyClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	c.creates++

	if c.isCreated {
		if err := c.Client.Create(ctx, obj, opts...); err != nil {
			return err
		}
	}

	return c.createErr
}

func (c *lossyClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.MachineClaimList); ok {
		return nil
	}

	return c.Client.List(ctx, list, opts...)
}

// An overloaded API server creates a claim and responds with an error, and the cache does not show the claim yet. The
// pool does not create another one for the same job, unless the first was certainly not created. If the pool does not
// know, it asks the API server after a while, also if nothing else happens.
func TestClaimWithLostResponseIsNotCreatedTwice(t *testing.T) {
	t.Parallel()

	timeout := apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
	broken := &url.Error{Op: "Post", URL: "https://kube", Err: io.ErrUnexpectedEOF}
	rejected := apierrors.NewTooManyRequests("later", 1)
	webhook := apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example": no endpoints available`))
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "machineclaims"}, "pool-abcde")

	for name, tc := range map[string]struct {
		err       error
		isCreated bool
		creates   int
	}{
		"created, timeout":           {timeout, true, 1},
		"created, broken connection": {broken, true, 1},
		"created, repeated":          {exists, true, 1},
		"not created, timeout":       {timeout, false, 2},
		"not created, name is taken": {exists, false, 2},
		"not created, rejected":      {rejected, false, 4},
		"not created, no webhook":    {webhook, false, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newPoolFixture(t, nil)
			w.queueJobs(1)

			lossy := &lossyClient{Client: w.reconciler.Client, createErr: tc.err, isCreated: tc.isCreated}
			w.reconciler.Client = lossy

			// The controller requests the claim from the API server after 10 s.
			for _, after := range []time.Duration{0, time.Second, 2 * time.Second, 12 * time.Second} {
				w.clock.SetTime(w.clock.Now().Add(after))

				name := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: "pool"}}
				result, err := w.reconciler.Reconcile(t.Context(), name) // the failed creation is an error

				if err == nil && (result.RequeueAfter <= 0 || result.RequeueAfter > 10*time.Second) {
					t.Errorf("the next reconcile is after %s, want one that asks for the claim", result.RequeueAfter)
				}
			}

			if lossy.creates != tc.creates {
				t.Errorf("%d creations, want %d", lossy.creates, tc.creates)
			}
		})
	}
}
