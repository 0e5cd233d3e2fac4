// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// issueTimeout is how long after its use was recorded a credential may still be issued. After this time
	// the request that recorded the use has ended.
	issueTimeout = 2 * guestapi.Timeout
	// maxWriteAttempts limits how often a status write is retried after a conflict.
	maxWriteAttempts = 8
	// maxRunnerListAge is the maximum age of the list of runners in which checkUnused looks for the machine's
	// runner. If a restored backup has lost the use of a proof, the proof was used longer ago than that.
	maxRunnerListAge = 30 * time.Second
)

// issueCredential issues the credential of the machine. It issues at most one credential for each claim.
func (h *Handler) issueCredential(ctx context.Context, machine machineCaller) (guest.Credential, *guestapi.Refusal) {
	claim, refusal := h.getOpenClaim(ctx, machine)
	if refusal != nil {
		return guest.Credential{}, refusal
	}

	issuance, refusal := h.prepareIssuance(ctx, claim)
	if refusal != nil {
		return guest.Credential{}, refusal
	}

	if refusal := h.checkUnused(ctx, claim, machine.proof, issuance); refusal != nil {
		return guest.Credential{}, refusal
	}

	if refusal := h.recordUse(ctx, machine, claim); refusal != nil {
		return guest.Credential{}, refusal
	}

	start := h.Clock.Now()

	credential, err := issuance.provider.IssueCredential(ctx, issuance.request)
	if err != nil {
		return guest.Credential{}, h.handleIssueError(ctx, machine, claim, issuance, err)
	}

	h.Metrics.observeIssue(claim, h.Clock.Since(start))

	if refusal := h.recordHandover(ctx, machine, claim, issuance, credential); refusal != nil {
		return guest.Credential{}, refusal
	}

	h.Recorder.Eventf(claim, nil, corev1.EventTypeNormal, ReasonHandedOver, "HandOver",
		"issued the credential of runner %s and handed it over to the machine", issuance.request.Name)

	var config guest.Config

	credential.Apply(&config)

	return config.Credential(), nil
}

// getOpenClaim reads the machine's claim, and refuses if the machine cannot get a credential at this time.
func (h *Handler) getOpenClaim(ctx context.Context, machine machineCaller) (*v1alpha1.MachineClaim, *guestapi.Refusal) {
	claim, refusal := guestapi.GetClaim(ctx, h.Live, machine.Caller, guest.ReasonCredentialRefused)
	if refusal != nil {
		return nil, refusal
	}

	if refusal := checkOffer(claim, machine.proof, h.Clock.Now()); refusal != nil {
		return nil, refusal
	}

	return claim, nil
}

func newGoneRefusal() *guestapi.Refusal {
	return guestapi.NewGoneRefusal(guest.ReasonCredentialRefused)
}

// checkOffer returns a refusal if the machine cannot get a credential with this kind of proof at this time,
// and nil if it can. checkOffer is pure.
func checkOffer(claim *v1alpha1.MachineClaim, proof string, now time.Time) *guestapi.Refusal {
	info := claim.Status.BootstrapInfo

	if info == nil || info.Handover == nil {
		refusal := guestapi.NewTerminalRefusal(http.StatusForbidden, guestapi.OutcomeNotOffered, guest.ReasonCredentialRefused,
			"no credential was offered to the machine: its bootstrap method is not callback, or its claim was restored "+
				"without the record of the offer")
		refusal.Claim = claim

		return refusal
	}

	if expected := vmspec.OfferedProof(info.Handover); proof != expected {
		refusal := guestapi.NewTerminalRefusal(http.StatusForbidden, outcomeWrongProof, guest.ReasonCredentialRefused,
			fmt.Sprintf("the machine must authenticate with its %s, not with its %s", proofName(expected), proofName(proof)))
		refusal.Claim = claim

		return refusal
	}

	usedAt, givenAt := info.Handover.UsedAt, info.Handover.GivenAt

	switch {
	case usedAt == nil:
		return nil
	case givenAt == nil && now.Sub(usedAt.Time) < issueTimeout:
		return guestapi.NewTransientRefusal("another request of the machine is issuing the credential: retry later")
	}

	message := "the " + proofName(proof) + " was already used"
	if givenAt == nil {
		message += ", but the handover failed: the machine gets no credential"
	}

	refusal := guestapi.NewTerminalRefusal(http.StatusConflict, guestapi.OutcomeUsed, guest.ReasonCredentialRefused, message)
	refusal.Claim = claim

	return refusal
}

// proofName returns the name of a proof for messages.
func proofName(proof string) string {
	if proof == v1alpha1.ProofSVID {
		return "SVID"
	}

	return "claim code"
}

