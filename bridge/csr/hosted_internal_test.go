// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e }, kube.WithScheme(certificatesv1.AddToScheme, corev1.AddToScheme))
}

func reach(t *testing.T, what string, is func() bool) {
	t.Helper()

	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in a minute: %s", what)
		}
	}
}

// worker makes a node of the hosted cluster.
func worker(t *testing.T, name string, addresses ...string) {
	t.Helper()

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	env.Create(t, node)

	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}

	if err := env.Client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// ask asks for a certificate of a signer.
func ask(t *testing.T, signer string, usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:dpu-1"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}

	out := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer, Usages: usages,
		},
	}
	env.Create(t, out)

	return out
}

// What is seen of a hosted cluster is what is there; another kubeconfig ends the watch by the old
// one, and so does the bridge's end.
func TestHostedClusterIsWatched(t *testing.T) {
	t.Parallel()

	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}

	woken := make(chan types.NamespacedName, 1000)
	f := &fleet{scheme: scheme, enqueue: func(b types.NamespacedName) { woken <- b }, clusters: map[types.NamespacedName]*hosted{}}
	bridge, dpus := types.NamespacedName{Namespace: "ns", Name: "b"}, types.NamespacedName{Namespace: "dpf", Name: "dpus"}

	text, err := os.ReadFile(env.Kubeconfig(t, env.Config))
	if err != nil {
		t.Fatal(err)
	}

	h, err := f.get(bridge, dpus, text)
	if err != nil {
		t.Fatal(err)
	}

	reach(t, "all is seen", h.known)

	for len(woken) > 0 {
		<-woken
	}

	worker(t, "dpu-1", "10.9.8.7", "2001:0db8:0::0007")
	reach(t, "a node is news", func() bool { return len(woken) > 0 && <-woken == bridge })
	reach(t, "the node is found by its address", func() bool { return h.holder(t.Context(), "2001:db8::7", "dpu-2") == "dpu-1" })

	if got := h.holder(t.Context(), "10.9.8.7", "dpu-1"); got != "" {
		t.Errorf("%s has dpu-1's address", got)
	}

	if node, err := h.node(t.Context(), "dpu-9"); node != nil || err != nil {
		t.Errorf("a node that is not there: %v, %v", node, err)
	}

	ask(t, certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageClientAuth)
	client := ask(t, certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)

	pending := func() []string {
		all, err := h.pending(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		var names []string
		for i := range all {
			names = append(names, all[i].Name)
		}

		return names
	}
	reach(t, "the request of the kubelet alone is pending", func() bool { return slices.Equal(pending(), []string{client.Name}) })

	client.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "ByHand", LastUpdateTime: metav1.Now(),
	}}
	if err := env.Client.SubResource("approval").Update(t.Context(), client); err != nil {
		t.Fatal(err)
	}

	reach(t, "what somebody has decided about is pending no more", func() bool { return len(pending()) == 0 })

	if same, err := f.get(bridge, dpus, text); same != h || err != nil {
		t.Errorf("the same kubeconfig is another watch: %v", err)
	}

	other, err := f.get(bridge, dpus, append(bytes.Clone(text), "\n# rotated\n"...))
	if err != nil || other == h {
		t.Fatalf("another kubeconfig is the same watch: %v", err)
	}

	<-h.done

	if got := f.of(dpus); !slices.Equal(got, []types.NamespacedName{bridge}) {
		t.Errorf("bridges of the DPUCluster: %v", got)
	}

	f.forget(bridge)
	<-other.done

	if got := f.of(dpus); len(got) != 0 {
		t.Errorf("after the bridge's end: %v", got)
	}
}

// Nodes say every few seconds that they live, which is no news.
func TestHeartbeatsAreNoNews(t *testing.T) {
	t.Parallel()

	node := func(address string, status corev1.ConditionStatus, beat int64) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.Unix(beat, 0)}},
		}}
	}
	before := node("10.0.0.1", corev1.ConditionFalse, 1)

	for name, tc := range map[string]struct {
		now  any
		want bool
	}{
		"a heartbeat":     {node("10.0.0.1", corev1.ConditionFalse, 2), false},
		"another address": {node("10.0.0.2", corev1.ConditionFalse, 1), true},
		"it is ready":     {node("10.0.0.1", corev1.ConditionTrue, 1), true},
		"no node":         {&certificatesv1.CertificateSigningRequest{}, true},
	} {
		if got := news(before, tc.now); got != tc.want {
			t.Errorf("%s: news %v", name, got)
		}
	}
}
