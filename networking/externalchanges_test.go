// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

// A VirtualMachine gets the addresses that a person wrote into the status, and a changed template of a node
// pool is restored.
func TestChangesByHand(t *testing.T) {
	t.Parallel()

	w := &fixture{t: t, namespace: env.Namespace(t)} // no controller runs: the test writes the addresses
	w.startWithCleanup()

	pool := w.newNodePool("hand", 1, "10.0.0.10-10.0.0.19")
	w.createPool(pool)
	w.waitUntil("the machine has an address", func() bool { return w.countAllocated() == 1 })
	w.stopArea()

	data := func() string { return kubevirt.NetworkDataSecret(&w.listVirtualMachines()[0]) }
	machine, was := &w.listMachines()[0], data()
	before := machine.DeepCopy()
	machine.Status.AllocatedBootstrapAddresses = map[string][]string{"eno101": {"10.0.0.17/16"}}
	w.must(env.Client.Status().Patch(t.Context(), machine, client.MergeFrom(before)))

	var templates infrav1.KubevirtMachineTemplateList
	w.must(env.Client.List(t.Context(), &templates, client.InNamespace(w.namespace)))

	template := &templates.Items[0]
	raw := string(template.Spec.Template.Spec.VirtualMachineTemplate.Raw)
	patchObject(w, template, func(m *infrav1.KubevirtMachineTemplate) {
		m.Spec.Template.Spec.VirtualMachineTemplate = runtime.RawExtension{Raw: []byte(strings.Replace(raw, "1Gi", "64Gi", 1))}
	})

	w.startArea()
	w.waitUntil("the VirtualMachine has other network data", func() bool { return data() != was })
	w.waitUntil("the template is restored", func() bool {
		w.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(template), template))

		return string(template.Spec.Template.Spec.VirtualMachineTemplate.Raw) == raw
	})
}

// An address pool that the cluster does not allow for its namespace blocks no other pool, whichever pool is
// older.
func TestForbiddenPoolsBlockNoOtherPool(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	cluster := w.createCluster("shared", nil)
	patchObject(w, cluster, func(c *hfv1.HypervisorCluster) {
		c.Spec.AllowedNamespaces = []hfv1.NamespaceAccess{{
			Selector:  &hfv1.NamespaceSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": w.namespace}},
			Addresses: []string{"10.0.1.0/24"},
		}}
	})

	grab := w.createTemplate("grab", cluster, "", "10.0.0.0/8")
	w.waitForTemplateCondition(grab, "False AddressNotAllowed")

	own := w.createTemplate("own", cluster, "", "10.0.1.10-10.0.1.19")
	w.waitForTemplateCondition(own, "True Ready")

	// A newer pool that is not allowed takes no address away either.
	later := w.createTemplate("later", cluster, "", "10.0.0.0/16")
	w.waitForTemplateCondition(later, "False AddressNotAllowed")
	patchObject(w, own, func(m *hfv1.HypervisorMachineTemplate) { m.Spec.Resources.CPU = 2 })
	w.waitForTemplateCondition(own, "True Ready")
}
