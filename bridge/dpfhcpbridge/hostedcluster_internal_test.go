// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
