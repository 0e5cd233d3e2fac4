// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Bounds of a timeline, those of RunnerJob.status.timeline.
const (
	maxEvents  = 64
	maxWaits   = 16
	maxMessage = 1024
)

// Machine is what a job's timeline takes from a MachineClaim.
type Machine struct {
	// UID of the claim, which its trace is named by.
	UID string
	// Name of the claim; VM and Node say where its machine is.
	Name, VM, Node string
	// Keeper is the claim's pool, or its template if no pool made it.
	Keeper string
	// Runner of the machine.
	Runner string
	// Job that its runner took, and BoundJob that it was made for, by the names of their
	// RunnerJobs.
	Job, BoundJob string
	// Times of its life.
	Times v1alpha1.MachineTimes
	// EndReason says in one word why its life ended.
	EndReason string
	// Gone is when the claim was gone, and with it the machine; zero while it is there.
	Gone time.Time
}

// MachineOf reads a claim.
func MachineOf(claim *v1alpha1.MachineClaim) Machine {
	out := Machine{UID: string(claim.UID), Name: claim.Name, Keeper: claim.Spec.TemplateRef.Name, EndReason: claim.Status.EndReason}

	if ref := claim.Spec.RunnerPoolRef; ref != nil {
		out.Keeper = ref.Name
	}

	if ref := claim.Status.VMRef; ref != nil {
		out.VM, out.Node = ref.VMID, ref.Node
	}

	if info := claim.Status.BootstrapInfo; info != nil {
		out.Runner, out.Job, out.BoundJob = info.RunnerName, info.Job, info.BoundJob
	}

	if times := claim.Status.Times; times != nil {
		out.Times = *times.DeepCopy()
	}

	return out
}

// Cause is what a job waits for: one word, and a sentence that names the fix. It is the
// same sentence as long as it is the same cause: no counts, no times.
type Cause struct{ Reason, Message string }

// TimelineInput is what is known of a job now, for Timeline.
type TimelineInput struct {
	// Job is the platform's word.
	Job workload.Job
	// Before is the timeline so far.
	Before []v1alpha1.JobEvent
	// Machine that has the job, or was made for it; nil if none is known (any more).
	Machine *Machine
	// Pool that answers for the job; empty if none does.
	Pool string
	// Cause that the job waits for; zero if it waits for nothing in particular.
	Cause Cause
	Now   time.Time
}

// Timeline gives the timeline of a job, oldest first. It is pure. Each moment is in it
// once, with the time of its source: the platform, or the machine's claim. Waiting may
// come again with another cause. Nothing that is in it is ever lost, whatever is known
// no longer, but for the moments of a machine that did not get to run the job, which its
// successor replaces. The same input again changes nothing.
func Timeline(input TimelineInput) []v1alpha1.JobEvent {
	t := newTimelineBuilder(input)
	t.forge()
	t.machine()
	t.wait()

	return t.sorted()
}

// timelineBuilder is one run of Timeline.
type timelineBuilder struct {
	TimelineInput

	once  map[v1alpha1.JobMoment]v1alpha1.JobEvent
	waits []v1alpha1.JobEvent
}

func newTimelineBuilder(input TimelineInput) *timelineBuilder {
	t := &timelineBuilder{TimelineInput: input, once: map[v1alpha1.JobMoment]v1alpha1.JobEvent{}}

	for _, event := range input.Before {
		if event.Moment == v1alpha1.MomentWaiting {
			t.waits = append(t.waits, event)
		} else {
			t.once[event.Moment] = event
		}
	}

	return t
}

// note writes a moment. What is noted has a better source than what was there before.
func (t *timelineBuilder) note(moment v1alpha1.JobMoment, at time.Time, message string) {
	t.once[moment] = jobEvent(moment, at, message)
}

func jobEvent(moment v1alpha1.JobMoment, at time.Time, message string) v1alpha1.JobEvent {
	return v1alpha1.JobEvent{
		Moment: moment, Time: metav1.NewMicroTime(at.UTC().Truncate(time.Microsecond)), Message: bounded(message),
	}
}

