// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// The job of a deleted claim gets the last state that the claim's controller had, which the API server never had. It
// gets nothing from an earlier claim of the same name.
func TestLastStateOfClaimIsKept(t *testing.T) {
	t.Parallel()

	now := time.Unix(1e9, 0)
	cached := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux-a", UID: "1"}}
	cached.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "runner-a"}

	last := cached.DeepCopy()
	last.Status.EndReason = "JobDone"

	r := &JobReconciler{}
	r.RecordEnd(last)
	r.deletedMachines.add(cached, now)

	job := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "gh-1"}}
	job.Spec.RunnerName = "runner-a"

	if got, ok := r.deletedMachines.find(job); !ok || got.EndReason != "JobDone" || !got.DeletedAt.Equal(now) {
		t.Errorf("machine %+v, %v", got, ok)
	}

	next := cached.DeepCopy()
	next.UID = "2"
	r.deletedMachines.add(next, now)

	if got, ok := r.deletedMachines.find(job); !ok || got.EndReason != "" || len(r.deletedMachines.ends) != 0 {
		t.Errorf("machine %+v, %v of the next claim; %d ends are kept", got, ok, len(r.deletedMachines.ends))
	}
}
