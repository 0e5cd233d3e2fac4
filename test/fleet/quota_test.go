// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// countedClaims is the name of the number of MachineClaims in a ResourceQuota.
const countedClaims = corev1.ResourceName("count/machineclaims.hyperfleet.io")

// TestQuotaOfClaims checks with Kubernetes' quota controller that a pool has no more machines than the quota of its
// namespace, says so, continues when a machine is deleted, and uses a quota that was raised.
func TestQuotaOfClaims(t *testing.T) {
	t.Parallel()

	managed := kube.Start(t, kube.WithCRDs("../../deploy/crds"), kube.WithControllerManager())
	f := newFastFleetIn(t, managed, fleet.Options{})
	quota := createQuota(t, f, "1")
	pool := f.NewPool(3)
	f.Populate(3)
	f.Start()
	f.EventuallyReady(pool)

	queueJobs(f, 2)
	f.EventuallyJobsDone(2)

	release := holdJobs(t, f, 1)
	queueJobs(f, 1)
	checkContains(t, f.EventuallyCondition(pool, "Scaling", metav1.ConditionFalse, "QuotaExceeded"), "exceeded quota: machines")

	if running := listRunning(f); len(running) != 1 {
		t.Errorf("%d machines run, want 1", len(running))
	}

	updateObject(f, quota, func() { quota.Spec.Hard[countedClaims] = resource.MustParse("2") })

	f.EventuallyJobsDone(3)
	release()
	f.EventuallyJobsDone(4)
	f.EventuallyClean()
}

// createQuota creates a quota for MachineClaims, and waits until the quota controller counts them. The controller finds
// new CRDs every 30 seconds, and does not look again at a quota that it could not compute.
func createQuota(t *testing.T, f *fleet.Fleet, machines string) *corev1.ResourceQuota {
	t.Helper()

	newQuota := func() *corev1.ResourceQuota {
		return &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "machines"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{countedClaims: resource.MustParse(machines)}},
		}
	}
	quota := newQuota()
	f.Create(quota)

	created := time.Now()

	timing.WaitUntil(t, "the quota is computed", func() bool {
		if time.Since(created) > time.Second {
			if err := f.Client.Delete(t.Context(), quota); err != nil {
				t.Fatal(err)
			}

			quota, created = newQuota(), time.Now()
			f.Create(quota)
		}

		if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(quota), quota); err != nil {
			t.Fatal(err)
		}

		_, isComputed := quota.Status.Used[countedClaims]

		return isComputed
	})

	return quota
}