// since is when a moment was, as told before; else now.
func (t *timelineBuilder) since(moment v1alpha1.JobMoment) time.Time {
	if before, ok := t.once[moment]; ok {
		return before.Time.Time
	}

	return t.Now
}

// forge tells the platform's part.
func (t *timelineBuilder) forge() {
	if at := t.Job.QueuedAt; at != nil {
		t.note(v1alpha1.MomentQueued, at.Time, "")
	}

	if at := t.Job.ReceivedAt; at != nil {
		t.note(v1alpha1.MomentReceived, at.Time, "")
	}

	if t.Pool != "" {
		t.note(v1alpha1.MomentDecided, t.since(v1alpha1.MomentDecided), "RunnerPool "+t.Pool+" answers for the job")
	}

	t.started()

	if t.Job.State == v1alpha1.JobCompleted {
		t.note(v1alpha1.MomentFinished, t.end(), t.Job.Conclusion)
	}
}

// started tells when a runner took the job. A job can be over without: cancelled, skipped.
func (t *timelineBuilder) started() {
	ran := t.Job.RunnerName != "" || t.Job.State == v1alpha1.JobRunning
	message := ""

	if t.Job.RunnerName != "" {
		message = "runner " + t.Job.RunnerName
	}

	switch {
	case ran && t.Job.StartedAt != nil:
		t.note(v1alpha1.MomentStarted, t.Job.StartedAt.Time, message)
	case t.Machine != nil && t.Machine.Times.JobStarted != nil:
		t.note(v1alpha1.MomentStarted, t.Machine.Times.JobStarted.Time, cmp.Or(message, "runner "+t.Machine.Runner))
	case ran:
		t.note(v1alpha1.MomentStarted, t.since(v1alpha1.MomentStarted), message)
	}
}

func (t *timelineBuilder) end() time.Time {
	switch {
	case t.Job.CompletedAt != nil:
		return t.Job.CompletedAt.Time
	case t.Machine != nil && t.Machine.Times.Stopped != nil:
		return t.Machine.Times.Stopped.Time
	default:
		return t.since(v1alpha1.MomentFinished)
	}
}

// machine tells the machine's part.
func (t *timelineBuilder) machine() {
	if t.Machine == nil {
		return
	}

	t.replaced()

	times := &t.Machine.Times
	where := of(t.Machine.Name)

	if t.Machine.VM != "" {
		where += "VM " + t.Machine.VM
		if t.Machine.Node != "" {
			where += " on node " + t.Machine.Node
		}
	}

	if times.Cloned != nil {
		t.noteOnce(v1alpha1.MomentCloned, times.Cloned.Time, where)
	}

	if times.Started != nil {
		message := where
		if times.Activated != nil {
			message += ", from standby"
		}

		t.noteOnce(v1alpha1.MomentBooted, times.Started.Time, message)
	}

	if times.Ready != nil {
		t.noteOnce(v1alpha1.MomentRegistered, times.Ready.Time, of(t.Machine.Name)+"runner "+t.Machine.Runner)
	}

	t.gone()
}

// of begins the message of a moment of a machine.
func of(claim string) string { return "MachineClaim " + claim + ": " }

// noteOnce writes a moment of a machine that does not move: only where it was is told
// once and for all, since machines may be moved between nodes.
func (t *timelineBuilder) noteOnce(moment v1alpha1.JobMoment, at time.Time, message string) {
	if _, told := t.once[moment]; !told {
		t.note(moment, at, message)
	}
}

// replaced removes the moments of another machine: one that was made for the job and
// ended before it took it.
func (t *timelineBuilder) replaced() {
	for _, moment := range []v1alpha1.JobMoment{
		v1alpha1.MomentCloned, v1alpha1.MomentBooted, v1alpha1.MomentRegistered, v1alpha1.MomentDestroyed,
	} {
		if told, ok := t.once[moment]; ok && !strings.HasPrefix(told.Message, of(t.Machine.Name)) {
			delete(t.once, moment)
		}
	}
}

