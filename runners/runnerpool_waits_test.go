// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/runnerpool"
)

// newTwoTemplates returns the fixture of a pool with the templates one and two, which uses the first one while it can.
func newTwoTemplates(t *testing.T, change func(*v1alpha1.RunnerPool)) *poolFixture {
	t.Helper()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Placement = &v1alpha1.Placement{
			Strategy: v1alpha1.PlacementPack, TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "two"}},
		}
		if change != nil {
			change(p)
		}
	})
	w.createTemplate("two")

	return w
}

// setWaiting returns a change of a claim's status that makes a condition False.
func setWaiting(condition, reason string) func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime) {
	return func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		status.Conditions = []metav1.Condition{{
			Type: condition, Status: metav1.ConditionFalse, Reason: reason, Message: "as the test says",
			LastTransitionTime: metav1.NewTime(now.Time),
		}}
	}
}

// requireKept checks that the claims still exist.
func (w *poolFixture) requireKept(claims []v1alpha1.MachineClaim) {
	w.Helper()

	left := w.listClaims()

	for _, claim := range claims {
		if !slices.ContainsFunc(left, func(c v1alpha1.MachineClaim) bool { return c.UID == claim.UID }) {
			w.Errorf("claim %s of template %s was deleted", claim.Name, claim.Spec.TemplateRef.Name)
		}
	}
}

// TestMachineWithRequestedImageWaits checks that a machine whose job requests the image of a template is not replaced:
// the other template does not have the image, so the pool would create it from the same template again and again.
func TestMachineWithRequestedImageWaits(t *testing.T) {
	t.Parallel()

	w := newTwoTemplates(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.SizeLabels = &v1alpha1.SizeLabels{Images: []v1alpha1.ImageChoice{
			{Name: "noble", TemplateRef: v1alpha1.LocalObjectReference{Name: "one"}},
			{Name: "trixie", TemplateRef: v1alpha1.LocalObjectReference{Name: "two"}},
		}}
	})
	w.queueJobs(1)

	job := getObject(w, w.namespace, "job-1", &v1alpha1.RunnerJob{})
	job.Spec.Labels = []string{"linux", "image=noble"}

	if err := env.Client.Update(w.Context(), job); err != nil {
		w.Fatal(err)
	}

	w.reconcileAfter(0)

	claims := w.listClaims()
	w.requireTemplateCounts(map[string]int{"one": 1})
	w.setClaimStatus(&claims[0], setWaiting(v1alpha1.ConditionPlaced, "NoCapacity"))
	w.reconcileAfter(time.Second)
	w.requireKept(claims)

	w.setReady(getObject(w, "", w.namespace+"-one", &v1alpha1.HypervisorCluster{}), metav1.ConditionFalse)
	w.reconcileAfter(time.Second)
	w.reconcileAfter(2 * time.Minute)
	w.requireKept(claims)
}

// TestMachineWithAddressesOfItsOwnIsKept checks that a claim is not replaced if its own addresses are in dispute: its
// machine may exist and run a job.
func TestMachineWithAddressesOfItsOwnIsKept(t *testing.T) {
	t.Parallel()

	w := newTwoTemplates(t, nil)
	w.queueJobs(1)
	w.reconcileAfter(0)

	claims := w.listClaims()
	w.setClaimStatus(&claims[0], setWaiting(v1alpha1.ConditionAddressAllocated, "AddressConflict"))
	w.reconcileAfter(time.Second)
	w.requireKept(claims)
}

// TestOldStatusReplacesNoMachine starts the operator when the status of a cluster is old, because it was not ready when the
// operator ended.
func TestOldStatusReplacesNoMachine(t *testing.T) {
	t.Parallel()

	w := newTwoTemplates(t, nil)
	w.queueJobs(1)
	w.reconcileAfter(0)

	claims := w.listClaims()
	cluster := getObject(w, "", w.namespace+"-one", &v1alpha1.HypervisorCluster{})
	w.setReady(cluster, metav1.ConditionFalse)

	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.reconciler = &runnerpool.Reconciler{
		Client: w.reconciler.Client, Live: w.reconciler.Live, Clock: w.clock, Recorder: w.reconciler.Recorder,
		Platforms: w.reconciler.Platforms, StepReconciler: w.reconciler.StepReconciler,
	}
	w.reconcileAfter(time.Second)
	w.requireKept(claims)

	w.setReady(cluster, metav1.ConditionTrue)
	w.reconcileAfter(time.Second)
	w.reconcileAfter(2 * time.Minute)
	w.requireKept(claims)
}

