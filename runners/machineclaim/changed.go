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

// changedByOthers lets through what others have changed of a claim: its spec, its deletion, what is said
// of it in the metadata, and what others write into its status. The controller's own status
// writes wake nobody: a write after each failed try would else bring the next one about.
func changedByOthers() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.MachineClaim)
			after, ok2 := e.ObjectNew.(*v1alpha1.MachineClaim)

			return !ok || !ok2 || isChangeOfOthers(before, after)
		},
	}
}

func isChangeOfOthers(before, after *v1alpha1.MachineClaim) bool {
	return before.Generation != after.Generation ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Annotations, after.Annotations) ||
		!equality.Semantic.DeepEqual(before.Finalizers, after.Finalizers) ||
		!equality.Semantic.DeepEqual(heard(before), heard(after))
}

// heardOf is what others write into the status of a claim. Its fields are exported for the
// comparison.
type heardOf struct {
	// By runners/report: the machine's word.
	Phase, Message, Reason, Result string
	Reported                       *metav1.MicroTime
	// By runners/handover and runners/devid.
	Used, Given *metav1.MicroTime
	Device      *v1alpha1.DeviceIdentity
	// By the networking area.
	Addresses []string
	Allocated metav1.ConditionStatus
	Why       string
}

func heard(claim *v1alpha1.MachineClaim) heardOf {
	var out heardOf

	if info := claim.Status.BootstrapInfo; info != nil {
		out.Phase, out.Message, out.Reason, out.Result = info.GuestPhase, info.GuestMessage, info.GuestReason, info.JobResult
		out.Reported = info.ReportedAt

		if info.Handover != nil {
			out.Used, out.Given = info.Handover.UsedAt, info.Handover.GivenAt
		}

		if info.Identity != nil {
			out.Device = info.Identity.Device
		}
	}

	if info := claim.Status.NetworkInfo; info != nil {
		out.Addresses = info.Addresses
	}

	if given := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated); given != nil {
		out.Allocated, out.Why = given.Status, given.Reason
	}

	return out
}
