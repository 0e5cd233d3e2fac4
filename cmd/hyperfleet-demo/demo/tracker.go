// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// claimRecord is the history of one MachineClaim as the watch reported it.
type claimRecord struct {
	name, phase, vm, runner, job string
	message, endReason           string
	guestPhase                   string
	// firstSeen and deletionSeen are the times at which the tracker received the creation and the
	// deletion from the watch. The times of the API server are not used, because they have whole seconds only.
	firstSeen, phaseSince, deletionSeen time.Time
	times                               v1alpha1.MachineTimes
}

// jobRecord is one RunnerJob as the watch reported it.
type jobRecord struct {
	name, id, title, runner string
	receiveTime             time.Time
	// booted and registered are the times of the job's machine. The claim of a short job never has them.
	booted, registered *metav1.MicroTime
}

func newJobRecord(job *v1alpha1.RunnerJob) jobRecord {
	out := jobRecord{
		name: job.Name, id: job.Spec.ID, title: job.Spec.Name, runner: job.Spec.RunnerName,
	}
	if job.Spec.ReceivedAt != nil {
		out.receiveTime = job.Spec.ReceivedAt.Time
	}

	for _, event := range job.Status.Timeline {
		switch event.Moment { //nolint:exhaustive // the others are not needed
		case v1alpha1.MomentBooted:
			out.booted = event.Time.DeepCopy()
		case v1alpha1.MomentRegistered:
			out.registered = event.Time.DeepCopy()
		}
	}

	return out
}

// tracker watches claims and jobs through the Kubernetes API and records their history.
type tracker struct {
	clock clock.PassiveClock

	mu     sync.Mutex
	claims map[string]*claimRecord
	jobs   map[string]jobRecord
}

func newTracker(clk clock.PassiveClock) *tracker {
	return &tracker{clock: clk, claims: map[string]*claimRecord{}, jobs: map[string]jobRecord{}}
}

// start starts the watches, which end with ctx. It returns when both caches are synced.
func (t *tracker) start(ctx context.Context, config *rest.Config, scheme *runtime.Scheme) error {
	objects, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("watch claims and jobs: %w", err)
	}

	for _, kind := range []client.Object{&v1alpha1.MachineClaim{}, &v1alpha1.RunnerJob{}} {
		informer, err := objects.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch claims and jobs: %w", err)
		}

		if _, err := informer.AddEventHandler(t.handler()); err != nil {
			return fmt.Errorf("watch claims and jobs: %w", err)
		}
	}

	go func() { _ = objects.Start(ctx) }()

	if !objects.WaitForCacheSync(ctx) {
		return fmt.Errorf("watch claims and jobs: %w", context.Cause(ctx))
	}

	return nil
}

func (t *tracker) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    t.handleUpsert,
		UpdateFunc: func(_, obj any) { t.handleUpsert(obj) },
		DeleteFunc: t.handleDelete,
	}
}

func (t *tracker) handleUpsert(obj any) {
	t.mu.Lock()
	defer t.mu.Unlock()

	switch o := obj.(type) {
	case *v1alpha1.MachineClaim:
		t.recordClaim(o)
	case *v1alpha1.RunnerJob:
		t.jobs[o.Name] = newJobRecord(o)
	}
}

func (t *tracker) recordClaim(c *v1alpha1.MachineClaim) {
	now := t.clock.Now()

	record, ok := t.claims[string(c.UID)]
	if !ok {
		record = &claimRecord{name: c.Name, firstSeen: now, phaseSince: now}
		t.claims[string(c.UID)] = record
	}

	phase := string(c.Status.Phase)
	if phase == "" {
		phase = string(v1alpha1.MachineClaimPending)
	}

	if phase != record.phase {
		record.phase, record.phaseSince = phase, now
	}

	if ref := c.Status.VMRef; ref != nil {
		record.vm = strings.Trim(ref.Node+"/"+ref.VMID, "/")
	}

	if info := c.Status.BootstrapInfo; info != nil {
		record.runner, record.job = info.RunnerName, info.Job
		record.guestPhase = info.GuestPhase
	}

	if c.Status.Times != nil {
		record.times = *c.Status.Times.DeepCopy()
	}

	record.endReason = c.Status.EndReason

	for _, condition := range c.Status.Conditions {
		if condition.Type == v1alpha1.ConditionReady {
			record.message = strings.TrimSpace(condition.Reason + ": " + condition.Message)
		}
	}
}