// TestPreparedStandbySurvivesItsCluster checks that machines on standby whose cluster is not ready for a while are kept,
// and that jobs meanwhile get machines from the other template.
func TestPreparedStandbySurvivesItsCluster(t *testing.T) {
	t.Parallel()

	w := newTwoTemplates(t, func(p *v1alpha1.RunnerPool) { p.Spec.Scaling.Warm = &v1alpha1.Warm{Stopped: 2} })
	w.reconcileAfter(0)

	standby := w.requireClaims(0, 2)
	for i := range standby {
		w.setClaimStatus(&standby[i], setPrepared)
	}

	w.setReady(getObject(w, "", w.namespace+"-one", &v1alpha1.HypervisorCluster{}), metav1.ConditionFalse)
	w.reconcileAfter(time.Second)
	w.reconcileAfter(2 * time.Minute)
	w.requireKept(standby)

	w.queueJobs(1)
	w.reconcileAfter(time.Second)
	w.reconcileAfter(time.Second)
	w.requireClaims(1, 2)
	w.requireKept(standby)
	w.requireTemplateCounts(map[string]int{"one": 2, "two": 1})
}

// TestMachineWaitsForSharedAddressPool checks that a machine that waits for an address keeps its place in the queue of the
// pool if all templates share the pool.
func TestMachineWaitsForSharedAddressPool(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Placement = &v1alpha1.Placement{TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "two"}}}
	})

	one := getObject(w, w.namespace, "one", &v1alpha1.HypervisorMachineTemplate{})
	one.Spec.Network = &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{
		Pool: &v1alpha1.AddressPool{Addresses: []v1alpha1.AddressRange{"10.9.0.10-10.9.0.19"}, PrefixLengthV4: 24},
	}}

	if err := env.Client.Update(w.Context(), one); err != nil {
		w.Fatal(err)
	}

	two := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "two"}, Spec: *one.Spec.DeepCopy(),
	}
	env.Create(w, two)
	w.setReady(two, metav1.ConditionTrue)

	w.queueJobs(1)
	w.reconcileAfter(0)

	claims := w.listClaims()
	w.setClaimStatus(&claims[0], setWaiting(v1alpha1.ConditionAddressAllocated, "PoolExhausted"))
	w.reconcileAfter(time.Second)
	w.reconcileAfter(2 * time.Minute)
	w.requireKept(claims)
}

// TestBoundMachineOfDeadCluster checks which machines that were created for one job are replaced after their cluster has
// stopped being ready. If the hypervisor may have started the machine, its job runs elsewhere only if the CI platform gives
// a job to one runner.
func TestBoundMachineOfDeadCluster(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		isGeneric, isRequested, isStarted bool
		want                              map[string]int
	}{
		"not requested":          {false, false, false, map[string]int{"two": 1}},
		"requested":              {false, true, false, map[string]int{"two": 1}},
		"started":                {false, true, true, map[string]int{"one": 1}},
		"generic, not requested": {true, false, false, map[string]int{"two": 1}},
		"generic, requested":     {true, true, false, map[string]int{"one": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newTwoTemplates(t, func(p *v1alpha1.RunnerPool) {
				if tc.isGeneric {
					config := &v1alpha1.GenericConfig{Source: "octo-org/octo-repo", Labels: []string{"linux"}, Command: []string{"make"}}
					p.Spec.Workload = v1alpha1.Workload{
						Type: v1alpha1.WorkloadGeneric, Config: &v1alpha1.WorkloadConfig{Generic: config},
					}
				}
			})
			if tc.isGeneric {
				w.platform = v1alpha1.WorkloadGeneric
			}

			w.queueJobs(1)
			w.reconcileAfter(0)

			claims := w.requireClaims(1, 0)
			w.setClaimStatus(&claims[0], func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
				status.VMRef = &v1alpha1.VMReference{VMID: "100001"}
				status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "r", BoundJob: "job-1"}

				if tc.isRequested {
					status.Times.CloneStarted = now
				}

				if tc.isStarted {
					status.Times.Started = now
				}
			})

			w.setReady(getObject(w, "", w.namespace+"-one", &v1alpha1.HypervisorCluster{}), metav1.ConditionFalse)
			w.reconcileAfter(time.Second)
			w.requireKept(claims)
			w.reconcileAfter(2 * time.Minute)
			w.finishDeletions()
			w.reconcileAfter(time.Second)
			w.requireTemplateCounts(tc.want)
		})
	}
}

