// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// collectResult records the result of a finished job in the host's status. It drops the outcome
// only after the status is saved.
func collectResult(ctx context.Context, s *scope) step.Result {
	finished := s.WorkerPool.finishedOutcome(s.obj.GetUID())
	if finished == nil {
		return step.Done()
	}

	isCanceled := errors.Is(finished.Failure(), context.Canceled)
	if isCanceled && s.obj.GetDeletionTimestamp().IsZero() {
		// The operator canceled the job. Its progress is unknown, so it is run again.
		s.WorkerPool.deleteFinished(s.obj.GetUID())

		return step.Done()
	}

	s.recordCredential(*finished)

	verdict := drift.ApplyResult(s.status, finished.Outcome, s.Settings.Policy)
	if verdict == drift.Succeeded && finished.Action.IsPush() {
		s.Kind.RecordPush(s.obj)
	}

	s.updatePhase()

	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(err)
	}

	s.WorkerPool.deleteFinished(s.obj.GetUID())
	s.reportOutcome(*finished, verdict)

	return s.reportAddress(step.Done(), *finished)
}

// reportAddress reports at which of its addresses a host with fallback addresses was reached.
func (s *scope) reportAddress(result step.Result, finished outcome) step.Result {
	switch {
	case len(finished.target.Fallbacks) == 0:
		meta.RemoveStatusCondition(s.obj.StatusConditions(), v1alpha1.ConditionAddressReached)

		return result
	case finished.Address == "":
		return result
	case finished.Address == finished.target.Address:
		return result.WithCondition(v1alpha1.ConditionAddressReached, metav1.ConditionTrue, "Reached",
			"the host was reached at "+finished.Address)
	default:
		return result.WithCondition(v1alpha1.ConditionAddressReached, metav1.ConditionFalse, "FallbackInUse",
			"the host was reached at "+finished.Address+" and not at "+finished.target.Address)
	}
}

// recordCredential records which credential is on the host, or that the credential was removed.
func (s *scope) recordCredential(finished outcome) {
	switch {
	case slices.Contains(finished.Result.Labels(push.Applied), plan.KubeconfigLabel):
		s.status.NodeCredential = finished.credential
		s.pendingCredentials.set(client.ObjectKeyFromObject(s.obj), nil)
	case finished.Action == drift.RemoveCredential && finished.Failure() == nil && s.status.NodeCredential != nil:
		s.status.NodeCredential.RemovedAt = new(metav1.NewTime(finished.Time))
	}
}

// reportOutcome emits the event and the metrics of an outcome.
func (s *scope) reportOutcome(finished outcome, verdict drift.Verdict) {
	s.Metrics.observe(s.Kind.Name(), finished, verdict)

	if !finished.Action.IsPush() {
		return
	}

	applied := finished.Result.Labels(push.Applied)

	if verdict == drift.Succeeded {
		s.Recorder.Eventf(s.obj, nil, corev1.EventTypeNormal, "AgentRolled", string(finished.Action),
			"%s: applied %d parts of configuration %.12s: %s", finished.Action, len(applied), finished.Hash, strings.Join(applied, ", "))

		return
	}

	s.Recorder.Eventf(s.obj, nil, corev1.EventTypeWarning, "AgentRollFailed", string(finished.Action),
		"%s of configuration %.12s: %s: %v", finished.Action, finished.Hash, verdict, finished.Failure())
}

// findFleet reads the fleet of the host, and stalls if it does not exist or is for another kind of host.
func findFleet(ctx context.Context, s *scope) step.Result {
	name := types.NamespacedName{Namespace: s.obj.GetNamespace(), Name: s.Kind.FleetName(s.obj)}
	fleet := &v1alpha1.HostFleet{}

	err := s.Client.Get(ctx, name, fleet)

	switch {
	case apierrors.IsNotFound(err):
		return step.Stall("FleetNotFound",
			fmt.Sprintf("HostFleet %s does not exist: create it with hostKind %s", name.Name, s.Kind.Name()))
	case err != nil:
		return step.Fail(fmt.Errorf("get HostFleet %s: %w", name.Name, err))
	case fleet.Spec.HostKind != s.Kind.Name():
		return step.Stall("FleetOfOtherKind", fmt.Sprintf(
			"HostFleet %s has hostKind %s, but this host is a %s: delete the host, and create it again in another fleet",
			name.Name, fleet.Spec.HostKind, s.Kind.Name()))
	}

	s.fleet = fleet

	return step.Done()
}

