// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/drain"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	reasonUpdatingOS     = "UpdatingMacOS"
	reasonRestarting     = "HostRestarting"
	reasonWaitingForNode = "WaitingForNode"
	reasonOSUpdated      = "MacOSUpdated"
	reasonOSFailed       = "MacOSUpdateFailed"

	// maxOutput limits how many bytes of a line of a host's output are kept.
	maxOutput = 256
)

// OSStep is a step of an update of the operating system. All steps are idempotent.
type OSStep string

// The steps of an update.
const (
	// OSVersion prints the version of the operating system.
	OSVersion OSStep = "version"
	// OSOffer prints the label under which an update is offered.
	OSOffer OSStep = "offer"
	// OSInstall starts the update if it has not started, and prints its progress.
	OSInstall OSStep = "install"
	// OSCancel stops an update that takes too long.
	OSCancel OSStep = "cancel"
)

// OSStepParams are the parameters of a step that runs on a host: the desired version and the label of its
// update. Attempt distinguishes this installation from earlier ones.
type OSStepParams struct {
	Step                    OSStep
	Version, Label, Attempt string
}

// desired returns the desired state of the host.
func (s *scope) desired() drift.Desired { return Desired(s.hash, s.fleet) }

// Desired returns the desired state of the hosts of a fleet. The hash is the hash of their kind.
func Desired(hash string, fleet *v1alpha1.HostFleet) drift.Desired {
	out := drift.Desired{Hash: hash}
	if fleet != nil && fleet.Spec.MacOS != nil {
		out.OSVersion = fleet.Spec.MacOS.Version
	}

	return out
}

// startOSUpdate records in the status that an update of the operating system starts under a permit,
// and starts it.
func (s *scope) startOSUpdate(ctx context.Context, permit *v1alpha1.HostPermit) step.Result {
	now := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	s.status.Push = &v1alpha1.HostPush{Permit: permit.Number, Hash: permit.Hash, What: permit.What, Started: now}
	s.status.OSUpdate = &v1alpha1.HostOSUpdate{Version: s.desired().OSVersion, StartedAt: now}

	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(err)
	}

	return s.continueOSUpdate(ctx)
}

// continueOSUpdate continues the recorded update of the operating system. It finds the update's
// label, drains the Node, starts the installation, waits for the host to restart, and returns the
// Node to service. The result is done once the update has succeeded or failed.
func (s *scope) continueOSUpdate(ctx context.Context) step.Result {
	update := s.status.OSUpdate
	if update == nil { // somebody has cleared it
		s.status.LastPermit, s.status.Push = max(s.status.LastPermit, s.status.Push.Permit), nil

		return step.Done()
	}

	remaining := s.osTimeLeft()

	switch {
	case update.EndedAt != nil: // it has succeeded or failed: the Node returns to service below
	case update.Label == "" && remaining > 0: // the label is looked up
		return s.startOSStep(ctx, OSOffer, remaining)
	case update.Label == "": // the lookup took too long
		drift.FailOSUpdate(s.status, s.Clock.Now(), drift.ReasonRestartTimedOut,
			"the host could not be queried for updates: "+s.status.ContactMessage)
	case update.InstallStartedAt == nil && s.fleet.Spec.Drain == nil: // the Node cannot be drained
		drift.FailOSUpdate(s.status, s.Clock.Now(), drift.ReasonUpdateFailed,
			"the fleet's spec.drain was removed: restore it, or remove spec.macOS")
	case update.InstallStartedAt == nil: // the Node is drained, then the installation starts
		if result := s.newOSDrainer().Reconcile(ctx); !result.IsDone() {
			return result
		}

		if update.Drain.Reason != drain.ReasonTimedOut {
			return s.startOSInstall(ctx)
		}

		drift.FailOSUpdate(s.status, s.Clock.Now(), drain.ReasonTimedOut, update.Drain.Message)
	case remaining > 0: // the installation runs, or the host restarts
		return s.startOSStep(ctx, OSInstall, remaining)
	case update.AwaySince == nil: // the installation took too long
		return s.startOSStep(ctx, OSCancel, 0)
	default: // the host has not come back
		s.failUnreachableAfterRestart()
	}

	return s.finishOSUpdate(ctx)
}

// osPhaseStart returns when the current phase of the update started: the installation, or the
// preparation before it.
func (s *scope) osPhaseStart() time.Time {
	if at := s.status.OSUpdate.InstallStartedAt; at != nil {
		return at.Time
	}

	return s.status.OSUpdate.StartedAt.Time
}

// osTimeLeft returns the time left for the current phase of the update.
func (s *scope) osTimeLeft() time.Duration { return s.osTimeout() - s.Clock.Since(s.osPhaseStart()) }

