// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// Reasons of conditions.
const (
	reasonPushing    = "Pushing"
	reasonNoConfig   = "NoConfiguration"
	reasonPaused     = "Paused"
	reasonPermit     = "WaitingForPermit"
	reasonBackingOff = "BackingOff"
)

// collectResult notes what became of work at the host, and takes up the host's state from there.
// The outcome is dropped only when it is on record.
func collectResult(ctx context.Context, s *scope) step.Result {
	done := s.WorkerPool.outcome(s.obj.GetUID())
	if done == nil {
		return step.Done()
	}

	interrupted := errors.Is(done.Failure(), context.Canceled)
	if interrupted && s.obj.GetDeletionTimestamp().IsZero() {
		// It was cut off by us: nobody knows how far it got, and it is done again.
		s.WorkerPool.forget(s.obj.GetUID())

		return step.Done()
	}

	s.noteCredential(*done)

	said := drift.ApplyResult(s.status, done.Outcome, s.Settings.Policy)
	if said == drift.Succeeded && done.Action.Pushes() {
		s.Kind.Stamp(s.obj)
	}

	s.phase()

	if err := step.Save(ctx); err != nil {
		return step.Fail(err)
	}

	s.WorkerPool.forget(s.obj.GetUID())
	s.recordOutcome(*done, said)

	return s.tellAddress(step.Done(), *done)
}

// tellAddress says at which address a host with several was reached.
func (s *scope) tellAddress(result step.Result, done outcome) step.Result {
	switch {
	case len(done.target.Fallbacks) == 0:
		meta.RemoveStatusCondition(s.obj.StatusConditions(), v1alpha1.ConditionAddressReached)

		return result
	case done.Address == "":
		return result
	case done.Address == done.target.Address:
		return result.Also(v1alpha1.ConditionAddressReached, metav1.ConditionTrue, "Reached", "it was reached at "+done.Address)
	default:
		return result.Also(v1alpha1.ConditionAddressReached, metav1.ConditionFalse, "FallbackInUse",
			"it was reached at "+done.Address+", and not at "+done.target.Address)
	}
}

// noteCredential notes which credential is at the host, or that it is off it.
func (s *scope) noteCredential(done outcome) {
	switch {
	case slices.Contains(done.Result.Labels(push.Applied), plan.Kubeconfig):
		s.status.NodeCredential = done.credential
		s.wanted.set(client.ObjectKeyFromObject(s.obj), nil)
	case done.Action == drift.Leave && done.Failure() == nil && s.status.NodeCredential != nil:
		s.status.NodeCredential.RemovedAt = new(metav1.NewTime(done.At))
	}
}

// recordOutcome makes events and metrics of an outcome.
func (s *scope) recordOutcome(done outcome, said drift.Verdict) {
	s.Metrics.observe(s.Kind.Name(), done, said)

	if !done.Action.Pushes() {
		return
	}

	applied := done.Result.Labels(push.Applied)

	if said == drift.Succeeded {
		s.Recorder.Eventf(s.obj, nil, corev1.EventTypeNormal, "AgentRolled", string(done.Action),
			"%s: %d parts applied %v, configuration %.12s", done.Action, len(applied), applied, done.Hash)

		return
	}

	s.Recorder.Eventf(s.obj, nil, corev1.EventTypeWarning, "AgentRollFailed", string(done.Action),
		"%s of configuration %.12s: %s: %v", done.Action, done.Hash, said, done.Failure())
}

func findFleet(ctx context.Context, s *scope) step.Result {
	name := types.NamespacedName{Namespace: s.obj.GetNamespace(), Name: s.Kind.FleetName(s.obj)}
	fleet := &v1alpha1.HostFleet{}

	err := s.Client.Get(ctx, name, fleet)

	switch {
	case apierrors.IsNotFound(err):
		return step.Stall("FleetNotFound", fmt.Sprintf("there is no HostFleet %s: make one of hostKind %s", name.Name, s.Kind.Name()))
	case err != nil:
		return step.Fail(fmt.Errorf("get fleet %s: %w", name.Name, err))
	case fleet.Spec.HostKind != s.Kind.Name():
		return step.Stall("FleetOfOtherKind", fmt.Sprintf("HostFleet %s is of %s, and this is a %s: name another fleet",
			name.Name, fleet.Spec.HostKind, s.Kind.Name()))
	}

	s.fleet = fleet

	return step.Done()
}

func provision(ctx context.Context, s *scope) step.Result { return s.Kind.Provision(ctx, s.obj) }

