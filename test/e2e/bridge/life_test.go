// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	hcp "github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift"
)

// patterns are the three deployment patterns of the requirements document.
var patterns = []struct {
	name, file, address string
}{
	{"production", "dpfhcpbridge-production.yaml", "192.168.1.100"},
	{"development", "dpfhcpbridge-development.yaml", ""},
	{"staging", "dpfhcpbridge-staging.yaml", "192.168.1.150"},
}

// TestPatterns checks that bridges of the three patterns become ready, are upgraded and are deleted, in parallel.
func TestPatterns(t *testing.T) {
	w := newFixture(t, nil)
	w.start(env.ServiceAccount(t, system, account))
	// The address of production is in an existing pool, that of staging in none.
	w.createPool("production", "192.168.1.96/28")

	bridges := []*v1alpha1.DPFHCPBridge{}
	for _, pattern := range patterns {
		bridges = append(bridges, w.prepareSample(pattern.file))
	}

	// A user has restored an encryption key of etcd from a backup, which the bridge must not delete.
	key := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: hcp.EncryptionKeySecretName(bridges[0].Name)},
		Data:       map[string][]byte{hcp.EncryptionKeyKey: bytes.Repeat([]byte("k"), 32)},
	}
	w.userSecrets = []string{key.Name}
	w.create(key)

	for _, bridge := range bridges {
		w.create(bridge)
	}

	for i, pattern := range patterns {
		bridge := bridges[i]
		w.waitForPhase(bridge, v1alpha1.PhaseReady)
		w.checkBridge(bridge, pattern.address)
		w.logf("%s: Ready at %s", pattern.name, bridge.Status.APIEndpoint)
	}

	for _, bridge := range bridges {
		w.upgrade(bridge, nextTag)
	}

	for i, pattern := range patterns {
		w.waitForVersion(bridges[i], "4.16.2")
		w.logf("%s: upgraded to 4.16.2", pattern.name)
	}

	for i, pattern := range patterns {
		w.deleteAndWait(bridges[i])
		w.logf("%s: deleted, with all of its objects", pattern.name)
	}

	if !w.get(key) {
		t.Errorf("Secret %s was created by a user, but was deleted with the bridge", key.Name)
	}
}

// checkBridge checks the status and the objects of a bridge that is ready.
func (w *fixture) checkBridge(bridge *v1alpha1.DPFHCPBridge, address string) {
	w.t.Helper()

	endpoint := fmt.Sprintf("https://api.%s.%s:6443", bridge.Name, bridge.Spec.BaseDomain)
	if address == "" {
		endpoint = "https://" + net.JoinHostPort(nodeIP, strconv.Itoa(int(w.getAPIService(bridge).Spec.Ports[0].NodePort)))
	} else if got := w.getAddress(bridge); got != address {
		w.t.Errorf("%s: the API server is at %q, want %s", bridge.Name, got, address)
	}

	if bridge.Status.APIEndpoint != endpoint {
		w.t.Errorf("%s: apiEndpoint is %s, want %s", bridge.Name, bridge.Status.APIEndpoint, endpoint)
	}

	for kind, ref := range map[string]*v1alpha1.ObjectReference{
		"HostedCluster": bridge.Status.HostedClusterRef, "NodePool": bridge.Status.NodePoolRef,
	} {
		if ref == nil || !w.get(newObject(hypershiftKind(kind), ref.Namespace, ref.Name)) {
			w.t.Errorf("%s: %s %v does not exist", bridge.Name, kind, ref)
		}
	}

	w.checkKubeconfig(bridge)
}

// checkKubeconfig checks that the DPUCluster has the hosted cluster's kubeconfig.
func (w *fixture) checkKubeconfig(bridge *v1alpha1.DPFHCPBridge) {
	w.t.Helper()

	dpus := newObject(hypershift.DPUClusterKind(), w.dpf, bridge.Spec.DPUClusterRef.Name)
	w.get(dpus)

	name, _, _ := unstructured.NestedString(dpus.Object, "spec", "kubeconfig")

	var theirs, ours corev1.Secret

	theirs.Namespace, theirs.Name = w.dpf, name
	ours.Namespace, ours.Name = bridge.Namespace, bridge.Status.KubeconfigSecretRef.Name

	if name == "" || !w.get(&theirs) || !w.get(&ours) {
		w.t.Fatalf("%s: kubeconfig Secret %q of the DPUCluster or %q of the bridge does not exist", bridge.Name, name, ours.Name)
	}

	if !bytes.Equal(theirs.Data["super-admin.conf"], ours.Data["kubeconfig"]) {
		w.t.Errorf("%s: the DPUCluster has another kubeconfig", bridge.Name)
	}

	if _, err := clientcmd.RESTConfigFromKubeConfig(theirs.Data["super-admin.conf"]); err != nil {
		w.t.Errorf("%s: %v", bridge.Name, err)
	}
}

// waitForVersion waits until HyperShift and the bridge have the version.
func (w *fixture) waitForVersion(bridge *v1alpha1.DPFHCPBridge, version string) {
	w.t.Helper()

	for _, kind := range []string{"HostedCluster", "NodePool"} {
		o := newObject(hypershiftKind(kind), bridge.Namespace, bridge.Name)

		w.eventually(fmt.Sprintf("%s of %s has %s", kind, bridge.Name, version), func() bool {
			w.get(o)

			image, _, _ := unstructured.NestedString(o.Object, "spec", "release", "image")

			return strings.Contains(image, version)
		})
	}

	w.waitForPhase(bridge, v1alpha1.PhaseReady)

	if got := w.readVersion(bridge); got != version {
		w.t.Errorf("%s is Ready while the control plane's version is %q", bridge.Name, got)
	}
}
