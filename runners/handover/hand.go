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
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// underWay is how long after its use a code without a credential may still get one:
	// after that whoever was at it is gone.
	underWay = 2 * guestapi.Timeout
	// maxWrites bounds the tries of one write that others get in the way of.
	maxWrites = 8
	// afterwards bounds what is still done when the caller or its time is gone.
	afterwards = 10 * time.Second
)

// hand makes the caller's credential, at most once in its claim's life.
func (h *Handler) hand(ctx context.Context, who caller) (guest.Credential, *guestapi.Refusal) {
	claim, refused := h.open(ctx, who)
	if refused != nil {
		return guest.Credential{}, refused
	}

	order, refused := h.order(ctx, claim)
	if refused != nil {
		return guest.Credential{}, refused
	}

	if refused := h.use(ctx, who, claim); refused != nil {
		return guest.Credential{}, refused
	}

	start := h.Clock.Now()

	credential, err := order.provider.Issue(ctx, order.request)
	if err != nil {
		return guest.Credential{}, h.notIssued(ctx, who, claim, order, err)
	}

	h.Metrics.took(claim, h.Clock.Since(start))

	if refused := h.give(ctx, who, claim, order, credential); refused != nil {
		return guest.Credential{}, refused
	}

	h.Recorder.Eventf(claim, nil, corev1.EventTypeNormal, ReasonHandedOver, "HandOver",
		"the credential of runner %s was made and handed to its machine", order.request.Name)

	var config guest.Config

	credential.Apply(&config)

	return config.Credential(), nil
}

// open gives the claim whose code may be used now.
func (h *Handler) open(ctx context.Context, who caller) (*v1alpha1.MachineClaim, *guestapi.Refusal) {
	claim, refused := guestapi.Read(ctx, h.Live, who.Caller, guest.ReasonCredentialRefused)
	if refused != nil {
		return nil, refused
	}

	if refused := judge(claim, who.proof, h.Clock.Now()); refused != nil {
		return nil, refused
	}

	return claim, nil
}

func gone() *guestapi.Refusal { return guestapi.Gone(guest.ReasonCredentialRefused) }

// judge tells why a claim's credential cannot be had now by the given proof, nil if it can.
// It is pure.
func judge(claim *v1alpha1.MachineClaim, proof string, now time.Time) *guestapi.Refusal {
	info := claim.Status.BootstrapInfo

	if info == nil || info.Handover == nil {
		refused := guestapi.Never(http.StatusForbidden, guestapi.OutcomeNotOffered, guest.ReasonCredentialRefused,
			"the machine was offered no claim code: its credential came another way")
		refused.Claim = claim

		return refused
	}

	if want := vmspec.ProofOf(info.Handover); proof != want {
		refused := guestapi.Never(http.StatusForbidden, outcomeWrongProof, guest.ReasonCredentialRefused,
			fmt.Sprintf("the machine has to prove itself by its %s, and not by its %s", word(want), word(proof)))
		refused.Claim = claim

		return refused
	}

	used, given := info.Handover.UsedAt, info.Handover.GivenAt

	switch {
	case used == nil:
		return nil
	case given == nil && now.Sub(used.Time) < underWay:
		return guestapi.Later("the credential is being made: try again")
	}

	message := "the " + word(proof) + " was used before"
	if given == nil {
		message += ", and the handover broke off: the machine gets no credential"
	}

	refused := guestapi.Never(http.StatusConflict, guestapi.OutcomeUsed, guest.ReasonCredentialRefused, message)
	refused.Claim = claim

	return refused
}

// word is that of a proof, for people.
func word(proof string) string {
	if proof == v1alpha1.ProofSVID {
		return "SVID"
	}

	return "claim code"
}

// order is the credential that is to be made.
type order struct {
	provider workload.Provider
	request  workload.RunnerRequest
	// job is the one that the runner is for, where the platform binds them.
	job *v1alpha1.RunnerJob
}

// order finds out all that the credential is made of. What goes wrong here costs the
// machine nothing: its code is not used yet.
func (h *Handler) order(ctx context.Context, claim *v1alpha1.MachineClaim) (order, *guestapi.Refusal) {
	unavailable := func(err error) (order, *guestapi.Refusal) {
		log.FromContext(ctx).Error(err, "credential cannot be made", "namespace", claim.Namespace, "claim", claim.Name)

		return order{}, guestapi.Later("the credential cannot be made at present: try again")
	}

	var template v1alpha1.HypervisorMachineTemplate

	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Spec.TemplateRef.Name}
	if err := h.Client.Get(ctx, name, &template); err != nil {
		return unavailable(fmt.Errorf("get template %s: %w", name, err))
	}

	provider, err := h.Workloads.For(ctx, &template, claim.Spec.WorkloadConfig)
	if err != nil {
		return unavailable(err)
	}

	runner, err := h.Workloads.Runner(&template, claim.Spec.WorkloadConfig)
	if err != nil {
		return unavailable(err)
	}

	out := order{provider: provider, request: vmspec.RunnerRequest(claim, runner, h.Settings)}
	if !runner.Binds {
		return out, nil
	}

	var job v1alpha1.RunnerJob

	info := claim.Status.BootstrapInfo
	err = h.Client.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: info.BoundJob}, &job)

	mine := job.Spec.State == v1alpha1.JobRunning && job.Spec.RunnerName == out.request.Name

	switch {
	case info.BoundJob == "", apierrors.IsNotFound(err), err == nil && job.Spec.State != v1alpha1.JobQueued && !mine:
		return order{}, jobGone()
	case err != nil:
		return unavailable(fmt.Errorf("get job %s: %w", info.BoundJob, err))
	}

	out.job, out.request.Job = &job, &job.Spec

	return out, nil
}