// TestPoolAtMaximumOfUnreachableNode checks that the machines of a pool at its maximum whose node does not respond delay no
// jobs longer than a minute if they have ended or were not started, and that all others are kept.
func TestPoolAtMaximumOfUnreachableNode(t *testing.T) {
	t.Parallel()

	for name, setUnreachable := range map[string]func(*poolFixture, *v1alpha1.HypervisorCluster){
		"node offline": func(w *poolFixture, cluster *v1alpha1.HypervisorCluster) {
			cluster.Status.Nodes = []v1alpha1.HypervisorNodeStatus{{Name: "node-1"}, {Name: "node-2", Online: true}}
			w.setReady(cluster, metav1.ConditionTrue)
		},
		"cluster not ready": func(w *poolFixture, cluster *v1alpha1.HypervisorCluster) { w.setReady(cluster, metav1.ConditionFalse) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newTwoTemplates(t, func(p *v1alpha1.RunnerPool) { p.Spec.Scaling.MaxReplicas = 4 })
			w.queueJobs(4)
			w.reconcileAfter(0)

			claims := w.requireClaims(4, 0)
			for i, change := range []func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime){setFailed, setPrepared, setBusy, setIdle} {
				w.setClaimStatus(&claims[i], change)
			}

			if err := env.Client.Delete(w.Context(), &claims[0]); err != nil {
				t.Fatal(err)
			}

			setUnreachable(w, getObject(w, "", w.namespace+"-one", &v1alpha1.HypervisorCluster{}))

			result := w.reconcileAfter(time.Second)
			if result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
				t.Errorf("the next reconcile is after %s, want within a minute", result.RequeueAfter)
			}

			w.requireClaims(3, 0)
			w.reconcileAfter(time.Minute)
			w.reconcileAfter(time.Second)
			w.requireKept(claims[2:])
			w.requireClaims(4, 0) // two old ones, and two new ones for those that are being deleted
		})
	}
}

// TestBoundMachineFromFullStandby checks that a machine from standby whose node is full is replaced, also if it was
// activated for one job.
func TestBoundMachineFromFullStandby(t *testing.T) {
	t.Parallel()

	w := newTwoTemplates(t, nil)
	w.queueJobs(1)
	w.reconcileAfter(0)

	claims := w.requireClaims(1, 0)
	w.setClaimStatus(&claims[0], func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		setPrepared(status, now)
		setWaiting(v1alpha1.ConditionProvisioned, "NoCapacity")(status, now)
		status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "r", BoundJob: "job-1"}
		status.Times.Activated, status.Times.CloneStarted = now, now
	})
	w.reconcileAfter(time.Second)
	w.finishDeletions()
	w.reconcileAfter(time.Second)

	if left := w.requireClaims(1, 0); len(left) == 1 && left[0].UID == claims[0].UID {
		t.Error("the job waits for the full node")
	}
}

// goneClient is a client with a cache that still shows claims that others have deleted.
type goneClient struct {
	client.Client

	err error
}

func (c *goneClient) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	return c.err
}

func (c *goneClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if _, ok := obj.(*v1alpha1.MachineClaim); ok {
		return c.err
	}

	return c.Client.Patch(ctx, obj, patch, opts...)
}

// TestClaimsThatOthersDeletedGetNoEvents checks that a pool reports neither a deletion nor a start of a machine that was
// deleted by others meanwhile.
func TestClaimsThatOthersDeletedGetNoEvents(t *testing.T) {
	t.Parallel()

	claims := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "machineclaims"}
	gone, replaced := apierrors.NewNotFound(claims, "c"), apierrors.NewConflict(claims, "c", errors.New("the UID differs"))

	for name, tc := range map[string]struct {
		err   error
		warm  *v1alpha1.Warm
		state func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime)
	}{
		"deletion of a deleted claim":  {gone, nil, setWaiting(v1alpha1.ConditionPlaced, "NoCapacity")},
		"deletion of a replaced claim": {replaced, nil, setWaiting(v1alpha1.ConditionPlaced, "NoCapacity")},
		"start of a deleted claim":     {gone, &v1alpha1.Warm{Stopped: 1}, setPrepared},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newTwoTemplates(t, func(p *v1alpha1.RunnerPool) { p.Spec.Scaling.Warm = tc.warm })
			if tc.warm == nil {
				w.queueJobs(1)
			}

			w.reconcileAfter(0)
			w.setClaimStatus(&w.listClaims()[0], tc.state)
			w.queueJobs(1)

			recorder := events.NewFakeRecorder(100)
			w.reconciler.Client, w.reconciler.Recorder = &goneClient{Client: w.reconciler.Client, err: tc.err}, recorder
			w.reconcileAfter(time.Second)
			close(recorder.Events)

			for event := range recorder.Events {
				if strings.Contains(event, "Activated") || strings.Contains(event, "NoCapacity") {
					t.Errorf("there is the event %q", event)
				}
			}
		})
	}
}

