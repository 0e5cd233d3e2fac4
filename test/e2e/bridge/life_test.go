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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/hypershift"
)

// patterns are the document's three.
var patterns = []struct {
	name, file, address string
}{
	{"production", "dpfhcpbridge-production.yaml", "192.168.1.100"},
	{"development", "dpfhcpbridge-development.yaml", ""},
	{"staging", "dpfhcpbridge-staging.yaml", "192.168.1.150"},
}

// The three patterns come up, are upgraded, and go, side by side.
func TestPatterns(t *testing.T) {
	w := runWorld(t)
	// Production's address is of a pool that is there, staging's is of none.
	w.pool("production", "192.168.1.96/28")

	bridges := []*v1alpha1.DPFHCPBridge{}
	for _, pattern := range patterns {
		bridges = append(bridges, w.sample(pattern.file))
	}

	for i, pattern := range patterns {
		bridge := bridges[i]
		w.becomes(bridge, v1alpha1.PhaseReady)
		w.check(bridge, pattern.address)
		w.sayf("%s: Ready at %s", pattern.name, bridge.Status.APIEndpoint)
	}

	for _, bridge := range bridges {
		w.upgrade(bridge, nextTag)
	}

	for i, pattern := range patterns {
		w.upgraded(bridges[i], "4.16.2")
		w.sayf("%s: upgraded to 4.16.2", pattern.name)
	}

	for i, pattern := range patterns {
		w.remove(bridges[i])
		w.sayf("%s: gone, with all that was made for it", pattern.name)
	}
}

// check holds what a bridge promises when it is ready.
func (w *world) check(bridge *v1alpha1.DPFHCPBridge, address string) {
	w.t.Helper()

	endpoint := fmt.Sprintf("https://api.%s.%s:6443", bridge.Name, bridge.Spec.BaseDomain)
	if address == "" {
		endpoint = "https://" + net.JoinHostPort(nodeIP, strconv.Itoa(int(w.api(bridge).Spec.Ports[0].NodePort)))
	} else if got := w.address(bridge); got != address {
		w.t.Errorf("%s: the API server is at %q, want %s", bridge.Name, got, address)
	}

	if bridge.Status.APIEndpoint != endpoint {
		w.t.Errorf("%s: apiEndpoint is %s, want %s", bridge.Name, bridge.Status.APIEndpoint, endpoint)
	}

	for kind, ref := range map[string]*v1alpha1.ObjectReference{
		"HostedCluster": bridge.Status.HostedClusterRef, "NodePool": bridge.Status.NodePoolRef,
	} {
		if ref == nil || !w.look(object(hypershiftKind(kind), ref.Namespace, ref.Name)) {
			w.t.Errorf("%s: there is no %s at %v", bridge.Name, kind, ref)
		}
	}

	w.handedOver(bridge)
}

// handedOver checks that the DPUCluster has the hosted cluster's kubeconfig.
func (w *world) handedOver(bridge *v1alpha1.DPFHCPBridge) {
	w.t.Helper()

	dpus := object(hypershift.DPUClusterKind(), w.dpf, bridge.Spec.DPUClusterRef.Name)
	w.look(dpus)

	name, _, _ := unstructured.NestedString(dpus.Object, "spec", "kubeconfig")

	var theirs, ours corev1.Secret

	theirs.Namespace, theirs.Name = w.dpf, name
	ours.Namespace, ours.Name = bridge.Namespace, bridge.Status.KubeconfigSecretRef.Name

	if name == "" || !w.look(&theirs) || !w.look(&ours) {
		w.t.Fatalf("%s: the DPUCluster's kubeconfig %q or the bridge's %q is not there", bridge.Name, name, ours.Name)
	}

	if !bytes.Equal(theirs.Data["super-admin.conf"], ours.Data["kubeconfig"]) {
		w.t.Errorf("%s: the DPUCluster was given another kubeconfig", bridge.Name)
	}

	if _, err := clientcmd.RESTConfigFromKubeConfig(theirs.Data["super-admin.conf"]); err != nil {
		w.t.Errorf("%s: %v", bridge.Name, err)
	}
}

// upgraded waits until both HyperShift and the bridge have a version.
func (w *world) upgraded(bridge *v1alpha1.DPFHCPBridge, version string) {
	w.t.Helper()

	for _, kind := range []string{"HostedCluster", "NodePool"} {
		o := object(hypershiftKind(kind), bridge.Namespace, bridge.Name)

		w.eventually(fmt.Sprintf("%s of %s has %s", kind, bridge.Name, version), func() bool {
			w.look(o)

			image, _, _ := unstructured.NestedString(o.Object, "spec", "release", "image")

			return strings.Contains(image, version)
		})
	}

	w.becomes(bridge, v1alpha1.PhaseReady)

	cluster := object(hypershiftKind("HostedCluster"), bridge.Namespace, bridge.Name)
	w.look(cluster)

	history, _, _ := unstructured.NestedSlice(cluster.Object, "status", "controlPlaneVersion", "history")
	if first, _ := history[0].(map[string]any); first["version"] != version || first["state"] != "Completed" {
		w.t.Errorf("%s is Ready while the control plane's version is %v", bridge.Name, history[0])
	}
}

