// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/test/heap"
)

// The state of objects that were deleted without a last run is deleted.
func TestStateOfDeletedObjectsIsFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	now := time.Unix(1e9, 0)

	var known objectStates

	heap.CheckNoLeak(t, "objects", func(number int) {
		now = now.Add(time.Second)

		for i, remember := range []func(*corev1.ConfigMap){
			func(obj *corev1.ConfigMap) { known.recordWrite(obj, now) },
			func(obj *corev1.ConfigMap) { known.deferWrite(obj, obj, Wait(0, "A", "").DeferWrite(), nil, now) },
		} {
			obj := &corev1.ConfigMap{}
			obj.UID, obj.ResourceVersion = types.UID(fmt.Sprint(number, i)), "1"
			remember(obj)
		}
	})

	if left := len(known.written) + len(known.deferred); left > 1000 {
		t.Errorf("state of %d objects is left", left)
	}
}