// osTimeout returns the limit for each phase of an update. If the fleet no longer names a version,
// an update that has started continues with the default limit.
func (s *scope) osTimeout() time.Duration {
	const usual = 2 * time.Hour
	if s.fleet.Spec.MacOS == nil {
		return usual
	}

	return cmp.Or(s.fleet.Spec.MacOS.Timeout.Duration, usual)
}

// newOSDrainer returns the Drainer of the host's Node for an update of the operating system.
func (s *scope) newOSDrainer() drain.Drainer {
	drainer := s.newDrainer()
	drainer.Status, drainer.IsTemporary = &s.status.OSUpdate.Drain, true

	return drainer
}

// startOSInstall records that the installation starts and starts it. The record comes first because
// the progress of a started installation can't be determined without it.
func (s *scope) startOSInstall(ctx context.Context) step.Result {
	s.status.OSUpdate.InstallStartedAt = new(metav1.NewTime(s.Clock.Now()).Rfc3339Copy())
	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(err)
	}

	return s.startOSStep(ctx, OSInstall, s.osTimeLeft())
}

// failUnreachableAfterRestart ends the update of a host that was not reachable in time after its restart.
func (s *scope) failUnreachableAfterRestart() {
	update := s.status.OSUpdate
	drift.FailOSUpdate(s.status, s.Clock.Now(), drift.ReasonRestartTimedOut, fmt.Sprintf(
		"the host has been unreachable since %s: %s",
		update.AwaySince.UTC().Format(time.RFC3339), s.status.ContactMessage))

	s.status.UnreachableSince, s.status.ContactAttempts = update.AwaySince, 1
}

// startOSStep starts a job that runs a step of the update on the host. It waits while another job runs on
// the host, and for the base back-off after the last contact.
func (s *scope) startOSStep(ctx context.Context, osStep OSStep, remaining time.Duration) step.Result {
	update := s.status.OSUpdate
	if s.runningAction() != "" {
		return step.Wait(resyncInterval, reasonUpdatingOS, s.osMessage())
	}

	if last := s.status.LastContactTime; last != nil && last.After(update.StartedAt.Time) {
		if wait := min(last.Add(s.Settings.Policy.BaseBackoff).Sub(s.Clock.Now()), remaining); wait > 0 {
			return step.Wait(wait, s.osReason(), s.osMessage())
		}
	}

	// The start time identifies the attempt, and stays the same for all of its steps.
	attempt := strconv.FormatInt(s.osPhaseStart().Unix(), 10)

	return s.startJob(ctx, job{action: drift.OSUpdate, osStep: OSStepParams{
		Step: osStep, Version: update.Version, Label: update.Label, Attempt: attempt,
	}})
}

// recordOSStepFailed records that the job of a step could not start, for example because a Secret is
// missing. The host then counts as unreachable, and the step is tried again.
func (s *scope) recordOSStepFailed(err error) step.Result {
	if errclass.ClassOf(err) == errclass.Transient {
		return step.Fail(err)
	}

	now := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	s.status.LastContactTime, s.status.ContactMessage = &now, err.Error()
	s.status.ContactReason = errclass.ReasonOf(err, "Misconfigured")

	if s.status.OSUpdate.AwaySince == nil {
		s.status.OSUpdate.AwaySince = &now
	}

	return step.Wait(s.Settings.Policy.BaseBackoff, s.status.ContactReason, err.Error())
}

func (s *scope) osReason() string {
	if s.status.OSUpdate.AwaySince != nil {
		return reasonRestarting
	}

	return reasonUpdatingOS
}

func (s *scope) osMessage() string {
	update := s.status.OSUpdate
	summary := fmt.Sprintf("updating the host from macOS %s to %s", s.status.OSVersion, update.Version)

	switch {
	case update.AwaySince != nil:
		return fmt.Sprintf("%s: the host has been unreachable since %s, probably because it is restarting; "+
			"the update fails if the host is not back by %s: %s",
			summary, update.AwaySince.UTC().Format(time.RFC3339), s.Clock.Now().Add(s.osTimeLeft()).UTC().Format(time.RFC3339),
			s.status.ContactMessage)
	case update.Progress != "":
		return summary + ": " + update.Progress
	default:
		return summary
	}
}