// An address that somebody takes after the bridge was made: it is told, and fixed when it
// is free.
func TestAddressTakenLater(t *testing.T) {
	w := runWorld(t)
	w.pool("production", "192.168.1.96/28")

	// Another Service has the address before MetalLB gives it to the control plane.
	w.sim.SetFaults(hypershift.Fault{Kind: hypershift.NoAddress, Cluster: "prod-cluster"})

	bridge := w.sample("dpfhcpbridge-production.yaml")
	w.eventually("the control plane has a Service", func() bool {
		cluster := object(hypershiftKind("HostedCluster"), bridge.Namespace, bridge.Name)
		namespace := hypershift.ControlPlaneNamespace(bridge.Namespace, bridge.Name)

		return w.look(cluster) && env.Client.Get(t.Context(), types.NamespacedName{
			Namespace: namespace, Name: "kube-apiserver",
		}, &corev1.Service{}) == nil
	})

	thief := &corev1.Service{Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	thief.Namespace, thief.Name = w.dpf, "thief"
	thief.Annotations = map[string]string{"metallb.io/loadBalancerIPs": "192.168.1.100"}
	w.create(thief)
	w.eventually("the thief has the address", func() bool { return w.look(thief) && len(thief.Status.LoadBalancer.Ingress) > 0 })

	w.sim.SetFaults()
	w.reports(bridge, v1alpha1.ConditionServiceExposureReady, "False "+v1alpha1.ReasonVIPConflict)
	w.sayf("address taken later: %s", "False VIPConflict")

	w.delete(thief)
	w.becomes(bridge, v1alpha1.PhaseReady)
	w.check(bridge, "192.168.1.100")
	w.sayf("address free again: Ready")
	w.remove(bridge)
}

// A HostedCluster that is deleted behind the bridge's back is told, and not made anew.
func TestDeletedBehindOurBack(t *testing.T) {
	w := runWorld(t)
	bridge := w.sample("dpfhcpbridge-development.yaml")
	w.becomes(bridge, v1alpha1.PhaseReady)

	at := types.NamespacedName{Namespace: bridge.Namespace, Name: bridge.Name}
	if err := w.sim.DeleteHostedCluster(t.Context(), at); err != nil {
		t.Fatal(err)
	}

	w.reports(bridge, v1alpha1.ConditionHostedClusterCreated, "False "+v1alpha1.ReasonDeleted)
	w.becomes(bridge, v1alpha1.PhaseFailed)
	w.eventually("the cluster is gone", func() bool {
		return !w.look(object(hypershiftKind("HostedCluster"), bridge.Namespace, bridge.Name))
	})

	// Another pass changes nothing of it.
	w.patch(bridge, `{"spec":{"clusterType":"dpf-other"}}`)
	w.becomes(bridge, v1alpha1.PhaseFailed)

	if w.look(object(hypershiftKind("HostedCluster"), bridge.Namespace, bridge.Name)) {
		t.Error("a cluster whose data is gone was made anew")
	}

	w.sayf("HostedCluster deleted by hand: Failed, Deleted, not made anew")
	w.remove(bridge)
}

// A DPUCluster that is not ready any more after the bridge was.
func TestDPUClusterNotReadyAfterReady(t *testing.T) {
	w := runWorld(t)
	bridge := w.sample("dpfhcpbridge-development.yaml")
	w.becomes(bridge, v1alpha1.PhaseReady)

	w.dpus(bridge, "NotReady")
	w.reports(bridge, v1alpha1.ConditionDPUClusterValid, "False "+v1alpha1.ReasonNotReady)
	w.reports(bridge, v1alpha1.ConditionReady, "False "+v1alpha1.ReasonValidationFailed)

	if !w.look(object(hypershiftKind("HostedCluster"), bridge.Namespace, bridge.Name)) {
		t.Error("the HostedCluster was taken away")
	}

	w.sayf("DPUCluster NotReady: told, %s", bridge.Status.Phase)
	w.dpus(bridge, "Ready")
	w.becomes(bridge, v1alpha1.PhaseReady)
	w.sayf("DPUCluster Ready: Ready again")
	w.remove(bridge)
}
