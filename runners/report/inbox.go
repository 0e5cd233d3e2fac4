// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// pendingMaxAge is how long the reports of a machine are kept if no reconcile of its claim applies
// them.
const pendingMaxAge = time.Minute

// Inbox passes the reports of machines to the claim controller in the same process. The controller writes a
// report into the claim's status in the same request as the changes that follow from the report. No conflict
// occurs, because only the controller writes. In a process without that controller, the Handler writes the
// reports itself.
type Inbox struct {
	// Enqueue enqueues a claim. If isUrgent is true, a machine waits until its report is written, so the
	// claim goes to the front of the queue.
	Enqueue func(name types.NamespacedName, isUrgent bool)

	mu        sync.Mutex
	isStarted bool
	pending   map[types.UID]*pendingReports
}

// pendingReports holds the reports of one machine that are not written to the claim's status yet.
type pendingReports struct {
	reports   []reportRecord
	updatedAt time.Time
}

// reportRecord is one report.
type reportRecord struct {
	phase                   guest.Phase
	message, reason, result string
	runnerVersion           string
	reportedAt              metav1.MicroTime
	// saved is closed when the report is written to the status. isUrgent is true if a machine waits
	// for that. tellsJobState is true if a machine waits until the RunnerJob has the report.
	saved                   chan struct{}
	isUrgent, tellsJobState bool
	// isLogKept is true if the log of the report is stored.
	isLogKept bool
}

// isSameReport reports whether two records are the same report. A machine repeats a report that had
// no response.
func (n reportRecord) isSameReport(other reportRecord) bool {
	return n.phase == other.phase && n.message == other.message && n.reason == other.reason && n.result == other.result
}

// isSaved reports whether the report was written to the claim's status since put.
func (n reportRecord) isSaved() bool {
	select {
	case <-n.saved:
		return true
	default:
		return false
	}
}

// isRecorded reports whether the report is in a claim's status.
func (n reportRecord) isRecorded(claim *v1alpha1.MachineClaim) bool {
	info := claim.Status.BootstrapInfo

	return info != nil && info.GuestPhase == string(n.phase) && info.GuestMessage == n.message &&
		(!n.phase.Last() || info.GuestReason == n.reason) && (n.result == "" || info.JobResult == n.result)
}

// Start accepts reports until the context ends. Only the leader starts the Inbox.
func (b *Inbox) Start(ctx context.Context) error {
	b.setStarted(true)
	<-ctx.Done()
	b.setStarted(false)

	return nil
}

// NeedLeaderElection returns true, because only the leader's controllers run.
func (b *Inbox) NeedLeaderElection() bool { return true }

func (b *Inbox) setStarted(isStarted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.isStarted = isStarted
}

