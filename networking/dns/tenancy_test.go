// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
)

// Only the allowed namespaces of a cluster can use its zones. A node pool of another namespace or a claim
// with a forged status cannot. Names that a namespace had before it was removed from the list stay.
func TestZonesNeedAllowedNamespace(t *testing.T) {
	t.Parallel()

	s := newFixture(t)
	s.allowNamespaces("others")

	claim := s.createClaim(s.namespace, "forged", "192.0.2.7")
	node := s.createMachine("node", "192.0.2.8")

	s.waitForCondition(claim, metav1.ConditionFalse, tenancy.ReasonNamespace)
	s.waitForMachineCondition(node, metav1.ConditionFalse, tenancy.ReasonNamespace)
	s.waitForRecords(map[string][]string{"A forged." + forward: {}, "A node." + forward: {}})

	s.allowNamespaces("others", s.namespace)
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)
	s.waitForMachineCondition(node, metav1.ConditionTrue, ReasonRegistered)

	s.allowNamespaces("others")

	late := s.createClaim(s.namespace, "late", "192.0.2.9")
	s.waitForCondition(late, metav1.ConditionFalse, tenancy.ReasonNamespace)
	s.waitForRecords(map[string][]string{"A forged." + forward: {"192.0.2.7"}, "A node." + forward: {"192.0.2.8"}, "A late." + forward: {}})
	s.waitForCondition(claim, metav1.ConditionTrue, ReasonRegistered)

	s.deleteClaim(claim)
	s.must(env.Client.Delete(t.Context(), late))
	s.must(env.Client.Delete(t.Context(), node))
	s.waitUntilEmpty()
}

// allowNamespaces sets the allowed namespaces of the cluster.
func (s *fixture) allowNamespaces(names ...string) {
	s.t.Helper()
	s.setAllowedNamespaces(v1alpha1.NamespaceAccess{Names: names})
}

// setAllowedNamespaces sets the entry as the only allowed namespaces of the cluster.
func (s *fixture) setAllowedNamespaces(entry v1alpha1.NamespaceAccess) {
	s.t.Helper()
	s.must(env.Client.Get(s.t.Context(), client.ObjectKeyFromObject(s.cluster), s.cluster))
	s.cluster.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{entry}
	s.must(env.Client.Update(s.t.Context(), s.cluster))
}

// createMachine creates a running KubevirtMachine of a pool whose names are in the cluster's zones.
func (s *fixture) createMachine(name, address string) *infrav1.KubevirtMachine {
	s.t.Helper()
	s.must(env.Client.Create(s.t.Context(), &infrav1.KubevirtNodePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "nodes"},
		Spec: infrav1.KubevirtNodePoolSpec{
			DNS: &infrav1.KubevirtNodePoolDNS{HypervisorClusterRef: infrav1.LocalObjectReference{Name: s.name}},
			RootVolume: infrav1.KubevirtRootVolume{
				DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "quay.io/containerdisks/fedora:42"},
			},
		},
	}))

	machine := &infrav1.KubevirtMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: map[string]string{infrav1.LabelNodePool: "nodes"}},
		Spec: infrav1.KubevirtMachineSpec{
			VirtualMachineTemplate: runtime.RawExtension{Raw: []byte(`{"spec":{}}`)},
			BootstrapNetworkConfig: &infrav1.VirtualMachineBootstrapNetworkConfig{
				Interface: "eno101", NetworkName: "machines", Subnets: []infrav1.AddressRange{"192.0.2.0/24"},
			},
		},
	}
	s.must(env.Client.Create(s.t.Context(), machine))

	status := fmt.Appendf(nil, `{"status":{"ready":true,"allocatedBootstrapAddresses":{"eno101":[%q]}}}`, address+"/24")
	s.must(env.Client.Status().Patch(s.t.Context(), machine, client.RawPatch(types.MergePatchType, status)))

	return machine
}

func (s *fixture) waitForMachineCondition(machine *infrav1.KubevirtMachine, status metav1.ConditionStatus, reason string) {
	s.t.Helper()
	s.waitUntil(machine.Name+" is "+reason, func() string {
		if err := env.Client.Get(s.t.Context(), client.ObjectKeyFromObject(machine), machine); err != nil {
			return err.Error()
		}

		found := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.ConditionDNSRegistered)
		if found == nil || found.Status != status || found.Reason != reason {
			return fmt.Sprintf("%+v", found)
		}

		return ""
	})
}