func (t *tracker) handleDelete(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}

	c, ok := obj.(*v1alpha1.MachineClaim)
	if !ok {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	t.recordClaim(c)
	t.claims[string(c.UID)].deletionSeen = t.clock.Now()
}

// currentClaims returns copies of the claims that still exist, oldest first.
func (t *tracker) currentClaims() []claimRecord {
	return slices.DeleteFunc(t.allClaims(), func(c claimRecord) bool { return !c.deletionSeen.IsZero() })
}

// allClaims returns copies of all claims, including deleted ones, oldest first. If a job was completed
// within seconds, the operator has not written the status of its claim, so allClaims takes the missing values from the job.
func (t *tracker) allClaims() []claimRecord {
	t.mu.Lock()
	defer t.mu.Unlock()

	byRunner := map[string]jobRecord{}
	for _, job := range t.jobs {
		byRunner[job.runner] = job
	}

	delete(byRunner, "") // jobs without a runner

	out := make([]claimRecord, 0, len(t.claims))

	for _, c := range t.claims {
		record := *c
		if job, ok := byRunner[c.runner]; ok {
			record = record.withJob(job)
		}

		out = append(out, record)
	}

	slices.SortFunc(out, func(a, b claimRecord) int {
		if c := a.firstSeen.Compare(b.firstSeen); c != 0 {
			return c
		}

		return strings.Compare(a.name, b.name)
	})

	return out
}

// withJob returns the claim with what the job of its runner tells.
func (c claimRecord) withJob(job jobRecord) claimRecord {
	c.times.Started = cmp.Or(c.times.Started, job.booted)
	c.times.Ready = cmp.Or(c.times.Ready, job.registered)
	c.job = cmp.Or(c.job, job.name)

	if c.phase == string(v1alpha1.MachineClaimProvisioning) || c.phase == string(v1alpha1.MachineClaimBootstrapping) {
		c.phase = string(v1alpha1.MachineClaimReady)
	}

	return c
}

// receiveTimes returns the times at which the operator first learned of each job, earliest first.
func (t *tracker) receiveTimes() []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()

	var out []time.Time

	for _, j := range t.jobs {
		if !j.receiveTime.IsZero() {
			out = append(out, j.receiveTime)
		}
	}

	slices.SortFunc(out, time.Time.Compare)

	return out
}

// rows returns the rows of the table, one for each claim that still exists.
func (t *tracker) rows() []row {
	now := t.clock.Now()
	claims := t.currentClaims()
	out := make([]row, 0, len(claims))

	for _, c := range claims {
		phase := c.phase
		if phase == string(v1alpha1.MachineClaimBootstrapping) && c.guestPhase != "" {
			phase += " (" + c.guestPhase + ")"
		}

		out = append(out, row{
			claim: c.name, phase: phase, vm: c.vm, runner: c.runner, job: t.jobTitle(c.job),
			age: now.Sub(c.firstSeen), inPhase: now.Sub(c.phaseSince),
		})
	}

	return out
}

func (t *tracker) jobTitle(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()

	if job, ok := t.jobs[name]; ok && job.title != "" {
		return job.title + " #" + job.id
	}

	return name
}

// describe returns a line with the name, phase, VM and Ready condition of a claim.
func (c claimRecord) describe() string {
	parts := []string{c.name + " " + c.phase}
	if c.vm != "" {
		parts = append(parts, "vm "+c.vm)
	}

	if c.message != "" {
		parts = append(parts, c.message)
	}

	return strings.Join(parts, ", ")
}
