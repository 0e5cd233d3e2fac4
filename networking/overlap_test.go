// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// createCluster creates a HypervisorCluster of KubeVirt. Its machines are in the fixture's namespace, on the
// network named machines.
func (w *fixture) createCluster(name string, kubeconfig *hfv1.SecretKeySelector) *hfv1.HypervisorCluster {
	w.t.Helper()

	cluster := &hfv1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-" + name},
		Spec: hfv1.HypervisorClusterSpec{
			Provider: hfv1.ProviderKubeVirt,
			KubeVirt: &hfv1.KubeVirtCluster{Namespace: w.namespace, Network: "machines", KubeconfigSecretRef: kubeconfig},
		},
	}
	w.must(env.Client.Create(w.t.Context(), cluster))

	return cluster
}

// createTemplate creates a KubeVirt template with a pool on a network. An empty network means the network of
// its cluster.
func (w *fixture) createTemplate(
	name string, cluster *hfv1.HypervisorCluster, network string, addresses ...hfv1.AddressRange,
) *hfv1.HypervisorMachineTemplate {
	w.t.Helper()

	template := &hfv1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: hfv1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: hfv1.LocalObjectReference{Name: cluster.Name},
			Template: hfv1.TemplateSource{KubeVirt: &hfv1.KubeVirtTemplate{
				Network: network, ContainerDisk: &hfv1.ContainerDisk{Image: "registry.example.com/runner:1"},
			}},
			Resources: hfv1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
			Network: &hfv1.MachineNetwork{Mode: hfv1.NetworkModeStatic, Static: &hfv1.StaticNetwork{
				Pool: &hfv1.AddressPool{Addresses: addresses, PrefixLengthV4: 16, Gateway: []hfv1.IPAddress{"10.0.0.1"}},
			}},
		},
	}
	w.must(env.Client.Create(w.t.Context(), template))

	return template
}

// waitForTemplateCondition waits for the condition AddressPoolReady, and returns its text.
func (w *fixture) waitForTemplateCondition(template *hfv1.HypervisorMachineTemplate, want string) string {
	w.t.Helper()

	current := ""

	w.waitUntil(want+" of "+template.Name, func() bool {
		c := w.addressPoolReady(template)
		if c == nil || c.ObservedGeneration != template.Generation {
			return false
		}

		current = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)

		return strings.Contains(current, want)
	})

	return current
}

// A status that another program restores after the template exists gets the conditions of this cluster again, and
// loses those of a pool that the template does not have.
func TestStatusOfTemplateIsRestored(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	cluster := w.createCluster("restored", nil)
	pooled := w.createTemplate("pooled", cluster, "", "10.0.9.10-10.0.9.11")
	valid := w.waitForTemplateCondition(pooled, "True Ready")

	plain := w.createTemplate("plain", cluster, "", "10.0.9.20-10.0.9.21")
	w.waitForTemplateCondition(plain, "True Ready")

	plain.Spec.Network = nil
	w.must(env.Client.Update(t.Context(), plain))
	w.waitUntil("the pool is removed", func() bool { return w.addressPoolReady(plain) == nil })

	for _, template := range []*hfv1.HypervisorMachineTemplate{pooled, plain} {
		w.addressPoolReady(template)
		meta.SetStatusCondition(&template.Status.Conditions, metav1.Condition{
			Type: hfv1.ConditionAddressPoolReady, Status: metav1.ConditionFalse, Reason: "PoolsOverlap", Message: "of another time",
			ObservedGeneration: template.Generation,
		})
		w.must(env.Client.Status().Update(t.Context(), template))
	}

	w.waitForTemplateCondition(pooled, valid)
	w.waitUntil("the condition is removed", func() bool { return w.addressPoolReady(plain) == nil })
}

// addressPoolReady reads a template again, and returns its condition AddressPoolReady.
func (w *fixture) addressPoolReady(template *hfv1.HypervisorMachineTemplate) *metav1.Condition {
	w.t.Helper()
	w.must(env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(template), template))

	return meta.FindStatusCondition(template.Status.Conditions, hfv1.ConditionAddressPoolReady)
}

