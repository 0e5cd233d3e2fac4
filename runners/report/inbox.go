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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// letterAge is how long the reports of a machine whose claim nobody looks at are kept.
const letterAge = time.Minute

// Inbox brings reports to the controller of claims where it runs in the same process: it
// writes them with what follows from them, in one write and without a conflict. Elsewhere
// the Handler writes them itself.
type Inbox struct {
	// Wake asks for a pass over a claim; one that a machine waits for comes first.
	Wake func(name types.NamespacedName, waitsFor bool)

	mu      sync.Mutex
	open    bool
	letters map[types.UID]*letter
}

// letter is what was reported of one machine and is not on record yet.
type letter struct {
	notes []note
	at    time.Time
}

// note is one report.
type note struct {
	phase                   guest.Phase
	message, reason, result string
	at                      metav1.MicroTime
	// read is closed when the note is on record; urgent says that somebody waits for that.
	read   chan struct{}
	urgent bool
	// kept says that the log that came with it is kept.
	kept bool
}

// says tells whether two notes are the same report: a machine repeats one that had no answer.
func (n note) says(other note) bool {
	return n.phase == other.phase && n.message == other.message && n.reason == other.reason && n.result == other.result
}

// onRecord tells whether the report is in a claim's status.
func (n note) onRecord(claim *v1alpha1.MachineClaim) bool {
	info := claim.Status.BootstrapInfo

	return info != nil && info.GuestPhase == string(n.phase) && info.GuestMessage == n.message &&
		(!n.phase.Last() || info.GuestReason == n.reason) && (n.result == "" || info.JobResult == n.result)
}

// Start takes reports until the context ends. It is for the process that is the leader.
func (b *Inbox) Start(ctx context.Context) error {
	b.setOpen(true)
	<-ctx.Done()
	b.setOpen(false)

	return nil
}

// NeedLeaderElection says that only the leader's controllers run.
func (b *Inbox) NeedLeaderElection() bool { return true }

func (b *Inbox) setOpen(open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.open = open
}

// put takes a report, and gives it back with a channel that is closed when it is on record. One that
// is repeated is taken once. It takes none where no controller would read it.
func (b *Inbox) put(name types.NamespacedName, uid types.UID, n note) (note, bool) {
	if b == nil {
		return note{}, false
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	if !b.open {
		return note{}, false
	}

	for other, kept := range b.letters {
		if n.at.Sub(kept.at) > letterAge {
			delete(b.letters, other)
		}
	}

	if b.letters == nil {
		b.letters = map[types.UID]*letter{}
	}

	of := b.letters[uid]
	if of == nil {
		of = &letter{}
		b.letters[uid] = of
	}

	of.at = n.at.Time
	at := slices.IndexFunc(of.notes, n.says)

	if at < 0 {
		n.read = make(chan struct{})
		at, of.notes = len(of.notes), append(of.notes, n)
	}

	of.notes[at].urgent = of.notes[at].urgent || n.urgent
	of.notes[at].kept = of.notes[at].kept || n.kept
	b.Wake(name, n.urgent)

	return of.notes[at], true
}

// hasLog tells whether a machine's log is kept that came with a report which is not on record yet.
func (b *Inbox) hasLog(uid types.UID) bool {
	if b == nil {
		return false
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	of := b.letters[uid]

	return of != nil && slices.ContainsFunc(of.notes, func(n note) bool { return n.kept })
}

// isOpen tells whether the controller runs that reads the inbox.
func (b *Inbox) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.open
}

// Apply puts what was reported of a claim's machine into its status, within a step.
func (b *Inbox) Apply(ctx context.Context, claim *v1alpha1.MachineClaim) {
	b.mu.Lock()
	defer b.mu.Unlock()

	of := b.letters[claim.UID]
	if of == nil {
		return
	}

	onRecord := step.Afterwards

	for _, n := range of.notes {
		n.apply(claim)

		if n.urgent {
			onRecord = step.OnSaved
		}
	}

	count := len(of.notes)
	onRecord(ctx, func() { b.done(claim.UID, of, count) })
}

// done drops the notes that are on record. Others may have come since.
func (b *Inbox) done(uid types.UID, of *letter, count int) {
	b.mu.Lock()
	defer b.mu.Unlock()

	count = min(count, len(of.notes))

	for _, n := range of.notes[:count] {
		close(n.read)
	}

	of.notes = of.notes[count:]

	if len(of.notes) == 0 && b.letters[uid] == of {
		delete(b.letters, uid)
	}
}

// apply puts a report into a claim's status.
func (n note) apply(claim *v1alpha1.MachineClaim) {
	if claim.Status.BootstrapInfo == nil {
		claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{}
	}

	info := claim.Status.BootstrapInfo
	info.GuestPhase, info.GuestMessage, info.ReportedAt = string(n.phase), n.message, &n.at

	if n.phase.Last() {
		info.GuestReason = n.reason
	}

	if n.result != "" {
		info.JobResult = n.result
	}

	if claim.Status.Times == nil {
		claim.Status.Times = &v1alpha1.MachineTimes{}
	}

	if claim.Status.Times.GuestStarted == nil {
		claim.Status.Times.GuestStarted = &n.at
	}
}

// patch is the report as a merge patch of a claim's status, for a process without the
// controller. The claim is as it was read.
func (n note) patch(claim *v1alpha1.MachineClaim) (client.Object, client.Patch) {
	changed := claim.DeepCopy()
	n.apply(changed)

	return changed, client.MergeFrom(claim)
}

// mustBeOnRecord tells whether a machine's report is answered only when it is written: where
// nobody else would tell what it says. Any other is lost with the process, without harm.
func (h *Handler) mustBeOnRecord(ctx context.Context, claim *v1alpha1.MachineClaim, phase guest.Phase) bool {
	info := claim.Status.BootstrapInfo
	bound := info != nil && info.BoundJob != ""

	switch phase {
	case guest.PhaseFailed:
		return true
	case guest.PhaseRunning, guest.PhaseFinished:
		return bound || !h.hasJob(ctx, claim) // else its machine would be made once more
	default:
		return false
	}
}

// hasJob tells whether the platform has said which job the machine has: it then tells of the
// job's end as well.
func (h *Handler) hasJob(ctx context.Context, claim *v1alpha1.MachineClaim) bool {
	if h.Logs == nil {
		return false
	}

	job, err := h.Logs.jobOf(ctx, claim)

	return err == nil && job != nil
}
