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

// The limits of RunnerJob.status.timeline.
const (
	maxEvents  = 64
	maxWaits   = 16
	maxMessage = 1024
)

// Machine holds the fields of a MachineClaim that a job's timeline needs.
type Machine struct {
	// UID of the claim, from which its trace ID is derived.
	UID string
	// Name of the claim. VM and Node locate its VM; they are empty until the VM exists.
	Name, VM, Node string
	// Runner is the name of the machine's runner.
	Runner string
	// Job is the job that the runner took, and BoundJob is the job that the machine was created
	// for, both by the names of their RunnerJobs.
	Job, BoundJob string
	// Times of the machine's phases.
	Times v1alpha1.MachineTimes
	// EndReason is the reason for the machine's end, as one word.
	EndReason string
	// DeletedAt is when the claim was deleted, after its VM. It is zero while the claim exists.
	DeletedAt time.Time
}

// NewMachine returns the Machine of a claim.
func NewMachine(claim *v1alpha1.MachineClaim) Machine {
	out := Machine{UID: string(claim.UID), Name: claim.Name, EndReason: claim.Status.EndReason}

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

// Cause is what a job waits for: a reason and a message that names the fix. The message contains no
// counts and no times, so that it stays the same as long as the cause does.
type Cause struct{ Reason, Message string }

// TimelineInput is the input of BuildTimeline: what is known about a job now.
type TimelineInput struct {
	// Job as the platform reported it.
	Job workload.Job
	// Before is the timeline of the previous reconcile.
	Before []v1alpha1.JobEvent
	// Machine that has the job or was created for it; nil if none is known, or none is known any
	// more.
	Machine *Machine
	// Pool that serves the job; empty if none does.
	Pool string
	// Cause of the job's wait; zero if there is none in particular.
	Cause Cause
	Now   time.Time
}

// BuildTimeline returns the timeline of a job, oldest event first. It is pure.
//
// Each kind of event occurs once, with the time from its source: the platform or the machine's claim.
// Only Waiting may occur again, with another cause. An event of the previous timeline is never lost, even
// if its source no longer exists. The only exception: if a machine ends before it runs the job, the
// events of the next machine replace the events of this one. The same input again changes nothing.
func BuildTimeline(input TimelineInput) []v1alpha1.JobEvent {
	t := newTimelineBuilder(input)
	t.addPlatformEvents()
	t.addMachineEvents()
	t.addWaiting()

	return t.sort()
}

// timelineBuilder is the state of one call of BuildTimeline. events holds the event of each kind
// that occurs once, and waits holds the Waiting events.
type timelineBuilder struct {
	TimelineInput

	events map[v1alpha1.JobMoment]v1alpha1.JobEvent
	waits  []v1alpha1.JobEvent
}

func newTimelineBuilder(input TimelineInput) *timelineBuilder {
	t := &timelineBuilder{TimelineInput: input, events: map[v1alpha1.JobMoment]v1alpha1.JobEvent{}}

	for _, event := range input.Before {
		if event.Moment == v1alpha1.MomentWaiting {
			t.waits = append(t.waits, event)
		} else {
			t.events[event.Moment] = event
		}
	}

	return t
}

// set writes an event. It overwrites an earlier event of the same kind, because the new time comes from a
// better source.
func (t *timelineBuilder) set(kind v1alpha1.JobMoment, timestamp time.Time, message string) {
	t.events[kind] = newJobEvent(kind, timestamp, message)
}

func newJobEvent(kind v1alpha1.JobMoment, timestamp time.Time, message string) v1alpha1.JobEvent {
	return v1alpha1.JobEvent{
		Moment: kind, Time: metav1.NewMicroTime(timestamp.UTC().Truncate(time.Microsecond)), Message: truncateMessage(message),
	}
}

// timeOrNow returns the time of the event of this kind that is already in the timeline, or else the current time.
func (t *timelineBuilder) timeOrNow(kind v1alpha1.JobMoment) time.Time {
	if previous, ok := t.events[kind]; ok {
		return previous.Time.Time
	}

	return t.Now
}

func (t *timelineBuilder) addPlatformEvents() {
	if timestamp := t.Job.QueuedAt; timestamp != nil {
		t.set(v1alpha1.MomentQueued, timestamp.Time, "")
	}

	if timestamp := t.Job.ReceivedAt; timestamp != nil {
		t.set(v1alpha1.MomentReceived, timestamp.Time, "")
	}

	if t.Pool != "" {
		t.set(v1alpha1.MomentDecided, t.timeOrNow(v1alpha1.MomentDecided), poolMessage(t.Pool))
	}

	t.addStarted()

	if t.Job.State == v1alpha1.JobCompleted {
		t.set(v1alpha1.MomentFinished, t.finishTime(), t.Job.Conclusion)
	}
}

// poolMessage returns the message of the event Decided.
func poolMessage(pool string) string { return "RunnerPool " + pool + " serves the job" }

// addStarted adds the event Started: a runner took the job. A canceled or skipped job may complete
// without this event.
func (t *timelineBuilder) addStarted() {
	hasRun := t.Job.RunnerName != "" || t.Job.State == v1alpha1.JobRunning
	message := ""

	if t.Job.RunnerName != "" {
		message = "runner " + t.Job.RunnerName
	}

	switch {
	case hasRun && t.Job.StartedAt != nil:
		t.set(v1alpha1.MomentStarted, t.Job.StartedAt.Time, message)
	case t.Machine != nil && t.Machine.Times.JobStarted != nil:
		t.set(v1alpha1.MomentStarted, t.Machine.Times.JobStarted.Time, cmp.Or(message, "runner "+t.Machine.Runner))
	case hasRun:
		t.set(v1alpha1.MomentStarted, t.timeOrNow(v1alpha1.MomentStarted), message)
	}
}

func (t *timelineBuilder) finishTime() time.Time {
	switch {
	case t.Job.CompletedAt != nil:
		return t.Job.CompletedAt.Time
	case t.Machine != nil && t.Machine.Times.Stopped != nil:
		return t.Machine.Times.Stopped.Time
	default:
		return t.timeOrNow(v1alpha1.MomentFinished)
	}
}

// addMachineEvents adds the events that the machine's claim reports.
func (t *timelineBuilder) addMachineEvents() {
	if t.Machine == nil {
		return
	}

	t.deleteReplaced()

	times := &t.Machine.Times
	location := claimPrefix(t.Machine.Name)

	if t.Machine.VM != "" {
		location += "VM " + t.Machine.VM
		if t.Machine.Node != "" {
			location += " on node " + t.Machine.Node
		}
	}

	if times.Cloned != nil {
		t.setOnce(v1alpha1.MomentCloned, times.Cloned.Time, location)
	}

	if times.Started != nil {
		message := location
		if times.Activated != nil {
			message += ", from standby"
		}

		t.setOnce(v1alpha1.MomentBooted, times.Started.Time, message)
	}

	if times.Ready != nil {
		t.setOnce(v1alpha1.MomentRegistered, times.Ready.Time, claimPrefix(t.Machine.Name)+"runner "+t.Machine.Runner)
	}

	t.addDestroyed()
}

// claimPrefix returns the prefix of the messages about a claim's machine. deleteReplaced compares
// it.
func claimPrefix(claim string) string { return "MachineClaim " + claim + ": " }

// setOnce writes an event unless there is one of the same kind. A machine may move to another node later,
// but the event keeps the node on which it happened.
func (t *timelineBuilder) setOnce(kind v1alpha1.JobMoment, timestamp time.Time, message string) {
	if _, exists := t.events[kind]; !exists {
		t.set(kind, timestamp, message)
	}
}

// deleteReplaced deletes the events of another machine, which was created for the job and ended
// before it took the job.
func (t *timelineBuilder) deleteReplaced() {
	for _, kind := range []v1alpha1.JobMoment{
		v1alpha1.MomentCloned, v1alpha1.MomentBooted, v1alpha1.MomentRegistered, v1alpha1.MomentDestroyed,
	} {
		if event, ok := t.events[kind]; ok && !strings.HasPrefix(event.Message, claimPrefix(t.Machine.Name)) {
			delete(t.events, kind)
		}
	}
}

// addDestroyed adds the end of the machine if the machine took the job or the job is completed.
// Otherwise the loss of the machine becomes the cause of the wait, unless there is another cause.
func (t *timelineBuilder) addDestroyed() {
	_, hasStarted := t.events[v1alpha1.MomentStarted]

	switch {
	case t.Machine.DeletedAt.IsZero():
	case hasStarted || t.Job.State == v1alpha1.JobCompleted:
		message := claimPrefix(t.Machine.Name) + "gone"
		if t.Machine.VM != "" {
			message = claimPrefix(t.Machine.Name) + "VM " + t.Machine.VM + " is gone"
		}

		if t.Machine.EndReason != "" {
			message += ": " + t.Machine.EndReason
		}

		if v1alpha1.CurrentReason(t.Machine.EndReason) == v1alpha1.EndReasonVMNotDeleted {
			message = claimPrefix(t.Machine.Name) + "VM " + t.Machine.VM +
				" was not deleted: its notes do not name this machine as the owner"
		}

		t.setOnce(v1alpha1.MomentDestroyed, t.Machine.DeletedAt, message)
	case t.Cause == Cause{}:
		t.Cause = Cause{"MachineLost", "MachineClaim " + t.Machine.Name + " ended before its runner took the job (" +
			cmp.Or(t.Machine.EndReason, "it was deleted") + "): the pool creates another machine"}
	}
}

// addWaiting adds a Waiting event if the reason of the wait is new. If the reason is the same, it
// updates the message of the last Waiting event.
func (t *timelineBuilder) addWaiting() {
	_, hasStarted := t.events[v1alpha1.MomentStarted]
	isPastQueue := t.Job.State == v1alpha1.JobRunning || t.Job.State == v1alpha1.JobCompleted

	if t.Cause.Reason == "" || hasStarted || isPastQueue {
		return
	}

	message := t.Cause.Reason + ": " + t.Cause.Message

	if last := len(t.waits) - 1; last >= 0 && strings.HasPrefix(t.waits[last].Message, t.Cause.Reason+": ") {
		t.waits[last].Message = truncateMessage(message)

		return
	}

	t.waits = append(t.waits, newJobEvent(v1alpha1.MomentWaiting, t.Now, message))

	// The first cause and the latest causes are the most useful ones.
	if extra := len(t.waits) - maxWaits; extra > 0 {
		t.waits = slices.Delete(t.waits, 1, 1+extra)
	}
}

// sort returns the events in the order of their times. Platforms report whole seconds. Within one
// second, the start and the end of the job come after the events that must precede them.
func (t *timelineBuilder) sort() []v1alpha1.JobEvent {
	out := slices.Clone(t.waits)
	for _, event := range t.events {
		out = append(out, event)
	}

	keys := map[v1alpha1.JobMoment]time.Time{}

	for _, kind := range []v1alpha1.JobMoment{v1alpha1.MomentStarted, v1alpha1.MomentFinished} {
		keys[kind] = t.sortKey(kind, out, keys)
	}

	key := func(e v1alpha1.JobEvent) time.Time {
		if timestamp, ok := keys[e.Moment]; ok {
			return timestamp
		}

		return e.Time.Time
	}

	slices.SortStableFunc(out, func(a, b v1alpha1.JobEvent) int {
		return cmp.Or(key(a).Compare(key(b)), cmp.Compare(kindIndex(a.Moment), kindIndex(b.Moment)))
	})

	return out[:min(len(out), maxEvents)]
}

// sortKey returns the time by which the event of a kind is sorted. If the event's time is in whole seconds,
// sortKey returns the latest time, within that second, of the events that must precede the event.
func (t *timelineBuilder) sortKey(
	kind v1alpha1.JobMoment, events []v1alpha1.JobEvent, keys map[v1alpha1.JobMoment]time.Time,
) time.Time {
	timestamp := t.events[kind].Time.Time
	out := timestamp

	if timestamp.IsZero() || timestamp.Nanosecond() != 0 {
		return timestamp
	}

	for _, event := range events {
		eventTime := event.Time.Time
		if known, ok := keys[event.Moment]; ok {
			eventTime = known
		}

		isSameSecond := eventTime.Truncate(time.Second).Equal(timestamp)
		if kindIndex(event.Moment) < kindIndex(kind) && isSameSecond && eventTime.After(out) {
			out = eventTime
		}
	}

	return out
}

// kindIndex returns the position of a kind of event in the usual order of a job.
func kindIndex(kind v1alpha1.JobMoment) int {
	return slices.Index([]v1alpha1.JobMoment{
		v1alpha1.MomentQueued, v1alpha1.MomentReceived, v1alpha1.MomentWaiting, v1alpha1.MomentDecided,
		v1alpha1.MomentCloned, v1alpha1.MomentBooted, v1alpha1.MomentRegistered, v1alpha1.MomentStarted,
		v1alpha1.MomentFinished, v1alpha1.MomentDestroyed,
	}, kind)
}

// truncateMessage cuts a message to maxMessage bytes at a rune boundary.
func truncateMessage(message string) string {
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= maxMessage {
		return message
	}

	end := maxMessage
	for !utf8.RuneStart(message[end]) {
		end--
	}

	return message[:end]
}