// A KubeVirt template and a KubevirtNodePool on one network cannot have the same addresses, and the
// conflict names the owner of the other pool. The refused pool is accepted when the other pool removes the
// addresses. A restart does not change this.
func TestPoolsOfTemplatesAndNodePools(t *testing.T) {
	t.Parallel()

	const valid = infrav1.ConditionValidNetworkConfig

	w := newFixture(t)
	here := w.createCluster("here", nil)

	// The node pool is older.
	nodes := w.newNodePool("nodes", 0, "10.0.0.10-10.0.0.19")
	w.createPool(nodes)
	w.waitForCondition(nodes, valid, "True")
	time.Sleep(time.Second) // ages are in whole seconds

	late := w.createTemplate("late", here, "", "10.0.0.19-10.0.0.29")
	message := w.waitForTemplateCondition(late, "False PoolsOverlap")

	for _, part := range []string{"KubevirtNodePool " + w.namespace + "/nodes", "on network " + w.namespace + "/machines", "10.0.0.19"} {
		if !strings.Contains(message, part) {
			t.Errorf("the message lacks %q: %s", part, message)
		}
	}

	// On another network or on another cluster, the same addresses do not conflict.
	elsewhere := w.createTemplate("elsewhere", here, "other", "10.0.0.10-10.0.0.19")
	w.waitForTemplateCondition(elsewhere, "on network "+w.namespace+"/other")

	there := w.createCluster("there", &hfv1.SecretKeySelector{Name: "kubeconfig", Key: "kubeconfig"})
	w.waitForTemplateCondition(w.createTemplate("remote", there, "", "10.0.0.10-10.0.0.19"), "on network "+there.Name+":"+w.namespace+"/machines")

	// The conflict remains after a restart. A change makes the operator reconcile both again.
	w.restart()
	patchObject(w, late, func(m *hfv1.HypervisorMachineTemplate) { m.Spec.Resources.CPU = 2 })
	w.waitForTemplateCondition(late, "False PoolsOverlap")
	patchObject(w, nodes, func(p *infrav1.KubevirtNodePool) {
		p.Spec.BootstrapNetworkConfig.Nameservers = []infrav1.IPAddress{"10.0.0.2"}
	})
	w.waitForCondition(nodes, valid, "True")

	// The template is corrected. Now a newer node pool conflicts with it.
	patchObject(w, late, func(m *hfv1.HypervisorMachineTemplate) {
		m.Spec.Network.Static.Pool.Addresses = []hfv1.AddressRange{"10.0.0.20-10.0.0.29"}
	})
	w.waitForTemplateCondition(late, "True Ready")

	more := w.newNodePool("more", 1, "10.0.0.25-10.0.0.39")
	w.createPool(more)
	w.waitForCondition(more, valid, "False OverlappingAddresses")

	if message := w.formatCondition(more, valid); !strings.Contains(message, "HypervisorMachineTemplate "+w.namespace+"/late") ||
		!strings.Contains(message, "10.0.0.25") {
		t.Errorf("the node pool's message is %q", message)
	}

	w.must(env.Client.Delete(t.Context(), late))
	w.waitForCondition(more, valid, "True")
	w.waitUntil("a machine has an address", func() bool { return w.countAllocated() == 1 })
}

// After a restart, the older of two objects with overlapping pools keeps its pool, whatever its kind is.
func TestOlderPoolWins(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	here := w.createCluster("here", nil)

	first := w.createTemplate("first", here, w.namespace+"/machines", "10.0.0.10-10.0.0.19")
	w.waitForTemplateCondition(first, "True Ready")
	time.Sleep(time.Second) // ages are in whole seconds

	second := w.newNodePool("second", 0, "10.0.0.19-10.0.0.29")
	w.createPool(second)
	w.waitForCondition(second, infrav1.ConditionValidNetworkConfig, "False OverlappingAddresses")

	w.restart()

	// A change makes the operator reconcile both again.
	patchObject(w, second, func(p *infrav1.KubevirtNodePool) {
		p.Spec.BootstrapNetworkConfig.Nameservers = []infrav1.IPAddress{"10.0.0.2"}
	})
	w.waitForCondition(second, infrav1.ConditionValidNetworkConfig, "False OverlappingAddresses")
	patchObject(w, first, func(m *hfv1.HypervisorMachineTemplate) { m.Spec.Resources.CPU = 2 })
	w.waitForTemplateCondition(first, "True Ready")
}

// Machines on the pod network only have addresses of the pod network.
func TestNoPoolOnThePodNetwork(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	here := w.createCluster("here", nil)
	patchObject(w, here, func(c *hfv1.HypervisorCluster) { c.Spec.KubeVirt.Network = "" })

	template := w.createTemplate("pods", here, "", "10.0.0.10-10.0.0.19")
	if message := w.waitForTemplateCondition(template, "False PoolInvalid"); !strings.Contains(message, "template.kubevirt.network") {
		t.Errorf("the template's message is %q", message)
	}

	patchObject(w, here, func(c *hfv1.HypervisorCluster) { c.Spec.KubeVirt.Network = "networks/vlan20" })
	w.waitForTemplateCondition(template, "on network networks/vlan20")
}