// pin sees the host's key before anything is sent to it, and puts it on record.
func pin(ctx context.Context, s *scope) step.Result {
	known := s.Kind.HostKeys(s.obj)

	switch recorded := s.status.SSHHostKey; {
	case recorded == "":
	case recorded == known.HostKey:
		return step.Done().WithReason("Known", "the key is that of spec.sshHostKey")
	case len(known.CertAuthorities) > 0:
		return step.Done().WithReason("Certified", "the host has to show a certificate by spec.sshHostCertAuthorities at each login")
	case known.HostKey == "":
		return step.Done().WithReason("TrustedOnFirstUse", "the key is the first one that the host has shown: "+recorded)
	default:
		s.status.SSHHostKey = "" // spec.sshHostKey was set since, or changed
	}

	if s.status.FailureReason == v1alpha1.FailureHostKeyChanged {
		return step.Stall(s.status.FailureReason, s.status.FailureMessage+
			": correct spec.sshHostKey, and then clear status.failureReason")
	}

	if known.Empty() && !known.AcceptNew {
		return step.Stall(v1alpha1.ReasonHostKeyUnknown, "nothing says which key the host has: set spec.sshHostKey or "+
			"spec.sshHostCertAuthorities, or spec.sshHostKeyChecking: AcceptNew to trust the first one that it shows")
	}

	if s.running() != "" {
		return s.busy()
	}

	if wait := s.untilContact(); wait > 0 {
		return step.Wait(wait, s.status.ContactReason, s.contactWords())
	}

	return s.begin(ctx, job{what: drift.Greet})
}

// boot brings all parts to a new host.
func boot(ctx context.Context, s *scope) step.Result {
	if s.status.Bootstrapped {
		return step.Done()
	}

	if s.running() != "" {
		return s.busy()
	}

	if s.hash == "" {
		return step.Stall(reasonNoConfig, "the operator has no configuration for "+s.Kind.Name()+": set hosts in its configuration")
	}

	resumed := s.status.Push != nil
	d := drift.Decide(s.status, s.desired(), s.Settings.Policy, s.Clock.Now())

	s.heal(d)

	if r, held := s.held(d); held && !resumed {
		return r
	}

	if s.fleet.Spec.Paused && !resumed {
		return step.Wait(0, reasonPaused, "fleet "+s.fleet.Name+" is paused")
	}

	if r := s.Kind.BeforeBoot(ctx, s.obj); !r.IsDone() {
		return r
	}

	return s.begin(ctx, job{what: drift.FirstBoot})
}

// converge brings the fleet's configuration to a host that has another one, and brings
// back what it has lost, under a permit of its fleet.
func converge(ctx context.Context, s *scope) step.Result {
	if s.running().Pushes() {
		return s.busy()
	}

	permit := s.permit()

	switch running := s.status.Push; {
	case running == nil:
	case running.What == string(drift.OSUpdate):
		// It goes on to its end, whatever is wanted by now: the host is on its way.
		if result := s.updateOS(ctx); !result.IsDone() {
			return result
		}

		permit = s.permit()
	default:
		if running.Hash == s.hash {
			return s.begin(ctx, job{what: drift.Action(running.What), permit: running.Permit})
		}

		// The program is another one than began it: what it brings has to have its own turn.
		s.status.LastPermit, s.status.Push = max(s.status.LastPermit, running.Permit), nil
		permit = s.permit()
	}

	if s.asksVersion() {
		return s.begin(ctx, job{what: drift.Probe})
	}

	return s.decide(ctx, permit)
}

// asksVersion says whether nobody knows yet what the host's operating system is, and its fleet
// names one.
func (s *scope) asksVersion() bool {
	return s.desired().OSVersion != "" && s.status.OSVersion == "" && s.status.FailureReason == "" &&
		s.running() == "" && s.status.HostConfigHash != "" && s.untilContact() <= 0
}

// decide does what is due now, if there is a permit for it.
func (s *scope) decide(ctx context.Context, permit *v1alpha1.HostPermit) step.Result {
	d := drift.Decide(s.status, s.desired(), s.Settings.Policy, s.Clock.Now())
	s.heal(d)

	switch {
	case d.Do == drift.Nothing:
		s.giveBack(permit)

		return step.Done()
	case d.Do == drift.Terminal || d.Do == drift.Wait:
		s.giveBack(permit)
		r, _ := s.held(d)

		return r
	case permit == nil:
		return step.Steady(safety, reasonPermit, fmt.Sprintf("%s is due when fleet %s lets the host have it", d.Do, s.fleet.Name))
	case permit.Hash != s.desired().Target() || s.fleet.Spec.Paused || permit.What != string(d.Do):
		s.giveBack(permit)

		return step.Steady(lookAgain, reasonPermit, fmt.Sprintf("%s is due, and the permit is not for it", d.Do))
	}

	// A probe that runs is soon over, and wakes the host.
	if s.running() != "" {
		return s.busy()
	}

	if d.Do == drift.OSUpdate {
		return s.beginOS(ctx, permit)
	}

	return s.begin(ctx, job{what: d.Do, permit: permit.Number})
}