// gone tells that the machine is gone, if it was the job's to the end.
func (t *timelineBuilder) gone() {
	_, started := t.once[v1alpha1.MomentStarted]

	switch {
	case t.Machine.Gone.IsZero():
	case started || t.Job.State == v1alpha1.JobCompleted:
		message := of(t.Machine.Name) + "gone"
		if t.Machine.VM != "" {
			message = of(t.Machine.Name) + "VM " + t.Machine.VM + " is gone"
		}

		if t.Machine.EndReason != "" {
			message += ": " + t.Machine.EndReason
		}

		if t.Machine.EndReason == v1alpha1.EndReasonLeftBehind {
			message = of(t.Machine.Name) + "VM " + t.Machine.VM + " is not this machine's by its notes, and was left as it is"
		}

		t.noteOnce(v1alpha1.MomentDestroyed, t.Machine.Gone, message)
	case t.Cause == Cause{}:
		t.Cause = Cause{"MachineLost", "MachineClaim " + t.Machine.Name + " ended before it took the job (" +
			cmp.Or(t.Machine.EndReason, "it was deleted") + "): another machine is made"}
	}
}

// wait tells what the job waits for, if that is news.
func (t *timelineBuilder) wait() {
	_, started := t.once[v1alpha1.MomentStarted]
	over := t.Job.State == v1alpha1.JobRunning || t.Job.State == v1alpha1.JobCompleted

	if t.Cause.Reason == "" || started || over {
		return
	}

	message := t.Cause.Reason + ": " + t.Cause.Message

	if last := len(t.waits) - 1; last >= 0 && strings.HasPrefix(t.waits[last].Message, t.Cause.Reason+": ") {
		t.waits[last].Message = bounded(message)

		return
	}

	t.waits = append(t.waits, jobEvent(v1alpha1.MomentWaiting, t.Now, message))

	// The first cause and the latest ones tell most.
	if extra := len(t.waits) - maxWaits; extra > 0 {
		t.waits = slices.Delete(t.waits, 1, 1+extra)
	}
}

// sorted gives the timeline by time. Platforms' times are whole seconds: within one,
// start and end come after what has to be before them.
func (t *timelineBuilder) sorted() []v1alpha1.JobEvent {
	out := slices.Clone(t.waits)
	for _, event := range t.once {
		out = append(out, event)
	}

	keys := map[v1alpha1.JobMoment]time.Time{}

	for _, moment := range []v1alpha1.JobMoment{v1alpha1.MomentStarted, v1alpha1.MomentFinished} {
		keys[moment] = t.key(moment, out, keys)
	}

	key := func(e v1alpha1.JobEvent) time.Time {
		if at, ok := keys[e.Moment]; ok {
			return at
		}

		return e.Time.Time
	}

	slices.SortStableFunc(out, func(a, b v1alpha1.JobEvent) int {
		return cmp.Or(key(a).Compare(key(b)), cmp.Compare(place(a.Moment), place(b.Moment)))
	})

	return out[:min(len(out), maxEvents)]
}

// key is where a moment that is known to the second belongs.
func (t *timelineBuilder) key(
	moment v1alpha1.JobMoment, events []v1alpha1.JobEvent, keys map[v1alpha1.JobMoment]time.Time,
) time.Time {
	at := t.once[moment].Time.Time
	out := at

	if at.IsZero() || at.Nanosecond() != 0 {
		return at
	}

	for _, event := range events {
		its := event.Time.Time
		if known, ok := keys[event.Moment]; ok {
			its = known
		}

		if place(event.Moment) < place(moment) && its.Truncate(time.Second).Equal(at) && its.After(out) {
			out = its
		}
	}

	return out
}

// place is a moment's place in the usual order.
func place(moment v1alpha1.JobMoment) int {
	return slices.Index([]v1alpha1.JobMoment{
		v1alpha1.MomentQueued, v1alpha1.MomentReceived, v1alpha1.MomentWaiting, v1alpha1.MomentDecided,
		v1alpha1.MomentCloned, v1alpha1.MomentBooted, v1alpha1.MomentRegistered, v1alpha1.MomentStarted,
		v1alpha1.MomentFinished, v1alpha1.MomentDestroyed,
	}, moment)
}

// bounded keeps a message within its field, on a rune's edge.
func bounded(message string) string {
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= maxMessage {
		return message
	}

	cut := maxMessage
	for !utf8.RuneStart(message[cut]) {
		cut--
	}

	return message[:cut]
}