func provision(ctx context.Context, s *scope) step.Result { return s.Kind.Provision(ctx, s.obj) }

// pinHostKey makes sure that the host's key is known and recorded before anything is sent to the
// host.
func pinHostKey(ctx context.Context, s *scope) step.Result {
	specKeys := s.Kind.HostKeys(s.obj)

	switch recorded := s.status.SSHHostKey; {
	case recorded == "":
	case recorded == specKeys.HostKey:
		return step.Done().WithReason("Known", "the key matches spec.sshHostKey")
	case len(specKeys.CertAuthorities) > 0:
		return step.Done().WithReason("Certified", "the host must present a certificate of spec.sshHostCertAuthorities at each login")
	case specKeys.HostKey == "":
		return step.Done().WithReason("TrustedOnFirstUse", "the key is the first one that the host presented: "+recorded)
	default:
		s.status.SSHHostKey = "" // spec.sshHostKey was set since, or changed
	}

	if s.status.FailureReason == v1alpha1.FailureHostKeyLost {
		if specKeys.IsEmpty() {
			return step.Stall(s.status.FailureReason, s.status.FailureMessage+
				": set spec.sshHostKey, or clear status.failureReason to trust the key that the host presents")
		}

		s.status.FailureReason, s.status.FailureMessage = "", ""
	}

	if s.status.FailureReason == v1alpha1.FailureHostKeyChanged {
		return step.Stall(s.status.FailureReason, s.status.FailureMessage+
			": correct spec.sshHostKey, and then clear status.failureReason")
	}

	if specKeys.IsEmpty() && !specKeys.AcceptNew {
		return step.Stall(v1alpha1.ReasonHostKeyUnknown, "the host key is unknown: set spec.sshHostKey or "+
			"spec.sshHostCertAuthorities, or set spec.sshHostKeyChecking: AcceptNew to trust the first key that the host presents")
	}

	if s.runningAction() != "" {
		return s.waitForJob()
	}

	if wait := s.contactDelay(); wait > 0 {
		return step.Wait(wait, s.status.ContactReason, s.contactMessage())
	}

	return s.startJob(ctx, job{action: drift.Connect})
}

// bootstrap runs the first boot, which pushes all parts to a new host.
func bootstrap(ctx context.Context, s *scope) step.Result {
	if s.status.Bootstrapped {
		return step.Done()
	}

	if s.runningAction() != "" {
		return s.waitForJob()
	}

	if s.hash == "" {
		return step.Stall(reasonNoConfig, "the operator has no configuration for "+s.Kind.Name()+": set hosts in its configuration")
	}

	isResumed := s.status.Push != nil
	d := drift.Decide(s.status, s.desired(), s.Settings.Policy, s.Clock.Now())

	s.clearFailure(d)

	if r := s.blockedResult(d); !r.IsDone() && !isResumed {
		return r
	}

	if s.fleet.Spec.Paused && !isResumed {
		return step.Wait(0, reasonPaused, "fleet "+s.fleet.Name+" is paused")
	}

	if r := s.Kind.BeforeBoot(ctx, s.obj); !r.IsDone() {
		return r
	}

	return s.startJob(ctx, job{action: drift.FirstBoot})
}

