// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// newExternalChangePredicate returns a predicate that accepts only changes that this controller has not
// made: to the spec, the deletion timestamp, labels, annotations and finalizers, and to the status fields
// in externalStatus. Status updates of this controller must not enqueue the claim. Otherwise the update
// after each failed attempt would cause the next attempt.
func newExternalChangePredicate() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, oldOK := e.ObjectOld.(*v1alpha1.MachineClaim)
			after, newOK := e.ObjectNew.(*v1alpha1.MachineClaim)

			return !oldOK || !newOK || isExternalChange(before, after)
		},
	}
}

func isExternalChange(before, after *v1alpha1.MachineClaim) bool {
	return before.Generation != after.Generation ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Annotations, after.Annotations) ||
		!equality.Semantic.DeepEqual(before.Finalizers, after.Finalizers) ||
		!equality.Semantic.DeepEqual(externalStatusOf(before), externalStatusOf(after))
}

// externalStatus holds the fields of a claim's status that other components write. Its fields are exported
// because DeepEqual compares them.
type externalStatus struct {
	// Written by runners/report: the report of the machine.
	Phase, Message, Reason, Result string
	ReportedAt                     *metav1.MicroTime
	// Written by runners/handover and runners/devid.
	UsedAt, GivenAt *metav1.MicroTime
	Device          *v1alpha1.DeviceIdentity
	// Written by the networking area.
	Addresses       []string
	AllocatedStatus metav1.ConditionStatus
	AllocatedReason string
}

func externalStatusOf(claim *v1alpha1.MachineClaim) externalStatus {
	var out externalStatus

	if info := claim.Status.BootstrapInfo; info != nil {
		out.Phase, out.Message, out.Reason, out.Result = info.GuestPhase, info.GuestMessage, info.GuestReason, info.JobResult
		out.ReportedAt = info.ReportedAt

		if info.Handover != nil {
			out.UsedAt, out.GivenAt = info.Handover.UsedAt, info.Handover.GivenAt
		}

		if info.Identity != nil {
			out.Device = info.Identity.Device
		}
	}

	if info := claim.Status.NetworkInfo; info != nil {
		out.Addresses = info.Addresses
	}

	if allocated := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated); allocated != nil {
		out.AllocatedStatus, out.AllocatedReason = allocated.Status, allocated.Reason
	}

	return out
}