// credentialIssuance is what the handler needs to issue a credential.
type credentialIssuance struct {
	provider workload.Provider
	request  workload.RunnerRequest
	// job is the job of the runner if the CI platform binds each runner to one job, and nil otherwise.
	job *v1alpha1.RunnerJob
}

// prepareIssuance collects what is needed to issue the credential. On an error it returns a transient
// refusal, because the use of the proof is not recorded yet. If the job of the machine is no longer
// available, the refusal is terminal.
func (h *Handler) prepareIssuance(
	ctx context.Context, claim *v1alpha1.MachineClaim,
) (credentialIssuance, *guestapi.Refusal) {
	unavailable := func(err error) (credentialIssuance, *guestapi.Refusal) {
		log.FromContext(ctx).Error(err, "prepare credential", "namespace", claim.Namespace, "claim", claim.Name)

		return credentialIssuance{}, guestapi.NewTransientRefusal(
			"the operator cannot issue the credential at the moment: retry later",
		)
	}

	var template v1alpha1.HypervisorMachineTemplate

	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Spec.TemplateRef.Name}
	if err := h.Client.Get(ctx, name, &template); err != nil {
		return unavailable(fmt.Errorf("get template %s: %w", name, err))
	}

	provider, err := h.Workloads.ProviderFor(ctx, &template, claim.Spec.WorkloadConfig)
	if err != nil {
		return unavailable(err)
	}

	runner, err := h.Workloads.ResolveRunner(&template, claim.Spec.WorkloadConfig)
	if err != nil {
		return unavailable(err)
	}

	out := credentialIssuance{provider: provider, request: vmspec.NewRunnerRequest(claim, runner, h.Settings)}
	if !runner.NeedsJob {
		return out, nil
	}

	var job v1alpha1.RunnerJob

	info := claim.Status.BootstrapInfo
	err = h.Client.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: info.BoundJob}, &job)

	isTakenByRunner := job.Spec.State == v1alpha1.JobRunning && job.Spec.RunnerName == out.request.Name

	switch {
	case info.BoundJob == "", apierrors.IsNotFound(err), err == nil && job.Spec.State != v1alpha1.JobQueued && !isTakenByRunner:
		return credentialIssuance{}, newJobGoneRefusal()
	case err != nil:
		return unavailable(fmt.Errorf("get job %s: %w", info.BoundJob, err))
	}

	out.job, out.request.Job = &job, &job.Spec

	return out, nil
}

// checkUnused returns a refusal if the CI platform lists the claim's runner as connected. The proof was then used before,
// although the claim's status does not say so, because the claim was restored from a backup. If the platform does not
// respond, checkUnused returns nil, because it would not issue a credential either.
func (h *Handler) checkUnused(
	ctx context.Context, claim *v1alpha1.MachineClaim, proof string, issuance credentialIssuance,
) *guestapi.Refusal {
	runner, err := issuance.provider.FindRunner(ctx, issuance.request.Name, maxRunnerListAge)
	if err != nil || !runner.Online && !runner.Busy {
		return nil
	}

	refusal := guestapi.NewTerminalRefusal(http.StatusConflict, guestapi.OutcomeUsed, guest.ReasonCredentialRefused,
		"the "+proofName(proof)+" was already used: runner "+runner.Name+" is connected to the CI platform")
	refusal.Claim = claim

	return refusal
}

func newJobGoneRefusal() *guestapi.Refusal {
	return guestapi.NewTerminalRefusal(http.StatusGone, guestapi.OutcomeGone, guest.ReasonJobGone,
		"the job of the machine is no longer available")
}

// recordUse records in the claim's status that the proof is used. If two requests race, optimistic locking
// lets only one of them write.
func (h *Handler) recordUse(ctx context.Context, machine machineCaller, claim *v1alpha1.MachineClaim) *guestapi.Refusal {
	for attempt := 1; ; attempt++ {
		base := claim.DeepCopy()
		now := metav1.NewMicroTime(h.Clock.Now())
		claim.Status.BootstrapInfo.Handover.UsedAt = &now

		err := h.Client.Status().Patch(ctx, claim, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))

		switch {
		case err == nil:
			return nil
		case apierrors.IsNotFound(err):
			return newGoneRefusal()
		case !apierrors.IsConflict(err) || attempt == maxWriteAttempts:
			log.FromContext(ctx).Error(err, "write use of proof to claim status", "namespace", machine.Namespace, "claim", machine.Name)

			return guestapi.NewTransientRefusal("the operator cannot update the claim: retry later")
		}

		fresh, refusal := h.getOpenClaim(ctx, machine)
		if refusal != nil {
			return refusal
		}

		*claim = *fresh
	}
}