// converge pushes the fleet's configuration to a host that has another one, and repairs the parts
// that a host has lost. Both need a permit of the fleet.
func converge(ctx context.Context, s *scope) step.Result {
	if s.runningAction().IsPush() {
		return s.waitForJob()
	}

	switch started := s.status.Push; {
	case started == nil:
	case started.What == string(drift.OSUpdate):
		// A started update runs to its end, even if the desired state has changed.
		if result := s.continueOSUpdate(ctx); !result.IsDone() {
			return result
		}
	case started.Hash == s.hash:
		// The job of the push was interrupted. It is repeated under the same permit.
		return s.startJob(ctx, job{action: drift.Action(started.What), permit: started.Permit})
	default:
		// A process with another configuration started the push. The new configuration needs its own permit.
		s.status.LastPermit, s.status.Push = max(s.status.LastPermit, started.Permit), nil
	}

	if s.needsOSVersion() {
		return s.startJob(ctx, job{action: drift.Probe})
	}

	return s.runAction(ctx, s.openPermit())
}

// needsOSVersion returns true if the fleet names a version of the operating system and the host's
// version is not known yet.
func (s *scope) needsOSVersion() bool {
	return s.desired().OSVersion != "" && s.status.OSVersion == "" && s.status.FailureReason == "" &&
		s.runningAction() == "" && s.status.HostConfigHash != "" && s.contactDelay() <= 0
}

// runAction starts the action that the host needs if the host has a permit for it.
func (s *scope) runAction(ctx context.Context, permit *v1alpha1.HostPermit) step.Result {
	d := drift.Decide(s.status, s.desired(), s.Settings.Policy, s.Clock.Now())
	s.clearFailure(d)

	switch {
	case d.Action == drift.Nothing:
		s.returnPermit(permit)

		return step.Done()
	case d.Action == drift.Terminal || d.Action == drift.Wait:
		s.returnPermit(permit)

		return s.blockedResult(d)
	case permit == nil:
		return step.WaitReady(resyncInterval, reasonPermit, fmt.Sprintf("%s waits for a permit of fleet %s", d.Action, s.fleet.Name))
	case permit.Hash != s.desired().Target() || s.fleet.Spec.Paused || permit.What != string(d.Action):
		s.returnPermit(permit)

		return step.WaitReady(retryInterval, reasonPermit, fmt.Sprintf(
			"%s waits for another permit: the fleet is paused, or the permit is for another action or configuration", d.Action))
	}

	// A running probe ends soon and enqueues the host.
	if s.runningAction() != "" {
		return s.waitForJob()
	}

	if d.Action == drift.OSUpdate {
		return s.startOSUpdate(ctx, permit)
	}

	return s.startJob(ctx, job{action: d.Action, permit: permit.Number})
}

// clearFailure clears a failure that another configuration may fix.
func (s *scope) clearFailure(d drift.Decision) {
	if d.ShouldClearFailure {
		s.status.FailureReason, s.status.FailureMessage = "", ""
		s.status.UpdateAttempts, s.status.BootstrapAttempts = 0, 0
	}
}

// openPermit returns the permit that the host has and has not used up, or nil.
func (s *scope) openPermit() *v1alpha1.HostPermit {
	for i := range s.fleet.Status.Permits {
		permit := &s.fleet.Status.Permits[i]
		if permit.Host == s.obj.GetName() && permit.Number > s.status.LastPermit {
			return permit
		}
	}

	return nil
}

// returnPermit records that the host does not use the permit, so that the fleet can grant one to another host.
func (s *scope) returnPermit(permit *v1alpha1.HostPermit) {
	if permit != nil {
		s.status.LastPermit = permit.Number
	}
}

// blockedResult returns the result of a step for a host that failed terminally or backs off. It returns
// Done for other hosts.
func (s *scope) blockedResult(d drift.Decision) step.Result {
	switch d.Action {
	case drift.Terminal:
		return step.Stall(s.status.FailureReason, s.status.FailureMessage)
	case drift.Wait:
		delay := d.RetryTime.Sub(s.Clock.Now())
		if s.status.ContactAttempts > 0 {
			return step.Wait(delay, s.status.ContactReason, s.contactMessage())
		}

		message := fmt.Sprintf("the host refused configuration %.12s (attempt %d): the next attempt is at %s",
			s.status.FailedHostConfigHash, d.Attempts, d.RetryTime.UTC().Format(time.RFC3339))

		return step.Wait(delay, reasonBackingOff, message)
	default:
		return step.Done()
	}
}