// heal clears a failure that another configuration may fix.
func (s *scope) heal(d drift.Decision) {
	if d.Heal {
		s.status.FailureReason, s.status.FailureMessage = "", ""
		s.status.UpdateAttempts, s.status.BootstrapAttempts = 0, 0
	}
}

// permit is the permit that the host has got and not used up; nil for none.
func (s *scope) permit() *v1alpha1.HostPermit {
	for i := range s.fleet.Status.Permits {
		permit := &s.fleet.Status.Permits[i]
		if permit.Host == s.obj.GetName() && permit.Number > s.status.LastPermit {
			return permit
		}
	}

	return nil
}

func (s *scope) giveBack(permit *v1alpha1.HostPermit) {
	if permit != nil {
		s.status.LastPermit = permit.Number
	}
}

// held says why nothing is pushed now, if nothing is.
func (s *scope) held(d drift.Decision) (step.Result, bool) {
	switch d.Do {
	case drift.Terminal:
		return step.Stall(s.status.FailureReason, s.status.FailureMessage), true
	case drift.Wait:
		after := d.Until.Sub(s.Clock.Now())
		if s.status.ContactAttempts > 0 {
			return step.Wait(after, s.status.ContactReason, s.contactWords()), true
		}

		words := fmt.Sprintf("the host refused configuration %.12s, attempt %d: it is tried again at %s",
			s.status.FailedHostConfigHash, d.Attempts, d.Until.UTC().Format(time.RFC3339))

		return step.Wait(after, reasonBackingOff, words), true
	default:
		return step.Done(), false
	}
}

func (s *scope) contactWords() string {
	since := s.status.UnreachableSince
	if since == nil {
		return s.status.ContactMessage
	}

	return fmt.Sprintf("the host can't be reached since %s: %s", since.UTC().Format(time.RFC3339), s.status.ContactMessage)
}

// untilContact is how long it is until a host that can't be reached is tried again.
func (s *scope) untilContact() time.Duration {
	if s.status.ContactAttempts == 0 || s.status.LastContactTime == nil {
		return 0
	}

	until := s.status.LastContactTime.Add(s.Settings.Policy.Backoff(int(s.status.ContactAttempts)))

	return until.Sub(s.Clock.Now())
}

// running is what the pool does at the host; empty for nothing.
func (s *scope) running() drift.Action { return s.WorkerPool.runs(s.obj.GetUID()) }

// busy waits for work at the host, which wakes it when it is over. A host that carries
// machines goes on doing so.
func (s *scope) busy() step.Result {
	words := fmt.Sprintf("%s runs at the host", s.running())
	if s.status.Bootstrapped && s.status.UnreachableSince == nil {
		return step.Steady(safety, reasonPushing, words)
	}

	return step.Wait(safety, reasonPushing, words)
}

// inspect asks the host, from time to time, whether it is as it was left.
func inspect(ctx context.Context, s *scope) step.Result {
	switch {
	case s.Settings.ProbeInterval <= 0 || s.hash == "" || s.running() != "":
		return step.Done()
	case s.probeDue() > 0 && s.status.ContactAttempts > 0:
		return step.Wait(s.probeDue(), s.status.ContactReason, s.contactWords())
	case s.probeDue() > 0:
		return step.Done()
	}

	return s.begin(ctx, job{what: drift.Probe})
}

// probeDue is how long it is until the host is probed: the interval, a tenth more or less,
// so that hosts that were pushed to together are not all asked together.
func (s *scope) probeDue() time.Duration {
	if wait := s.untilContact(); s.status.ContactAttempts > 0 {
		return wait
	}

	last := s.obj.GetCreationTimestamp()
	if s.status.LastProbeTime != nil {
		last = *s.status.LastProbeTime
	}

	const least, spread = 0.9, 0.2

	interval := float64(s.Settings.ProbeInterval) * (least + spread*share(string(s.obj.GetUID())+last.String()))

	return last.Add(time.Duration(interval)).Sub(s.Clock.Now())
}

