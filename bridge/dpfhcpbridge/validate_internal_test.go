// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// TestFirstBridge checks which bridge a DPUCluster or an address belongs to: a bridge that has
// created its cluster before a bridge that has not, then the older bridge, then the bridge with the
// lower UID.
func TestFirstBridge(t *testing.T) {
	t.Parallel()

	bridge := func(uid string, age time.Duration, made bool) *v1alpha1.DPFHCPBridge {
		b := &v1alpha1.DPFHCPBridge{}
		b.UID = types.UID(uid)
		b.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))

		if made {
			b.Status.HostedClusterRef = &v1alpha1.ObjectReference{Name: "c", Namespace: "n"}
		}

		return b
	}

	for name, pair := range map[string][2]*v1alpha1.DPFHCPBridge{
		"created, although younger":    {bridge("b", time.Hour, true), bridge("a", 2*time.Hour, false)},
		"older":                        {bridge("b", 2*time.Hour, false), bridge("a", time.Hour, false)},
		"older of two created bridges": {bridge("b", 2*time.Hour, true), bridge("a", time.Hour, true)},
		"lower uid":                    {bridge("a", time.Hour, false), bridge("b", time.Hour, false)},
	} {
		if !hasPrecedence(pair[0], pair[1]) || hasPrecedence(pair[1], pair[0]) {
			t.Errorf("%s: does not come first", name)
		}
	}
}