// put adds a report to the inbox and enqueues its claim. It returns the report with a channel that
// is closed when the report is written to the status. It adds a repeated report only once. It
// returns false if the Inbox is nil or not started, because no controller would apply the report.
func (b *Inbox) put(name types.NamespacedName, uid types.UID, n reportRecord) (pending reportRecord, isAccepted bool) {
	if b == nil {
		return reportRecord{}, false
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	if !b.isStarted {
		return reportRecord{}, false
	}

	for other, kept := range b.pending {
		if n.reportedAt.Sub(kept.updatedAt) > pendingMaxAge {
			delete(b.pending, other)
		}
	}

	if b.pending == nil {
		b.pending = map[types.UID]*pendingReports{}
	}

	entry := b.pending[uid]
	if entry == nil {
		entry = &pendingReports{}
		b.pending[uid] = entry
	}

	entry.updatedAt = n.reportedAt.Time
	index := slices.IndexFunc(entry.reports, n.isSameReport)

	if index < 0 {
		n.saved = make(chan struct{})
		index, entry.reports = len(entry.reports), append(entry.reports, n)
	}

	entry.reports[index].isUrgent = entry.reports[index].isUrgent || n.isUrgent
	entry.reports[index].isLogKept = entry.reports[index].isLogKept || n.isLogKept
	b.Enqueue(name, n.isUrgent || n.tellsJobState)

	return entry.reports[index], true
}

// hasLog reports whether the log of a pending report of the machine is stored.
func (b *Inbox) hasLog(uid types.UID) bool {
	if b == nil {
		return false
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	entry := b.pending[uid]

	return entry != nil && slices.ContainsFunc(entry.reports, func(n reportRecord) bool { return n.isLogKept })
}

// isOpen reports whether the controller that applies the reports is running.
func (b *Inbox) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.isStarted
}

// Apply copies the pending reports of a claim's machine into the claim's status. It must be called
// within a step. The reports are deleted from the inbox when the status is written.
func (b *Inbox) Apply(ctx context.Context, claim *v1alpha1.MachineClaim) {
	b.mu.Lock()
	defer b.mu.Unlock()

	entry := b.pending[claim.UID]
	if entry == nil {
		return
	}

	callAfterWrite := step.OnNextSave

	for _, n := range entry.reports {
		n.applyTo(claim)

		if n.isUrgent {
			callAfterWrite = step.OnSaved
		}
	}

	applied := slices.Clone(entry.reports)
	callAfterWrite(ctx, func() { b.markSaved(claim.UID, entry, applied) })
}

// markSaved closes the channel saved of the reports, and deletes them from the entry. Call it after they were
// written to the status. Other reports stay. It ignores reports that are already deleted.
func (b *Inbox) markSaved(uid types.UID, entry *pendingReports, reports []reportRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()

	entry.reports = slices.DeleteFunc(entry.reports, func(pending reportRecord) bool {
		isSaved := slices.ContainsFunc(reports, func(n reportRecord) bool { return n.saved == pending.saved })
		if isSaved {
			close(pending.saved)
		}

		return isSaved
	})

	// put may have replaced the entry, if it was older than pendingMaxAge.
	if len(entry.reports) == 0 && b.pending[uid] == entry {
		delete(b.pending, uid)
	}
}

// applyTo copies a report into a claim's status.
func (n reportRecord) applyTo(claim *v1alpha1.MachineClaim) {
	if claim.Status.BootstrapInfo == nil {
		claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{}
	}

	info := claim.Status.BootstrapInfo
	info.GuestPhase, info.GuestMessage, info.ReportedAt = string(n.phase), n.message, &n.reportedAt

	if n.phase.Last() {
		info.GuestReason = n.reason
	}

	if n.result != "" {
		info.JobResult = n.result
	}

	if n.runnerVersion != "" {
		info.RunnerVersion = n.runnerVersion
	}

	if claim.Status.Times == nil {
		claim.Status.Times = &v1alpha1.MachineTimes{}
	}

	if claim.Status.Times.GuestStarted == nil {
		claim.Status.Times.GuestStarted = &n.reportedAt
	}
}

// newPatch returns the claim with the report, and the merge patch from the claim, for a process
// without the controller. It does not change the claim.
func (n reportRecord) newPatch(claim *v1alpha1.MachineClaim) (client.Object, client.Patch) {
	changed := claim.DeepCopy()
	n.applyTo(changed)

	return changed, client.MergeFrom(claim)
}

// needsRecord reports whether the machine must get its response only after the report is written, because no
// other source has the information. Other reports may be lost with the process. For the reports of tellsJobState, see
// awaitJobState.
func (h *Handler) needsRecord(ctx context.Context, claim *v1alpha1.MachineClaim, report guest.Report) bool {
	switch report.Phase {
	case guest.PhaseFailed:
		return true
	case guest.PhaseRunning:
		return !h.awaitJob(ctx, claim) // otherwise the pool would create another machine for the job
	case guest.PhaseFinished:
		switch report.Reason {
		case guest.ReasonJobGone, guest.ReasonIdleTimeout, guest.ReasonTerminated:
			return !h.hasJob(ctx, claim) // no webhook follows
		default:
			return !h.awaitJob(ctx, claim) // as above
		}
	default:
		return false
	}
}

// tellsJobState reports whether a report tells that the job that the machine is bound to runs or has ended. The claim's
// controller then writes that to the RunnerJob.
func tellsJobState(claim *v1alpha1.MachineClaim, phase guest.Phase) bool {
	info := claim.Status.BootstrapInfo

	return info != nil && info.BoundJob != "" && (phase == guest.PhaseRunning || phase == guest.PhaseFinished)
}

// hasJobState reports whether the RunnerJob that the machine is bound to has the state that the machine reports. The next
// process then finds it there, and the claim's status need not have the report.
func (h *Handler) hasJobState(ctx context.Context, claim *v1alpha1.MachineClaim, phase guest.Phase) bool {
	info := claim.Status.BootstrapInfo

	var job v1alpha1.RunnerJob

	err := h.Client.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: info.BoundJob}, &job)
	if err != nil || info.RunnerName == "" || job.Spec.RunnerName != info.RunnerName {
		return false
	}

	return job.Spec.State == v1alpha1.JobCompleted || job.Spec.State == v1alpha1.JobRunning && phase == guest.PhaseRunning
}

const (
	// jobTimeout is how long a report waits until the RunnerJob has what it tells, of the 5 s that a machine waits for a
	// response. recordTimeout follows it. If hundreds of jobs start at the same time, their webhooks are a second late.
	jobTimeout = 2 * time.Second
	// jobPollInterval is how often the cache is read in this time.
	jobPollInterval = 50 * time.Millisecond
)

// awaitJob waits until hasJob, and reports whether it became true within jobTimeout. Usually the platform's webhook arrives
// with the report of the machine, and then the report needs no write of its own.
func (h *Handler) awaitJob(ctx context.Context, claim *v1alpha1.MachineClaim) bool {
	return h.Logs != nil && awaitTrue(ctx, func(ctx context.Context) bool { return h.hasJob(ctx, claim) })
}

// awaitJobState waits until hasJobState, and reports whether it became true within jobTimeout. Usually it does, because the
// claim's controller writes the RunnerJob at once.
func (h *Handler) awaitJobState(ctx context.Context, claim *v1alpha1.MachineClaim, phase guest.Phase) bool {
	return awaitTrue(ctx, func(ctx context.Context) bool { return h.hasJobState(ctx, claim, phase) })
}

// awaitTrue waits until the condition is true, and reports whether it became true within jobTimeout.
func awaitTrue(ctx context.Context, condition func(context.Context) bool) bool {
	err := wait.PollUntilContextTimeout(ctx, jobPollInterval, jobTimeout, true, func(ctx context.Context) (bool, error) {
		return condition(ctx), nil
	})

	return err == nil
}

// hasJob reports whether the platform has reported which job the machine has. If it has, it also reports
// the end of the job.
func (h *Handler) hasJob(ctx context.Context, claim *v1alpha1.MachineClaim) bool {
	if h.Logs == nil {
		return false
	}

	job, err := h.Logs.findJob(ctx, claim)

	return err == nil && job != nil
}