func jobGone() *guestapi.Refusal {
	return guestapi.Never(http.StatusGone, guestapi.OutcomeGone, guest.ReasonJobGone,
		"the job that the machine was made for is no longer available")
}

// use puts the code's use on record. Of two that try only one gets through: the write is
// of the claim as it was read.
func (h *Handler) use(ctx context.Context, who caller, claim *v1alpha1.MachineClaim) *guestapi.Refusal {
	for try := 1; ; try++ {
		base := claim.DeepCopy()
		now := metav1.NewMicroTime(h.Clock.Now())
		claim.Status.BootstrapInfo.Handover.UsedAt = &now

		err := h.Client.Status().Patch(ctx, claim, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))

		switch {
		case err == nil:
			return nil
		case apierrors.IsNotFound(err):
			return gone()
		case !apierrors.IsConflict(err) || try == maxWrites:
			log.FromContext(ctx).Error(err, "use of claim code was not written", "namespace", who.Namespace, "claim", who.Name)

			return guestapi.Later("the claim cannot be written: try again")
		}

		fresh, refused := h.open(ctx, who)
		if refused != nil {
			return refused
		}

		*claim = *fresh
	}
}

// notIssued takes the use of the code back, for there is no credential, and says what the
// machine does next. A crash before that leaves the code used.
func (h *Handler) notIssued(
	ctx context.Context, who caller, claim *v1alpha1.MachineClaim, order order, cause error,
) *guestapi.Refusal {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()

	log.FromContext(ctx).Error(cause, "credential was not made", "namespace", who.Namespace, "claim", who.Name)

	if order.job != nil && workload.Is(cause, workload.NotFound) {
		h.recordJobState(ctx, order)

		return jobGone()
	}

	if err := h.patch(ctx, claim, map[string]any{"handover": map[string]any{"usedAt": nil}}); err != nil {
		log.FromContext(ctx).Error(err, "use of claim code was not taken back", "namespace", who.Namespace, "claim", who.Name)
	}

	out := guestapi.Later("the CI platform gives no credential at present: try again")

	if workload.Is(cause, workload.Rejected) || workload.Is(cause, workload.Conflict) {
		h.Recorder.Eventf(claim, nil, corev1.EventTypeWarning, ReasonRefused, "HandOver",
			"the CI platform gave no credential for runner %s: %v", order.request.Name, cause)
	}

	if known, ok := errors.AsType[*workload.Error](cause); ok && known.After > 0 {
		out.After = known.After
	}

	return out
}

// recordJobState writes the platform's word on a job that is not available into the ledger, so
// that no other machine is made for it.
func (h *Handler) recordJobState(ctx context.Context, order order) {
	job := order.job

	said, err := order.provider.Job(ctx, job.Spec.Repository, job.Spec.ID)
	if err == nil {
		said.Platform, said.ID, said.URL = job.Spec.Platform, job.Spec.ID, job.Spec.URL
		ledger := &demand.Ledger{Client: h.Client, Live: h.Live, Platforms: h.Workloads.Platforms}
		_, err = ledger.Record(ctx, job.Namespace, said, h.Clock.Now())
	}

	if err != nil {
		log.FromContext(ctx).Error(err, "job state was not recorded", "namespace", job.Namespace, "job", job.Name)
	}
}

// give puts on record what was made, so that it is found and removed with the claim. Where
// that fails it is not handed over.
func (h *Handler) give(
	ctx context.Context, who caller, claim *v1alpha1.MachineClaim, order order, credential workload.Credential,
) *guestapi.Refusal {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()

	info := map[string]any{
		"runnerName": order.request.Name, "runnerId": credential.RunnerID,
		"handover": map[string]any{"givenAt": metav1.NewMicroTime(h.Clock.Now())},
	}
	if !credential.ExpiresAt.IsZero() {
		info["expiresAt"] = metav1.NewTime(credential.ExpiresAt)
	}

	err := h.patch(ctx, claim, info)
	if err == nil && claim.DeletionTimestamp.IsZero() {
		return nil
	}

	if err != nil {
		log.FromContext(ctx).Error(err, "handover was not written", "namespace", who.Namespace, "claim", who.Name)
	}

	// Nobody will have it: its runner goes at once, as far as that is known already.
	if credential.RunnerID != "" {
		if err := order.provider.Deregister(ctx, credential.RunnerID); err != nil && !workload.Is(err, workload.NotFound) {
			log.FromContext(ctx).Error(err, "runner was not removed", "runner", order.request.Name)
		}
	}

	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return gone()
	}

	return guestapi.Later("the handover cannot be written: try again")
}

// patch writes into the bootstrapInfo of this very claim, never of a later one of its name.
// Others' writes do not get in the way.
func (h *Handler) patch(ctx context.Context, claim *v1alpha1.MachineClaim, info map[string]any) error {
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
