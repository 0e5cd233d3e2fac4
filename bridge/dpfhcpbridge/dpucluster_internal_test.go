// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// TestWhichBridgeComesFirst checks which bridge a DPUCluster or an address belongs to: a bridge that has
// created its cluster before a bridge that has not, then the older bridge, then the bridge with the
// lower UID.
func TestWhichBridgeComesFirst(t *testing.T) {
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
		"made, though younger": {bridge("b", time.Hour, true), bridge("a", 2*time.Hour, false)},
		"older":                {bridge("b", 2*time.Hour, false), bridge("a", time.Hour, false)},
		"older of two made":    {bridge("b", 2*time.Hour, true), bridge("a", time.Hour, true)},
		"lower uid":            {bridge("a", time.Hour, false), bridge("b", time.Hour, false)},
	} {
		if !hasPrecedence(pair[0], pair[1]) || hasPrecedence(pair[1], pair[0]) {
			t.Errorf("%s: does not come first", name)
		}
	}
}

// TestBestAddress checks that a name without a dot is not used and the next best address is selected.
func TestBestAddress(t *testing.T) {
	t.Parallel()

	node := func(name string, addresses ...corev1.NodeAddress) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: addresses}}
	}
	internal := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}
	word := corev1.NodeAddress{Type: corev1.NodeExternalDNS, Address: "node1"}
	name := corev1.NodeAddress{Type: corev1.NodeExternalDNS, Address: "node1.example.com"}

	for want, nodes := range map[string][]corev1.Node{
		"10.0.0.1":          {node("a", word, internal)},
		"node1.example.com": {node("a", word, internal), node("b", name)},
		"":                  {node("a", word)},
	} {
		if got := selectNodeAddress(nodes); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