// TestLargeMachineWaitsWhereItFits checks that a machine that fits on the nodes of one cluster is created there and waits
// there for capacity. It once was created from the two templates in turn, every minute.
func TestLargeMachineWaitsWhereItFits(t *testing.T) {
	t.Parallel()

	w := newTwoTemplates(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.SizeLabels = &v1alpha1.SizeLabels{MaxMemory: new(resource.MustParse("64Gi"))}
	})

	for name, memory := range map[string]string{"one": "16Gi", "two": "64Gi"} {
		amounts := &v1alpha1.ResourceAmounts{CPU: 16, Memory: resource.MustParse(memory)}
		cluster := getObject(w, "", w.namespace+"-"+name, &v1alpha1.HypervisorCluster{})
		cluster.Status.Nodes = []v1alpha1.HypervisorNodeStatus{{Name: "node", Online: true, Capacity: amounts}}
		w.setReady(cluster, metav1.ConditionTrue)
	}

	w.queueJobs(1)

	job := getObject(w, w.namespace, "job-1", &v1alpha1.RunnerJob{})
	job.Spec.Labels = []string{"linux", "memory=32Gi"}

	if err := env.Client.Update(w.Context(), job); err != nil {
		w.Fatal(err)
	}

	w.reconcileAfter(0)
	w.requireTemplateCounts(map[string]int{"two": 1})

	claims := w.listClaims()
	w.setClaimStatus(&claims[0], setWaiting(v1alpha1.ConditionPlaced, "NoCapacity"))

	for range 3 {
		w.reconcileAfter(2 * time.Minute)
		w.requireKept(claims)
	}
}

// TestStartWithoutWebhookDelaysJobForLimitedTime checks that a job that may be the one that a machine has started gets a
// machine after the time for the webhook of that job, although nothing else happens.
func TestStartWithoutWebhookDelaysJobForLimitedTime(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, nil)
	w.queueJobs(1)
	w.reconcileAfter(0)

	claims := w.requireClaims(1, 0)
	deleteObject(w, getObject(w, w.namespace, "job-1", &v1alpha1.RunnerJob{}))
	w.setClaimStatus(&claims[0], func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		setIdle(status, now)
		status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "r", GuestPhase: string(guest.PhaseRunning)}
	})
	w.queueJobs(1)

	after := w.reconcileAfter(time.Second).RequeueAfter
	w.requireClaims(1, 0)

	for begin := w.clock.Now(); len(w.listClaims()) < 2; after = w.reconcileAfter(after).RequeueAfter {
		if waited := w.clock.Since(begin) + after; after <= 0 || waited > 3*time.Minute {
			t.Fatalf("requeued after %s in a row, want when the webhook is too late", waited)
		}
	}

	w.requireClaims(2, 0)
}

// TestOneMachineTriesFullTemplate has three jobs for which both templates are full. Once a minute one of their claims may find
// out whether the other template has capacity again. The others follow one by one if it has, and otherwise stay.
func TestOneMachineTriesFullTemplate(t *testing.T) {
	t.Parallel()

	w := newTwoTemplates(t, nil)
	w.queueJobs(3)
	w.reconcileAfter(0)
	w.requireTemplateCounts(map[string]int{"one": 3})

	setStatus := func(template string, change func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime)) {
		for _, claim := range w.listClaims() {
			if claim.Spec.TemplateRef.Name == template && claim.Status.VMRef == nil {
				w.setClaimStatus(&claim, change)
			}
		}
	}
	reconcile := func(after time.Duration, want map[string]int) {
		t.Helper()
		w.reconcileAfter(after)
		w.finishDeletions()
		w.reconcileAfter(time.Second)
		w.finishDeletions()
		w.requireTemplateCounts(want)
	}
	isFull := setWaiting(v1alpha1.ConditionPlaced, "NoCapacity")

	setStatus("one", isFull)
	reconcile(time.Second, map[string]int{"two": 3}) // it was never full
	setStatus("two", isFull)

	if result := w.reconcileAfter(time.Second); result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
		t.Errorf("the next reconcile is after %s, want one when the other template may be tried", result.RequeueAfter)
	}

	for range 3 {
		reconcile(2*time.Minute, map[string]int{"one": 1, "two": 2})
		setStatus("one", isFull)
	}

	setStatus("one", setPrepared)
	reconcile(2*time.Minute, map[string]int{"one": 2, "two": 1})
	setStatus("one", setPrepared)
	reconcile(time.Second, map[string]int{"one": 3})
}