// handleIssueError resets the recorded use, because no credential was issued, and returns the refusal for
// the machine. If the operator crashes before the reset, the proof stays used. If the CI platform no longer
// has the job, handleIssueError keeps the use and records the job's state.
func (h *Handler) handleIssueError(
	ctx context.Context, machine machineCaller, claim *v1alpha1.MachineClaim, issuance credentialIssuance, cause error,
) *guestapi.Refusal {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retry.EndGrace)
	defer cancel()

	log.FromContext(ctx).Error(cause, "issue credential", "namespace", machine.Namespace, "claim", machine.Name)

	if issuance.job != nil && workload.Is(cause, workload.NotFound) {
		h.recordJobState(ctx, issuance)

		return newJobGoneRefusal()
	}

	if err := h.patchBootstrapInfo(ctx, claim, map[string]any{"handover": map[string]any{"usedAt": nil}}); err != nil {
		log.FromContext(ctx).Error(err, "reset use of proof in claim status", "namespace", machine.Namespace, "claim", machine.Name)
	}

	out := guestapi.NewTransientRefusal("the CI platform does not issue a credential at the moment: retry later")

	if workload.Is(cause, workload.Rejected) || workload.Is(cause, workload.Conflict) {
		h.Recorder.Eventf(claim, nil, corev1.EventTypeWarning, ReasonRefused, "HandOver",
			"the CI platform refused to issue a credential for runner %s: %v", issuance.request.Name, cause)
	}

	if platformErr, ok := errors.AsType[*workload.Error](cause); ok && platformErr.RetryAfter > 0 {
		out.RetryAfter = platformErr.RetryAfter
	}

	return out
}

// recordJobState reads the job from the CI platform and records its state in the RunnerJob, so that no
// other machine is created for a job that is no longer available.
func (h *Handler) recordJobState(ctx context.Context, issuance credentialIssuance) {
	job := issuance.job

	current, err := issuance.provider.GetJob(ctx, job.Spec.Repository, job.Spec.ID)
	if err == nil {
		current.Platform, current.ID, current.URL = job.Spec.Platform, job.Spec.ID, job.Spec.URL
		ledger := &demand.Ledger{Client: h.Client, Live: h.Live, Platforms: h.Workloads.Platforms}
		_, err = ledger.Update(ctx, job, current, h.Clock.Now())
	}

	if err != nil {
		log.FromContext(ctx).Error(err, "record job state", "namespace", job.Namespace, "job", job.Name)
	}
}

// recordHandover records the runner in the claim's status, so that the runner is found and removed with the
// claim. The write also updates claim. If the write fails or the claim is being deleted, recordHandover
// deregisters the runner and returns a refusal.
func (h *Handler) recordHandover(
	ctx context.Context, machine machineCaller, claim *v1alpha1.MachineClaim, issuance credentialIssuance,
	credential workload.Credential,
) *guestapi.Refusal {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retry.EndGrace)
	defer cancel()

	info := map[string]any{
		"runnerName": issuance.request.Name, "runnerId": credential.RunnerID,
		"handover": map[string]any{"givenAt": metav1.NewMicroTime(h.Clock.Now())},
	}
	if !credential.ExpiresAt.IsZero() {
		info["expiresAt"] = metav1.NewTime(credential.ExpiresAt)
	}

	err := h.patchBootstrapInfo(ctx, claim, info)
	if err == nil && claim.DeletionTimestamp.IsZero() {
		return nil
	}

	if err != nil {
		log.FromContext(ctx).Error(err, "write handover to claim status", "namespace", machine.Namespace, "claim", machine.Name)
	}

	// The machine does not get the credential, so the runner is deregistered. Some platforms return no runner
	// ID yet.
	if credential.RunnerID != "" {
		if err := issuance.provider.Deregister(ctx, credential.RunnerID); err != nil && !workload.Is(err, workload.NotFound) {
			log.FromContext(ctx).Error(err, "deregister runner", "runner", issuance.request.Name)
		}
	}

	// Without an error, the claim is being deleted. After a conflict, another claim has its name.
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return newGoneRefusal()
	}

	return guestapi.NewTransientRefusal("the operator cannot record the handover: retry later")
}

// patchBootstrapInfo merges fields into status.bootstrapInfo of the claim. The patch holds the UID, so it
// fails for a newer claim of the same name. It holds no resource version, so it cannot conflict with other
// writes.
func (h *Handler) patchBootstrapInfo(ctx context.Context, claim *v1alpha1.MachineClaim, info map[string]any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID},
		"status":   map[string]any{"bootstrapInfo": info},
	})
	if err != nil {
		return fmt.Errorf("marshal handover: %w", err)
	}

	if err := h.Client.Status().Patch(ctx, claim, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("patch handover of claim %s: %w", client.ObjectKeyFromObject(claim), err)
	}

	return nil
}
