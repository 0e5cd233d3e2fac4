// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

// simFixture is a site whose test creates VirtualMachines itself.
type simFixture struct {
	*testing.T
	*simkubevirt.Cluster
	*site
}

func newSimFixture(t *testing.T, options simkubevirt.Options) *simFixture {
	t.Helper()

	s := newSiteWith(t, options)

	return &simFixture{T: t, Cluster: s.sim, site: s}
}

func (w *simFixture) objectKey(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: w.namespace, Name: name}
}

// newVM returns a VirtualMachine with one disk.
func (w *simFixture) newVM(name string, strategy virtv1.VirtualMachineRunStrategy) *virtv1.VirtualMachine {
	memory := resource.MustParse("1Gi")

	return &virtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: virtv1.VirtualMachineSpec{
			RunStrategy: &strategy,
			Template: &virtv1.VirtualMachineInstanceTemplateSpec{
				Spec: virtv1.VirtualMachineInstanceSpec{
					Domain: virtv1.DomainSpec{
						Memory: &virtv1.Memory{Guest: &memory},
						Devices: virtv1.Devices{
							Disks: []virtv1.Disk{{Name: "root"}},
						},
					},
					Volumes: []virtv1.Volume{{Name: "root", VolumeSource: virtv1.VolumeSource{
						ContainerDisk: &virtv1.ContainerDiskSource{Image: "example.com/linux:1"},
					}}},
				},
			},
		},
	}
}

func (w *simFixture) create(obj client.Object) {
	w.Helper()

	if err := env.Client.Create(w.Context(), obj); err != nil {
		w.Fatal(err)
	}
}

// getVM reads a VirtualMachine. It returns nil if it does not exist.
func (w *simFixture) getVM(name string) *virtv1.VirtualMachine {
	w.Helper()

	var vm virtv1.VirtualMachine

	return getObject(w, name, &vm)
}

func (w *simFixture) getVMI(name string) *virtv1.VirtualMachineInstance {
	w.Helper()

	var vmi virtv1.VirtualMachineInstance

	return getObject(w, name, &vmi)
}

func getObject[T client.Object](w *simFixture, name string, into T) T {
	w.Helper()

	var zero T

	err := env.Client.Get(w.Context(), w.objectKey(name), into)

	switch {
	case apierrors.IsNotFound(err):
		return zero
	case err != nil:
		w.Fatal(err)
	}

	return into
}

const waitTimeout = time.Minute

func (w *simFixture) eventuallyStatus(name string, want virtv1.VirtualMachinePrintableStatus) {
	w.Helper()
	w.eventually(fmt.Sprintf("machine %s is %s", name, want), func() bool {
		vm := w.getVM(name)

		return vm != nil && vm.Status.PrintableStatus == want
	})
}

func (w *simFixture) setStrategy(name string, strategy virtv1.VirtualMachineRunStrategy) {
	w.Helper()

	vm := &virtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"runStrategy":%q}}`, strategy))

	if err := env.Client.Patch(w.Context(), vm, patch); err != nil {
		w.Fatal(err)
	}
}
