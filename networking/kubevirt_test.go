// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	virtv1 "kubevirt.io/api/core/v1"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/test/upstream"
)

// KubeVirt's own validation accepts the machines of all kinds of pools.
func TestMachinesAreAcceptedUpstream(t *testing.T) {
	t.Parallel()

	judge := upstream.StartVirtAPI(t)
	if judge == nil {
		t.Skip("hack/setup.sh upstream builds kubevirt-webhook")
	}

	w := &fixture{t: t, namespace: "ci"}
	persistent := &infrav1.KubevirtPersistentVolume{Size: resource.MustParse("50Gi"), AccessModes: []string{"ReadWriteMany"}}

	for name, row := range map[string]struct {
		change func(*infrav1.KubevirtNodePool)
		format netdata.Format
	}{
		"static addresses": {func(*infrav1.KubevirtNodePool) {}, netdata.FormatOpenStack},
		"for NoCloud":      {func(*infrav1.KubevirtNodePool) {}, netdata.FormatV2},
		"DHCP": {func(p *infrav1.KubevirtNodePool) {
			p.Spec.BootstrapNetworkConfig, p.Spec.AttachDefaultNetwork = nil, nil
		}, ""},
		"a disk that stays": {func(p *infrav1.KubevirtNodePool) { p.Spec.RootVolume.Persistent = persistent }, netdata.FormatOpenStack},
		"user data": {func(p *infrav1.KubevirtNodePool) {
			p.Spec.UserDataSecretRef = &infrav1.LocalObjectReference{Name: "user-data"}
		}, netdata.FormatOpenStack},
		"user data per machine": {func(p *infrav1.KubevirtNodePool) {
			p.Spec.UserDataSecretRef = &infrav1.LocalObjectReference{Name: "user-data"}
			p.Spec.UserDataSecrets = infrav1.UserDataPerMachine
		}, netdata.FormatOpenStack},
		"cores, pages and a guarantee": {func(p *infrav1.KubevirtNodePool) {
			p.Spec.Compute = &infrav1.KubevirtCompute{
				Cores: 4, Memory: resource.MustParse("16Gi"), Hugepages: "1Gi", QosClass: "Guaranteed",
			}
			p.Spec.NodeSelector = map[string]string{"zone": "a"}
		}, netdata.FormatOpenStack},
		"two networks": {func(p *infrav1.KubevirtNodePool) {
			p.Spec.AdditionalNetworks = []infrav1.KubevirtNetwork{{Name: "machines"}, {Name: "other/storage.fast"}}
		}, netdata.FormatOpenStack},
	} {
		pool := w.newNodePool("workers", 3, "10.0.0.10-10.0.0.50")
		row.change(pool)

		spec, err := kubevirt.NewMachineSpec(pool)
		w.must(err)

		m := &infrav1.KubevirtMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "workers-x7k2p", UID: "3b0c"}, Spec: spec}
		object, err := kubevirt.NewVirtualMachine(m, "network", row.format)
		w.must(err)

		vm := &virtv1.VirtualMachine{}
		w.must(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, vm, true))

		causes, err := judge(t.Context(), vm)
		if err != nil || len(causes) > 0 {
			t.Errorf("%s: KubeVirt returns %v, %v", name, causes, err)
		}
	}
}