// finishOSUpdate returns the host's Node to service and records the result of the update. A
// successful update is finished only when the Node is ready.
func (s *scope) finishOSUpdate(ctx context.Context) step.Result {
	update := s.status.OSUpdate

	if update.Drain != nil && s.fleet.Spec.Drain != nil {
		isReady, err := s.newOSDrainer().Uncordon(ctx)

		switch {
		case err != nil:
			return step.Wait(retryInterval, errclass.ReasonOf(err, reasonWaitingForNode),
				fmt.Sprintf("return Node %s to service: %v", s.obj.GetName(), err))
		case !isReady && update.Reason == "" && s.osTimeLeft() > 0:
			return step.Wait(min(retryInterval, s.osTimeLeft()), reasonWaitingForNode,
				fmt.Sprintf("the host has macOS %s, but its Node is not ready yet", s.status.OSVersion))
		case !isReady && update.Reason == "":
			drift.FailOSUpdate(s.status, s.Clock.Now(), drift.ReasonNodeNotReady,
				fmt.Sprintf("the host has macOS %s, but its Node was not ready within %s", s.status.OSVersion, s.osTimeout()))
		}
	}

	version, reason, message := update.Version, update.Reason, update.Message

	verdict := drift.FinishOSUpdate(s.status, s.Settings.Policy)
	s.updatePhase()

	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(err)
	}

	if verdict == drift.Succeeded {
		s.Recorder.Eventf(s.obj, nil, corev1.EventTypeNormal, reasonOSUpdated, string(drift.OSUpdate),
			"the host has macOS %s", s.status.OSVersion)
	} else {
		s.Recorder.Eventf(s.obj, nil, corev1.EventTypeWarning, reasonOSFailed, string(drift.OSUpdate),
			"update to macOS %s: %s: %s", version, reason, message)
	}

	return step.Done()
}

// runOSStep runs a step of an update on a host. Once the host has the desired version, runOSStep
// repairs the parts that the update has removed. It does not repair the kubeconfig or parts that differ from the applied
// configuration, because those need a permit of their own.
func (p *WorkerPool) runOSStep(ctx context.Context, conn *ssh.Conn, work job, options push.Options, out *outcome) {
	output, err := runOSScript(ctx, conn, work.osScript, p.timeout)
	if err != nil {
		out.Err = err

		return
	}

	out.OSVersion, out.OSUpdate, out.Err = parseOSOutput(output)
	if out.Err != nil || !drift.IsAtLeast(out.OSVersion, work.osStep.Version) {
		return
	}

	lost, err := probeLostParts(ctx, conn, work.plan, options)
	if err != nil {
		out.Err = err

		return
	}

	excluded := map[string]bool{plan.KubeconfigLabel: true}
	for _, change := range plan.Diff(work.plan.Digests(), work.appliedDigests) {
		excluded[change.Label] = true
	}

	toRepair := slices.DeleteFunc(slices.Clone(lost), func(label string) bool { return excluded[label] })
	if len(toRepair) == 0 {
		out.Result.LostParts = lost

		return
	}

	// Apply probes the parts again, and sets LostParts.
	out.Result = push.Apply(ctx, conn, work.plan, work.plan.DriftSteps(toRepair...), options)
}

// queryOSVersion returns the version of a host's operating system, or drift.UnknownOS if the query
// fails.
func (p *WorkerPool) queryOSVersion(ctx context.Context, conn *ssh.Conn, work job) string {
	output, err := runOSScript(ctx, conn, work.osScript, p.timeout)
	if err != nil {
		return drift.UnknownOS
	}

	version, _, err := parseOSOutput(output)
	if err != nil {
		return drift.UnknownOS
	}

	return cmp.Or(version, drift.UnknownOS)
}

func runOSScript(ctx context.Context, conn *ssh.Conn, part plan.Part, timeout time.Duration) (string, error) {
	script := ssh.Script{Label: part.Label, Input: strings.NewReader(part.Input()), Timeout: timeout}
	if !part.Secret.IsEmpty() {
		script.Secrets = append(script.Secrets, part.Secret)
	}

	out, err := conn.Run(ctx, script)

	return out.Stdout, err
}

// parseOSOutput parses the output of a step: lines that begin with version, offered, running or
// failed. Truncated output never ends an update.
func parseOSOutput(output string) (version string, status drift.OSUpdateStatus, err error) {
	lines := bufio.NewScanner(strings.NewReader(output))
	for lines.Scan() {
		keyword, rest, _ := strings.Cut(lines.Text(), " ")
		rest = sanitizeOutput(rest)

		switch keyword {
		case "version":
			version = rest
		case "offered":
			status.Label = rest
		case "running":
			status.Running, status.Progress = true, rest
		case "failed":
			status.Reason, status.Message, _ = strings.Cut(rest, " ")
		default:
			return "", status, fmt.Errorf("parse output of operating system query: unknown line %q", sanitizeOutput(lines.Text()))
		}
	}

	if err := lines.Err(); err != nil {
		return "", status, fmt.Errorf("parse output of operating system query: %w", err)
	}

	return version, status, nil
}

// sanitizeOutput removes control characters and limits the length of a line of a host's output.
func sanitizeOutput(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}

		return r
	}, strings.ToValidUTF8(text, "?"))

	if len(text) > maxOutput {
		text = strings.ToValidUTF8(text[:maxOutput], "")
	}

	return strings.TrimSpace(text)
}