// rest waits for the next probe, or for its credential to be renewed.
func rest(_ context.Context, s *scope) step.Result {
	var next time.Duration
	if s.Settings.ProbeInterval > 0 {
		next = max(s.probeDue(), time.Second)
	}

	if s.status.NodeCredential != nil && credentialed(s) {
		if renewal := max(s.untilRenewal(), time.Second); next == 0 || renewal < next {
			next = renewal
		}
	}

	if next == 0 {
		return step.Done()
	}

	return step.Steady(next, "Ready", "the host has its fleet's configuration")
}

// begin hands work to the pool. What is pushed is on record before.
func (s *scope) begin(ctx context.Context, work job) step.Result {
	access, err := s.Kind.Access(ctx, s.Secrets, s.obj)
	if err == nil && work.what != drift.Greet && work.what != drift.Leave {
		access.Kubeconfig = s.placeholder()
		work.plan, err = s.Kind.Plan(ctx, s.Secrets, s.obj, access)
	}

	if err != nil {
		return s.unable(err, work)
	}

	s.asks(access, &work)

	work.target = ssh.Target{
		Name: s.obj.GetName(), Address: access.Address, Fallbacks: access.Fallbacks, User: access.User,
		PrivateKey: access.PrivateKey, Password: access.Password, Trust: s.Kind.HostKeys(s.obj).Or(s.status.SSHHostKey),
	}
	work.hash, work.refuses, work.has = s.hash, s.desired().Target(), digests(s.status.Parts)
	work.enqueue = s.done.For(client.ObjectKeyFromObject(s.obj))

	if work.what.Pushes() {
		work.drifted = push.Drifted(work.plan, work.has, states(s.status.LostParts))

		if credentialed(s) && pushesKubeconfig(work) {
			if result := s.issue(ctx, &work, access); !result.IsDone() {
				return result
			}
		}

		if err := s.record(ctx, work); err != nil {
			return step.Fail(err)
		}
	}

	if !s.WorkerPool.begin(s.obj.GetUID(), work) {
		return step.Wait(lookAgain, reasonPushing, fmt.Sprintf("%s is about to begin", work.what))
	}

	switch work.what {
	case drift.Probe:
		return step.Done() // it goes on beside
	case drift.OSUpdate:
		return step.Wait(safety, s.reasonOS(), s.wordsOS())
	default:
		return s.busy()
	}
}

// asks has the host asked for the version of its operating system beside all else, where its
// fleet names one.
func (s *scope) asks(access Access, work *job) {
	if work.what != drift.OSUpdate && s.desired().OSVersion != "" && (work.what == drift.Probe || work.what.Pushes()) {
		work.ask = OSAsk{Step: OSVersion}
	}

	if work.ask.Step != "" {
		var ok bool
		if work.os, ok = s.Kind.AskOS(s.obj, access, work.ask); !ok {
			work.ask = OSAsk{}
		}
	}
}

// record writes down that a push begins. From now on the host has no whole configuration.
func (s *scope) record(ctx context.Context, work job) error {
	started := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	if s.status.Push != nil {
		started = s.status.Push.Started
	}

	s.status.Push = &v1alpha1.HostPush{Permit: work.permit, Hash: work.hash, What: string(work.what), Started: started}
	s.status.HostConfigHash = ""

	return step.Save(ctx)
}

// unable is work that can't even begin, as for want of a Secret: the host is no worse for
// it, and its permit goes to another.
func (s *scope) unable(err error, work job) step.Result {
	if work.what == drift.OSUpdate {
		return s.unableOS(err)
	}

	if errclass.Of(err) == errclass.Transient {
		return step.Fail(err)
	}

	now := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	s.status.LastContactTime, s.status.ContactMessage = &now, err.Error()
	s.status.ContactReason = errclass.Reason(err, "Misconfigured")
	s.status.ContactAttempts++
	s.status.LastPermit = max(s.status.LastPermit, work.permit)
	s.status.Push = nil

	return step.Wait(s.untilContact(), s.status.ContactReason, err.Error())
}

// release gives the host back when nothing of ours is at work there.
func release(ctx context.Context, s *scope) step.Result {
	if s.running() != "" {
		s.WorkerPool.cancel(s.obj.GetUID())

		return step.Wait(lookAgain, reasonPushing, "work at the host is being ended")
	}

	s.WorkerPool.forget(s.obj.GetUID())
	s.status.Push = nil

	return s.Kind.Release(ctx, s.obj)
}

// digests are the parts that a host is known to have, as package push takes them.
func digests(parts []v1alpha1.HostPart) []plan.Digest {
	var out []plan.Digest
	for _, part := range parts {
		out = append(out, plan.Digest{Label: part.Label, SHA256: part.SHA256})
	}

	return out
}