func (s *scope) contactMessage() string {
	since := s.status.UnreachableSince
	if since == nil {
		return s.status.ContactMessage
	}

	return fmt.Sprintf("the host has been unreachable since %s: %s", since.UTC().Format(time.RFC3339), s.status.ContactMessage)
}

// contactDelay returns the time until the next attempt to reach a host that was unreachable. It
// returns 0 if the host was reachable, and less than 0 if the attempt is overdue.
func (s *scope) contactDelay() time.Duration {
	if s.status.ContactAttempts == 0 || s.status.LastContactTime == nil {
		return 0
	}

	until := s.status.LastContactTime.Add(s.Settings.Policy.Backoff(int(s.status.ContactAttempts)))

	return until.Sub(s.Clock.Now())
}

// runningAction returns the action that the pool runs on the host, or an empty string if none.
func (s *scope) runningAction() drift.Action { return s.WorkerPool.runningAction(s.obj.GetUID()) }

// waitForJob waits for the job on the host, which enqueues the host when it ends.
func (s *scope) waitForJob() step.Result {
	return s.waitForHost(resyncInterval, reasonPushing, fmt.Sprintf("%s is running on the host", s.runningAction()))
}

// waitForHost waits for a change of the host. A bootstrapped host that is reachable stays ready meanwhile.
func (s *scope) waitForHost(after time.Duration, reason, message string) step.Result {
	if s.status.Bootstrapped && s.status.UnreachableSince == nil {
		return step.WaitReady(after, reason, message)
	}

	return step.Wait(after, reason, message)
}

// inspect probes the host when its probe is due.
func inspect(ctx context.Context, s *scope) step.Result {
	switch {
	case s.Settings.ProbeInterval <= 0 || s.hash == "" || s.runningAction() != "":
		return step.Done()
	case s.probeDelay() > 0 && s.status.ContactAttempts > 0:
		return step.Wait(s.probeDelay(), s.status.ContactReason, s.contactMessage())
	case s.probeDelay() > 0:
		return step.Done()
	}

	if !slices.Contains(s.status.LostParts, plan.KubeconfigLabel) && s.hasClusterChanged(ctx) {
		s.status.LostParts = append(s.status.LostParts, plan.KubeconfigLabel)

		return s.waitForHost(time.Second, reasonClusterChanged,
			"the server or the CA of the cluster has changed, so the host gets another credential")
	}

	return s.startJob(ctx, job{action: drift.Probe})
}

// probeDelay returns the time until the host's next probe, and less than 0 if the probe is overdue. The
// interval varies by up to 10 % from host to host, so that hosts that were pushed to at the same time are
// not all probed at the same time.
func (s *scope) probeDelay() time.Duration {
	if s.status.ContactAttempts > 0 {
		return s.contactDelay()
	}

	last := s.obj.GetCreationTimestamp()
	if s.status.LastProbeTime != nil {
		last = *s.status.LastProbeTime
	}

	const least, spread = 0.9, 0.2

	interval := float64(s.Settings.ProbeInterval) * (least + spread*hashFraction(string(s.obj.GetUID())+last.String()))

	return last.Add(time.Duration(interval)).Sub(s.Clock.Now())
}

// scheduleNext requeues the host for its next probe, or for the renewal of its credential if that
// is sooner.
func scheduleNext(_ context.Context, s *scope) step.Result {
	var delay time.Duration
	if s.Settings.ProbeInterval > 0 {
		delay = max(s.probeDelay(), time.Second)
	}

	if s.status.NodeCredential != nil && needsCredential(s) {
		delay = step.ChooseSooner(delay, max(s.renewalDelay(), time.Second))
	}

	if delay == 0 {
		return step.Done()
	}

	return step.WaitReady(delay, "Ready", "the host has its fleet's configuration")
}

// startJob hands a job to the pool. A push is recorded in the status before it starts.
func (s *scope) startJob(ctx context.Context, work job) step.Result {
	access, err := s.Kind.Access(ctx, s.Secrets, s.obj)
	if err == nil && work.action != drift.Connect && work.action != drift.RemoveCredential {
		access.Kubeconfig = s.placeholderKubeconfig()
		work.plan, err = s.Kind.RenderPlan(ctx, s.Secrets, s.obj, access)
	}

	if err != nil {
		return s.recordStartFailure(err, work)
	}

	s.addOSStep(access, &work)

	work.target = ssh.Target{
		Name: s.obj.GetName(), Address: access.Address, Fallbacks: access.Fallbacks, User: access.User,
		PrivateKey: access.PrivateKey, Password: access.Password, Trust: s.Kind.HostKeys(s.obj).TrustOr(s.status.SSHHostKey),
	}
	work.hash, work.refusalTarget, work.appliedDigests = s.hash, s.desired().Target(), toDigests(s.status.Parts)
	work.enqueue = s.finishedJobs.EnqueueFunc(client.ObjectKeyFromObject(s.obj))

	if work.action.IsPush() {
		work.drifted = work.plan.FindDrifted(work.appliedDigests, s.status.LostParts)

		if needsCredential(s) && hasKubeconfigPart(work) {
			if result := s.issueCredential(ctx, &work, access); !result.IsDone() {
				return result
			}
		}

		// From here on the host counts as having no complete configuration.
		started := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
		if s.status.Push != nil {
			started = s.status.Push.Started
		}

		s.status.Push = &v1alpha1.HostPush{Permit: work.permit, Hash: work.hash, What: string(work.action), Started: started}
		s.status.HostConfigHash = ""

		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(err)
		}
	}

	if !s.WorkerPool.startJob(s.obj.GetUID(), work) {
		return step.Wait(retryInterval, reasonPushing, fmt.Sprintf("%s is about to start", work.action))
	}

	switch work.action {
	case drift.Probe:
		return step.Done() // the probe runs in the pool
	case drift.OSUpdate:
		return step.Wait(resyncInterval, s.osReason(), s.osMessage())
	default:
		return s.waitForJob()
	}
}

// addOSStep renders the script of the job's step of an update. A push or probe gets the step that prints
// the operating system's version, if the fleet names a version.
func (s *scope) addOSStep(access Access, work *job) {
	if work.action != drift.OSUpdate && s.desired().OSVersion != "" && (work.action == drift.Probe || work.action.IsPush()) {
		work.osStep = OSStepParams{Step: OSVersion}
	}

	if work.osStep.Step != "" {
		var ok bool
		if work.osScript, ok = s.Kind.RenderOSStep(s.obj, access, work.osStep); !ok {
			work.osStep = OSStepParams{}
		}
	}
}

// recordStartFailure records that a job could not start, for example because a Secret is missing.
// This does not count as a refusal. The permit is used up, so that another host can get one.
func (s *scope) recordStartFailure(err error, work job) step.Result {
	if work.action == drift.OSUpdate {
		return s.recordOSStepFailed(err)
	}

	if errclass.ClassOf(err) == errclass.Transient {
		return step.Fail(err)
	}

	now := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	s.status.LastContactTime, s.status.ContactMessage = &now, err.Error()
	s.status.ContactReason = errclass.ReasonOf(err, "Misconfigured")
	s.status.ContactAttempts++
	s.status.LastPermit = max(s.status.LastPermit, work.permit)
	s.status.Push = nil

	return step.Wait(s.contactDelay(), s.status.ContactReason, err.Error())
}

// release releases the host after its job, if any, has ended.
func release(ctx context.Context, s *scope) step.Result {
	if s.runningAction() != "" {
		s.WorkerPool.cancel(s.obj.GetUID())

		return step.Wait(retryInterval, reasonPushing, "waiting for the canceled job on the host to end")
	}

	s.WorkerPool.deleteFinished(s.obj.GetUID())
	s.status.Push = nil

	return s.Kind.Release(ctx, s.obj)
}

// toDigests converts the recorded parts of a host to the form that package push takes.
func toDigests(parts []v1alpha1.HostPart) []plan.Digest {
	var out []plan.Digest
	for _, part := range parts {
		out = append(out, plan.Digest{Label: part.Label, SHA256: part.SHA256})
	}

	return out
}
